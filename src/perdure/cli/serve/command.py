"""The `perdure serve` command and its options."""

from __future__ import annotations

import logging
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

from ...operating.access import MIN_TOKEN_LENGTH
from ...storage.loopback_address import LOOPBACK_HOSTS, is_loopback
from ..errors import CommandError
from ..options import STORAGE_HELP, VerboseOption, refuse_options, storage_url, url_option
from ..output import configure_logging

log = logging.getLogger("perdure.serve")

FIRST_PORT, LAST_PORT = 8000, 8099
GENERATE_HINT = 'python -c "import secrets; print(secrets.token_urlsafe(24))"'
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")
PORT_HELP = "Port to listen on. Default: the first free port from 8000 to 8099."
SERVER_HELP = "Your MCP server, such as mymodule:server. Default: a sample server."
URL_HELP = (
    f"{STORAGE_HELP} For the sample server only: the storage of MODULE:SERVER is set in its code, and --url "
    "is refused."
)
SAMPLE_FEEDS_HELP = (
    "Use simulated feeds for the feed tools of the sample server. "
    "With --no-sample-feeds, the tools read Bluesky."
)
READ_ONLY_HELP = "Do not allow users to cancel tasks or answer questions on the dashboard."
DASHBOARD_TOKEN_HELP = "Token that users enter to log in to the dashboard. Default: the value of --token."  # noqa: S105
TOKEN_HELP = "Bearer token that clients must send. Required if other machines can reach the server."  # noqa: S105


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options that apply to both the sample server and the user's own server."""

    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1"
    allowed_host: Annotated[
        list[str] | None,
        Option(
            metavar="HOST", help="Public host name of this server behind a reverse proxy. Can be repeated."
        ),
    ] = None
    port: Annotated[int | None, Option(metavar="PORT", min=1, max=65535, help=PORT_HELP)] = None
    token: Annotated[str | None, Option(metavar="TOKEN", envvar="PERDURE_TOKEN", help=TOKEN_HELP)] = None
    dashboard_token: Annotated[
        str | None,
        Option(metavar="TOKEN", envvar="PERDURE_DASHBOARD_TOKEN", help=DASHBOARD_TOKEN_HELP),
    ] = None
    read_only: Annotated[bool, Option("--read-only", help=READ_ONLY_HELP)] = False
    dashboard: Annotated[bool, Option(help="Serve the dashboard at /.")] = True
    work: Annotated[
        bool, Option(help="Run tasks in this process. With --no-work, only workers run them.")
    ] = True
    feeds: Annotated[bool, Option("--feeds", help="Also poll the Bluesky accounts in the storage.")] = False

    def check_tokens(self) -> None:
        """Raise CommandError if a token is invalid, or if none is set although other machines can connect."""
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
        """Return a socket that listens on --port, or on the first free port from 8000 to 8099.

        Ports are tried in order, so a restarted server usually gets its previous port again. If the first
        port is in use, a warning is logged, because clients that still connect to that port do not reach this
        server.
        """
        host, ports = self.host, range(FIRST_PORT, LAST_PORT + 1) if self.port is None else (self.port,)
        for port in ports:
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
                family, _, _, _, address = found[0]
                is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
                # `create_server` also listens: another process can still take a port that is only bound.
                listener = socket.create_server(address, family=family, backlog=128, dualstack_ipv6=is_dual)
            except socket.gaierror as error:
                advice = "use an address of this machine, such as 127.0.0.1 or 0.0.0.0"
                raise CommandError(f"invalid --host {host}: {error.strerror}; {advice}") from error
            except OSError as error:
                if error.errno != EADDRINUSE:
                    reason = os.strerror(error.errno or 0)
                    advice = "choose another address with --host or --port"
                    raise CommandError(f"cannot listen on {host}:{port}: {reason}; {advice}") from error
            else:
                if port not in (self.port, FIRST_PORT):
                    log.warning("%s", _other_port(port))
                return listener
        if self.port is not None:
            raise CommandError(f"port {self.port} on {host} is in use; choose another with --port")
        ports_in_use = f"ports {FIRST_PORT} to {LAST_PORT} on {host}"
        raise CommandError(f"{ports_in_use} are in use; choose another port with --port")

    def base_url(self, listener: socket.socket) -> str:
        """Return a URL at which this machine can reach the server, such as http://127.0.0.1:8000."""
        host = self.host
        with suppress(ValueError):
            if ip_address(host).is_unspecified:
                host = "127.0.0.1"
            elif ip_address(host).version == 6:
                host = f"[{host}]"
        return f"http://{host}:{listener.getsockname()[1]}"


def _other_port(port: int) -> str:
    in_use = f"port {FIRST_PORT} is" if port == FIRST_PORT + 1 else f"ports {FIRST_PORT} to {port - 1} are"
    advice = f"clients that connect to port {FIRST_PORT} do not reach this server"
    return f"{in_use} in use; serving on port {port} (choose one with --port); {advice}"


def serve(
    context: Context,
    server: Annotated[str | None, Argument(metavar="MODULE:SERVER", help=SERVER_HELP)] = None,
    *,
    url: Annotated[str | None, url_option(URL_HELP)] = None,
    sample_feeds: Annotated[bool, Option(help=SAMPLE_FEEDS_HELP)] = True,
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
