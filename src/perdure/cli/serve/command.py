"""The command and its options."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from ..ending import CannotDo
from ..options import DEFAULT_URL
from ..saying import log_to_stderr, say, told
from .listening import checked_token, names_of, needed_token
from .plan import Plan

_Server = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:SERVER", help="your own server; without one, tools to try are served"),
]
_Url = Annotated[
    str, typer.Option("--url", envvar="PERDURE_URL", help="where the tasks of the sample tools are kept")
]
_Host = Annotated[str, typer.Option("--host", help="the address to listen at")]
_Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name", help="what others call this server, through a proxy on this machine; may be given again"
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
_Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="log every step")]


def serve(
    context: typer.Context,
    server: _Server = None,
    *,
    url: _Url = DEFAULT_URL,
    host: _Host = "127.0.0.1",
    name: _Names = None,
    port: _Port = None,
    token: _Token = None,
    dashboard_token: _DashboardToken = None,
    read_only: _ReadOnly = False,
    dashboard: _Dashboard = True,
    sample_feeds: _SampleFeeds = True,
    verbose: _Verbose = False,
) -> None:
    """Serve durable tools over streamable HTTP, with a dashboard beside them, until Ctrl-C or SIGTERM."""
    log_to_stderr(verbose=verbose)
    with told():
        plan = Plan(
            host=host,
            port=port,
            names=names_of(host, name or ()),
            token=needed_token(host, name or (), token),
            dashboard_token=checked_token("dashboard's token", dashboard_token),
            read_only=read_only,
            dashboard=dashboard,
        )
        if server is not None:
            _only_for_samples(context, "url", "sample_feeds")
        _serve(plan, server, url, made_up=sample_feeds)


def _serve(plan: Plan, server: str | None, url: str, *, made_up: bool) -> None:
    # with MCP, which takes long to load, and which the other commands do not need
    from .finding import named_server, sample_server  # noqa: PLC0415
    from .running import run  # noqa: PLC0415

    if server is None:
        hosted = sample_server(url, plan.names, made_up=made_up, known_caller=plan.token is not None)
    else:
        hosted = named_server(server, plan.names)
    anyio.run(run, plan, hosted, say)


def _only_for_samples(context: typer.Context, *options: str) -> None:
    """A server of one's own says itself where its tasks are. A variable may be meant for other commands."""
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            name = option.replace("_", "-")
            raise CannotDo(f"--{name} is for the sample tools; leave it out, your server decides that itself")
