"""The command and its options."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from ..options import Url, refuse_options, storage_url
from ..saying import log_to_stderr, say, told
from .network import checked_token, names_of, needed_token
from .plan import Plan

_Server = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:SERVER", help="your own server; without one, tools to try are served"),
]
_Host = Annotated[str, typer.Option("--host", help="the address to listen at")]
_AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        help="A host name by which others reach this server through a proxy on this machine. Repeatable.",
    ),
]
_Port = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help="8000 if not given, or the next one that is free"),
]
_Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="PERDURE_TOKEN", help="what callers must know; needed beyond this machine"
    ),
]
_DashboardToken = Annotated[
    str | None,
    typer.Option(
        "--dashboard-token",
        envvar="PERDURE_DASHBOARD_TOKEN",
        help="what opens the dashboard, and not the server; else --token opens both",
    ),
]
_ReadOnly = Annotated[bool, typer.Option("--read-only", help="the dashboard shows, and changes nothing")]
_Dashboard = Annotated[bool, typer.Option("--dashboard/--no-dashboard", help="the dashboard, at /")]
_SampleFeeds = Annotated[
    bool,
    typer.Option("--sample-feeds/--no-sample-feeds", help="feeds of made-up people, or those of Bluesky"),
]
_Feeds = Annotated[
    bool,
    typer.Option("--feeds", help="Poll Bluesky accounts too, on the same storage: see `perdure feeds`."),
]
_Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="log every step")]


def serve(
    context: typer.Context,
    server: _Server = None,
    *,
    url: Url = None,
    host: _Host = "127.0.0.1",
    allowed_host: _AllowedHosts = None,
    port: _Port = None,
    token: _Token = None,
    dashboard_token: _DashboardToken = None,
    read_only: _ReadOnly = False,
    dashboard: _Dashboard = True,
    sample_feeds: _SampleFeeds = True,
    feeds: _Feeds = False,
    verbose: _Verbose = False,
) -> None:
    """Serve durable tools over streamable HTTP, with a dashboard beside them, until Ctrl-C or SIGTERM."""
    log_to_stderr(verbose=verbose)
    with told():
        plan = Plan(
            host=host,
            port=port,
            names=names_of(host, allowed_host or ()),
            token=needed_token(host, allowed_host or (), token),
            dashboard_token=checked_token("dashboard's token", dashboard_token),
            read_only=read_only,
            dashboard=dashboard,
            feeds=feeds,
        )
        if server is not None:
            refuse_options(context, server, "url", "sample_feeds")
        _serve(plan, server, storage_url(url), made_up=sample_feeds)


def _serve(plan: Plan, server: str | None, url: str, *, made_up: bool) -> None:
    # with MCP, which takes long to load, and which the other commands do not need
    from .running import run  # noqa: PLC0415
    from .servers import named_server, sample_server  # noqa: PLC0415

    if server is None:
        hosted = sample_server(url, plan.names, made_up=made_up, known_caller=plan.token is not None)
    else:
        hosted = named_server(server, plan.names)
    anyio.run(run, plan, hosted, say)
