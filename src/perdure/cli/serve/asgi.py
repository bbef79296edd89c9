"""The ASGI application that `perdure serve` runs, its routing, and its start and stop.

`/mcp` and every other path of the MCP server are the server's. `/health` is ours, and the rest is the
dashboard's. Paths below `/.well-known` need no token: clients ask there how to get one.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from errno import EADDRINUSE
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ...feeds.account import ACCOUNTS
from ...feeds.api import open_source
from ...mcp.refusals import not_set_up
from ...storage import Storage
from ..backends import read_settings_file
from ..errors import CommandError
from ..output import print_message
from ..signals import stop_signals
from .banner import banner
from .command import ServeOptions
from .health import Health
from .poller import FeedPoller
from .servers import MCP_PATH, HostedServer

if TYPE_CHECKING:
    from ...web import Dashboard

log = logging.getLogger("perdure.serve")

FIRST_PORT, LAST_PORT = 8000, 8099
HEALTH_PATH = "/health"
WELL_KNOWN_PATH = "/.well-known/"
SHUTDOWN_SECONDS = 2
"""The time that open connections get, after the tasks and pages that they wait for have ended."""

_STOPPING = JSONResponse({"status": "stopping"}, 503)
_UNAUTHORIZED = JSONResponse({"error": "unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})


async def run(options: ServeOptions, hosted: HostedServer) -> None:
    """Serve until a signal stops the process."""
    dashboard = _import_dashboard() if options.dashboard else None
    poller = await _make_poller(hosted) if options.feeds else None
    recovery = "Running tasks will be recovered by another worker or at the next start."
    with _bind(options.host, options.port) as listener:
        async with stop_signals("waiting for running tasks", recovery) as stop:
            async with _start(hosted, options, dashboard, poller) as app:
                info, tools = await app.storage.info(), await hosted.service.host.tools()
                address = _base_url(listener, options.host)
                print_message(banner(options, hosted, address, app.storage.name, info, tools))
                server = HttpServer(app)
                serving = asyncio.create_task(server.serve([listener]))
                serving.add_done_callback(lambda _: stop.set())
                await stop.wait()
                has_failed = serving.done()
                server.should_exit = True  # refuses new connections while tasks and pages end
            await serving  # its error is raised only now, after the tasks were released in good order
    if has_failed:
        raise RuntimeError("the server exited unexpectedly")
    print_message("Stopped. Unfinished tasks resume at the next start.")


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals and the lifespan of the application alone."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="critical",  # see `_log_exceptions`; a connection that is cut is not an error
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _bind(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on this port, or on the first free one from 8000.

    Ports are tried in order, so that a restarted server usually gets its old one.
    """
    for each in range(FIRST_PORT, LAST_PORT + 1) if port is None else (port,):
        try:
            found = socket.getaddrinfo(host, each, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            # it also listens: a port that is only bound can still be taken
            return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=is_dual)
        except socket.gaierror as error:
            raise CommandError(f"invalid --host {host}: {error.strerror}") from error
        except OSError as error:
            if error.errno != EADDRINUSE:
                reason = os.strerror(error.errno or 0)
                raise CommandError(f"cannot listen on {host}:{each}: {reason}") from error
    if port is None:
        raise CommandError(
            f"ports {FIRST_PORT} to {LAST_PORT} on {host} are all in use; choose one with --port"
        )
    raise CommandError(f"port {port} on {host} is in use; choose another with --port, or omit it")


def _base_url(listener: socket.socket, host: str) -> str:
    """Return the URL at which this machine reaches the server: http://host:port."""
    port = listener.getsockname()[1]
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            return f"http://127.0.0.1:{port}"
        if ip_address(host).version == 6:
            return f"http://[{host}]:{port}"
    return f"http://{host}:{port}"


def _import_dashboard() -> type[Dashboard]:
    try:
        from ...web import Dashboard  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        hint = "install the web extra: pip install 'perdure[web]', or use --no-dashboard"
        raise CommandError(f"{error.name} is not installed; {hint}") from error
    return Dashboard


async def _make_poller(hosted: HostedServer) -> FeedPoller:
    """Return a poller with the settings of this directory, and check them before anything is opened."""
    settings = read_settings_file()
    if settings.url not in (None, hosted.storage):
        log.warning("ignoring the url of the feeds settings: accounts of the server's own storage are polled")
    async with open_source(settings):  # sends no request
        return FeedPoller(settings, simulated=hosted.is_sample)


@asynccontextmanager
async def _start(
    hosted: HostedServer,
    options: ServeOptions,
    dashboard_type: type[Dashboard] | None,
    poller: FeedPoller | None,
) -> AsyncGenerator[ServeApp]:
    """Run the server's lifespan, which opens the storage, and then the dashboard and the poller."""
    service, server = hosted.service, _log_exceptions(hosted.app)
    async with hosted.app.router.lifespan_context(hosted.app), AsyncExitStack() as stack:
        if not service.is_joined:
            raise CommandError(not_set_up("lifespan=tasks.lifespan").error.message)
        storage = service.runtime.store.storage
        is_protected = hosted.authenticates_clients and service.host.is_authenticated
        if options.token is not None and not is_protected:
            server = _require_token(server, options.token)
        dashboard = server
        if dashboard_type is not None:
            has_accounts = any((await storage.counts(ACCOUNTS, now=0)).values())
            made = dashboard_type(
                storage,
                feeds=poller is not None or hosted.is_sample or has_accounts,
                token=options.effective_dashboard_token,
                read_only=options.read_only,
                hosts=options.allowed_hosts,
                config=service.runtime.store.config,
            )
            await stack.enter_async_context(made.running())
            dashboard = made.app
        if poller is not None:
            await stack.enter_async_context(poller.running(storage))
        app = ServeApp(hosted, storage, server, dashboard, Health(storage, poller))
        try:
            yield app
        finally:
            app.is_stopping = True


@dataclass
class ServeApp:
    """The MCP server, the dashboard and `/health` as one ASGI application."""

    hosted: HostedServer
    storage: Storage
    server: ASGIApp
    """The MCP server behind the check of the token."""
    dashboard: ASGIApp
    """The dashboard, or the MCP server if there is no dashboard."""
    health: Health
    is_stopping: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._route(scope)(scope, receive, send)

    def _route(self, scope: Scope) -> ASGIApp:
        if self.is_stopping:
            return _STOPPING
        path: str = scope["path"]
        is_own = any(route.matches(scope)[0] is not Match.NONE for route in self.hosted.app.routes)
        if is_own or path == f"{MCP_PATH}/":
            return self.server
        if path == HEALTH_PATH:
            return self.health
        if path.startswith(WELL_KNOWN_PATH):
            return self.hosted.app  # which answers 404, without a token too
        return self.dashboard


def _log_exceptions(app: ASGIApp) -> ASGIApp:
    """Return the application with a log of the exceptions that the user's own routes raise.

    uvicorn would log them too, but it also logs each connection that is cut at shutdown, so it is silenced.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception:
            log.exception("%s %r raised an exception", scope.get("method", scope["type"]), scope["path"])
            raise

    return call


def _require_token(app: ASGIApp, token: str) -> ASGIApp:
    """Return the application behind a check of the token in `Authorization: Bearer`."""
    expected = f"bearer {token}".encode()

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        header: bytes = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, given = header.partition(b" ")
        is_authorized = hmac.compare_digest(scheme.lower() + b" " + given.strip(), expected)
        await (app if is_authorized else _UNAUTHORIZED)(scope, receive, send)

    return check
