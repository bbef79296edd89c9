"""The command `perdure serve` and its options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

import anyio
import typer

from ..errors import report_errors
from ..options import OptionGroup, UrlOption, VerboseOption, common_options, refuse_options, storage_url
from ..output import configure_logging
from .network import allowed_hosts, require_token, validate_token


@dataclass(frozen=True, kw_only=True)
class ServeOptions(OptionGroup):
    """The options that apply to the sample server and to the user's own."""

    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1"
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host", help="Host name under which a reverse proxy serves this server. Repeatable."
        ),
    ] = None
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="Port. Default: the first free port from 8000."),
    ] = None
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="PERDURE_TOKEN",
            help="Bearer token that clients must send. Required unless the server listens on localhost only.",
        ),
    ] = None
    dashboard_token: Annotated[
        str | None,
        typer.Option(
            "--dashboard-token",
            envvar="PERDURE_DASHBOARD_TOKEN",
            help="Separate token for the dashboard. Default: same as --token.",
        ),
    ] = None
    read_only: Annotated[bool, typer.Option("--read-only", help="Make the dashboard read-only.")] = False
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="Serve the dashboard at /.")
    ] = True
    feeds: Annotated[
        bool,
        typer.Option("--feeds", help="Also poll the Bluesky accounts of the storage: see `perdure feeds`."),
    ] = False

    def validated(self) -> Self:
        """Return the options with valid tokens, an empty one as None. Raise CommandError for invalid ones."""
        allowed_hosts(self.host, self.allowed_host or ())
        return replace(
            self,
            token=require_token(self.host, self.allowed_host or (), self.token),
            dashboard_token=validate_token("dashboard token", self.dashboard_token),
        )

    @property
    def allowed_hosts(self) -> tuple[str, ...] | None:
        """Host names that requests may use, or None for any."""
        return allowed_hosts(self.host, self.allowed_host or ())

    @property
    def effective_dashboard_token(self) -> str | None:
        return self.token if self.dashboard_token is None else self.dashboard_token


@common_options
def serve(
    context: typer.Context,
    server: Annotated[
        str | None, typer.Argument(metavar="MODULE:SERVER", help="Your MCP server. Default: a sample server.")
    ] = None,
    *,
    url: UrlOption = None,
    sample_feeds: Annotated[
        bool,
        typer.Option(
            "--sample-feeds/--no-sample-feeds", help="Use simulated feeds; --no-sample-feeds reads Bluesky."
        ),
    ] = True,
    verbose: VerboseOption = False,
    options: ServeOptions,
) -> None:
    """Serve an MCP server and its dashboard over HTTP until stopped (Ctrl+C or SIGTERM)."""
    configure_logging(verbose=verbose)
    with report_errors():
        options = options.validated()
        if server is not None:
            refuse_options(context, server, "url", "sample_feeds")
        # MCP takes long to import, and the other commands do not need it
        from .asgi import run  # noqa: PLC0415
        from .servers import load_server, sample_server  # noqa: PLC0415

        if server is None:
            hosted = sample_server(
                storage_url(url),
                options.allowed_hosts,
                simulated=sample_feeds,
                has_token=options.token is not None,
            )
        else:
            hosted = load_server(server, options.allowed_hosts)
        anyio.run(run, options, hosted)
