"""The command and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import anyio
import typer

from ..errors import report_errors
from ..options import UrlOption, VerboseOption, refuse_options, storage_url
from ..output import configure_logging
from .network import allowed_hosts, require_token, validate_token

_Server = Annotated[
    str | None, typer.Argument(metavar="MODULE:SERVER", help="Your MCP server. Default: a sample server.")
]
_Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
_AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host", help="Host name under which a reverse proxy serves this server. Repeatable."
    ),
]
_Port = Annotated[
    int | None,
    typer.Option("--port", min=1, max=65535, help="Port. Default: the first free port from 8000."),
]
_Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="PERDURE_TOKEN",
        help="Bearer token that clients must send. Required unless the server listens on localhost only.",
    ),
]
_DashboardToken = Annotated[
    str | None,
    typer.Option(
        "--dashboard-token",
        envvar="PERDURE_DASHBOARD_TOKEN",
        help="Separate token for the dashboard. Default: same as --token.",
    ),
]
_ReadOnly = Annotated[bool, typer.Option("--read-only", help="Make the dashboard read-only.")]
_Dashboard = Annotated[bool, typer.Option("--dashboard/--no-dashboard", help="Serve the dashboard at /.")]
_SampleFeeds = Annotated[
    bool,
    typer.Option(
        "--sample-feeds/--no-sample-feeds", help="Use simulated feeds; --no-sample-feeds reads Bluesky."
    ),
]
_Feeds = Annotated[
    bool,
    typer.Option("--feeds", help="Also poll the Bluesky accounts of the storage: see `perdure feeds`."),
]


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options that apply to the sample server and to the user's own."""

    host: str
    port: int | None
    allowed_hosts: tuple[str, ...] | None
    """Host names that requests may use, or None for any."""
    token: str | None
    """The token that clients must send, or None if no token is needed."""
    dashboard_token: str | None
    """The token of the dashboard, if it has a separate one."""
    read_only: bool
    dashboard: bool
    feeds: bool
    """Whether to poll feeds too."""

    @property
    def effective_dashboard_token(self) -> str | None:
        return self.token if self.dashboard_token is None else self.dashboard_token


def serve(
    context: typer.Context,
    server: _Server = None,
    *,
    url: UrlOption = None,
    host: _Host = "127.0.0.1",
    allowed_host: _AllowedHosts = None,
    port: _Port = None,
    token: _Token = None,
    dashboard_token: _DashboardToken = None,
    read_only: _ReadOnly = False,
    dashboard: _Dashboard = True,
    sample_feeds: _SampleFeeds = True,
    feeds: _Feeds = False,
    verbose: VerboseOption = False,
) -> None:
    """Serve an MCP server and its dashboard over HTTP until stopped (Ctrl+C or SIGTERM)."""
    configure_logging(verbose=verbose)
    with report_errors():
        options = ServeOptions(
            host=host,
            port=port,
            allowed_hosts=allowed_hosts(host, allowed_host or ()),
            token=require_token(host, allowed_host or (), token),
            dashboard_token=validate_token("dashboard token", dashboard_token),
            read_only=read_only,
            dashboard=dashboard,
            feeds=feeds,
        )
        if server is not None:
            refuse_options(context, server, "url", "sample_feeds")
        _serve(options, server, storage_url(url), simulated=sample_feeds)


def _serve(options: ServeOptions, server: str | None, url: str, *, simulated: bool) -> None:
    # MCP takes long to import, and the other commands do not need it
    from .asgi import run  # noqa: PLC0415
    from .servers import load_server, sample_server  # noqa: PLC0415

    hosts = options.allowed_hosts
    if server is None:
        hosted = sample_server(url, hosts, simulated=simulated, has_token=options.token is not None)
    else:
        hosted = load_server(server, hosts)
    anyio.run(run, options, hosted)
