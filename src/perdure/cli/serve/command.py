"""The `perdure serve` command and its options."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from errno import EADDRINUSE
from ipaddress import ip_address
from typing import Annotated

import anyio
from typer import Argument, Context, Option

from ...operating.access import LOOPBACK_HOSTS, MIN_TOKEN_LENGTH, is_loopback
from ..errors import CommandError
from ..options import UrlOption, VerboseOption, refuse_options, storage_url
from ..output import configure_logging

FIRST_PORT, LAST_PORT = 8000, 8099
GENERATE_HINT = 'python -c "import secrets; print(secrets.token_urlsafe(24))"'
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")
SERVER_HELP = "Your MCP server, such as mymodule:server. Default: a sample server."
TOKEN_HELP = "Bearer token that clients must send. Required if other machines can reach the server."  # noqa: S105


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options that apply to both the sample server and the user's own server."""

    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1"
    allowed_host: Annotated[
        list[str] | None, Option(help="Public host name of this server behind a reverse proxy. Repeatable.")
    ] = None
    port: Annotated[int | None, Option(min=1, max=65535, help="Default: first free port from 8000.")] = None
    token: Annotated[str | None, Option(envvar="PERDURE_TOKEN", help=TOKEN_HELP)] = None
    dashboard_token: Annotated[
        str | None,
        Option(envvar="PERDURE_DASHBOARD_TOKEN", help="Token for the dashboard. Default: --token."),
    ] = None
    read_only: Annotated[bool, Option("--read-only", help="Make the dashboard read-only.")] = False
    dashboard: Annotated[bool, Option(help="Serve the dashboard at /.")] = True
    work: Annotated[
        bool, Option(help="Run tasks in this process. With --no-work, only workers run them.")
    ] = True
    feeds: Annotated[bool, Option("--feeds", help="Also poll the Bluesky accounts in the storage.")] = False

    def check_tokens(self) -> None:
        """Raise CommandError if a token is invalid, or if no token is set and other machines can connect."""
        advice = f"generate a token with: {GENERATE_HINT}"
        others = [*(self.allowed_host or ()), *([] if is_loopback(self.host) else [self.host])]
        if others and not self.token:
            reason = f"{others[0]} is reachable from other machines, so a token is required"
            raise CommandError(f"{reason}; set --token or PERDURE_TOKEN; {advice}")
        for name, token in (("token", self.token), ("dashboard token", self.dashboard_token)):
            if token and (not token.isascii() or not token.isprintable() or " " in token):
                raise CommandError(f"the {name} must be printable ASCII without spaces; {advice}")
            if token and len(token) < MIN_TOKEN_LENGTH:
                raise CommandError(f"the {name} must have at least {MIN_TOKEN_LENGTH} characters; {advice}")

    @property
    def allowed_hosts(self) -> tuple[str, ...] | None:
        """The host names that are allowed in requests, or None if any host name is allowed.

        A local server accepts only known names, because a website could make its own name resolve to this
        machine (DNS rebinding). A server that other machines can reach is protected by its token instead.
        """
        others = self.allowed_host or ()
        if not others and not is_loopback(self.host):
            return None
        for name in others:
            if not _HOST_NAME.fullmatch(name):
                raise CommandError(f"invalid --allowed-host {name}; use a host name without a scheme or port")
        return tuple(dict.fromkeys(name.lower() for name in (*LOOPBACK_HOSTS, self.host, *others)))

    @property
    def effective_dashboard_token(self) -> str | None:
        return self.dashboard_token or self.token or None

    def bind(self) -> socket.socket:
        """Return a socket that listens on --port, or on the first free port from 8000.

        Ports are tried in order, so a restarted server usually gets its previous port.
        """
        host, ports = self.host, range(FIRST_PORT, LAST_PORT + 1) if self.port is None else (self.port,)
        for port in ports:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
                family, _, _, _, address = found[0]
                is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
                # `create_server` also listens: another process can still take a port that is only bound.
                return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=is_dual)
            except socket.gaierror as error:
                raise CommandError(f"invalid --host {host}: {error.strerror}") from error
            except OSError as error:
                if error.errno != EADDRINUSE:
                    reason = os.strerror(error.errno or 0)
                    raise CommandError(f"cannot listen on {host}:{port}: {reason}") from error
        if self.port is not None:
            raise CommandError(f"port {self.port} on {host} is in use; choose another with --port")
        raise CommandError(f"ports {FIRST_PORT} to {LAST_PORT} on {host} are in use; set another with --port")

    def base_url(self, listener: socket.socket) -> str:
        """Return the URL that reaches the server from this machine, such as http://127.0.0.1:8000."""
        host = self.host
        with suppress(ValueError):
            if ip_address(host).is_unspecified:
                host = "127.0.0.1"
            elif ip_address(host).version == 6:
                host = f"[{host}]"
        return f"http://{host}:{listener.getsockname()[1]}"


def serve(
    context: Context,
    server: Annotated[str | None, Argument(metavar="MODULE:SERVER", help=SERVER_HELP)] = None,
    *,
    url: UrlOption = None,
    sample_feeds: Annotated[bool, Option(help="Use simulated feeds in the sample server.")] = True,
    verbose: VerboseOption = False,
    options: ServeOptions,
) -> None:
    """Serve an MCP server and its dashboard over HTTP until stopped (Ctrl+C or SIGTERM)."""
    configure_logging(verbose=verbose)
    options.check_tokens()
    if server is not None:
        refuse_options(context, server, "url", "sample_feeds")
    # MCP is slow to import, and the other commands do not need it.
    from .asgi import run  # noqa: PLC0415
    from .servers import load_server, sample_server  # noqa: PLC0415

    if server is None:
        hosted = sample_server(storage_url(url), options, simulated=sample_feeds)
    else:
        hosted = load_server(server, options)
    anyio.run(run, options, hosted)
