"""The ASGI application that `perdure serve` runs, its routing, and its start and stop.

`/mcp` and every other path of the MCP server are the server's. `/health` is ours, and the rest is the
dashboard's. Paths below `/.well-known` need no token: clients ask there how to get one.
"""

from __future__ import annotations

import hmac
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ...feeds.account import ACCOUNTS
from ...mcp.refusals import not_set_up
from ...storage import Storage
from ..backends import read_settings_file
from ..errors import CommandError
from ..output import print_message
from ..signals import stop_signals
from .banner import banner, storage_location
from .command import ServeOptions
from .health import Health
from .network import base_url, bind
from .poller import FeedPoller
from .servers import MCP_PATH, HostedServer

log = logging.getLogger("perdure.serve")

HEALTH_PATH = "/health"
WELL_KNOWN_PATH = "/.well-known/"
SHUTDOWN_SECONDS = 2
"""The time that open connections get, after the tasks and pages that they wait for have ended."""

_STOPPING = JSONResponse({"status": "stopping"}, 503)


async def run(options: ServeOptions, hosted: HostedServer) -> None:
    """Serve until a signal stops the process."""
    if options.dashboard:
        require_dashboard()
    poller = await _make_poller(hosted) if options.feeds else None
    app = ServeApp(hosted, options, poller)
    recovery = "Running tasks will be recovered by another worker or at the next start."
    with bind(options.host, options.port) as listener:
        async with (
            stop_signals("waiting for running tasks", recovery) as stop,
            anyio.create_task_group() as group,
            app.running(),
        ):
            address, location = base_url(listener, options.host), await storage_location(app.storage)
            text = banner(options, hosted, address, location, await hosted.service.host.tools())
            server = HttpServer(app, on_started=lambda: print_message(text), on_stopped=stop.set)
            group.start_soon(server.serve, [listener])
            await stop.wait()
            if server.is_stopped:
                raise RuntimeError("the server exited unexpectedly")
            server.should_exit = True  # refuses new connections while tasks and pages end
    print_message("Stopped. Unfinished tasks resume at the next start.")


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals alone and reports its start and end."""

    def __init__(
        self, app: ASGIApp, *, on_started: Callable[[], None], on_stopped: Callable[[], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="critical",  # ExceptionLogger logs exceptions; a cut connection is not an error
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._on_started = on_started
        self._on_stopped = on_stopped
        self.is_stopped = False

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            self.is_stopped = True
            self._on_stopped()


async def _make_poller(hosted: HostedServer) -> FeedPoller:
    """Return a poller with the settings of this directory, and check them before anything is opened."""
    settings = read_settings_file()
    if settings.url not in (None, hosted.storage):
        log.warning(
            "ignoring the url of the feeds settings: this server polls the accounts of its own storage"
        )
    poller = FeedPoller(settings, simulated=hosted.is_sample)
    await poller.check()
    return poller


def require_dashboard() -> None:
    try:
        from ... import web  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is not installed; install the web extra: pip install 'perdure[web]', "
            "or use --no-dashboard"
        ) from error


class ServeApp:
    """The MCP server, the dashboard and `/health` as one ASGI application."""

    def __init__(self, hosted: HostedServer, options: ServeOptions, poller: FeedPoller | None) -> None:
        self._hosted = hosted
        self._options = options
        self._poller = poller
        self._server: ASGIApp = ExceptionLogger(hosted.app)
        self._dashboard: ASGIApp | None = None
        self._health: Health | None = None
        """None unless the application is running."""

    @property
    def storage(self) -> Storage:
        """The storage of the tasks, while the application is running."""
        return self._hosted.service.runtime.store.storage

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the server's lifespan, which opens the storage, and then the dashboard and the poller."""
        app = self._hosted.app
        async with app.router.lifespan_context(app):
            if not self._hosted.service.is_joined:
                raise CommandError(not_set_up("lifespan=tasks.lifespan").error.message)
            is_protected = self._hosted.authenticates_clients and self._hosted.service.host.is_authenticated
            if self._options.token is not None and not is_protected:
                self._server = BearerAuth(self._server, self._options.token)
            poller = nullcontext() if self._poller is None else self._poller.running(self.storage)
            async with self._run_dashboard(), poller:
                self._health = Health(self.storage, self._poller)
                try:
                    yield
                finally:
                    self._health = None

    @asynccontextmanager
    async def _run_dashboard(self) -> AsyncGenerator[None]:
        if not self._options.dashboard:
            yield
            return
        from ...web import Dashboard  # noqa: PLC0415 (the extra may be missing)

        dashboard = Dashboard(
            self.storage,
            feeds=self._poller is not None or await self._has_feeds(),
            token=self._options.effective_dashboard_token,
            read_only=self._options.read_only,
            hosts=self._options.allowed_hosts,
            config=self._hosted.service.runtime.store.config,
        )
        self._dashboard = dashboard.app
        async with dashboard.running():
            yield

    async def _has_feeds(self) -> bool:
        return self._hosted.is_sample or any((await self.storage.counts(ACCOUNTS, now=0)).values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._route(scope)(scope, receive, send)

    def _route(self, scope: Scope) -> ASGIApp:
        if self._health is None:
            return _STOPPING
        path: str = scope["path"]
        if _has_route(self._hosted.app, scope) or path == f"{MCP_PATH}/":
            return self._server
        if path == HEALTH_PATH:
            return self._health
        if path.startswith(WELL_KNOWN_PATH):
            return self._hosted.app  # which answers 404, without a token too
        return self._server if self._dashboard is None else self._dashboard


def _has_route(app: Starlette, scope: Scope) -> bool:
    return any(route.matches(scope)[0] is not Match.NONE for route in app.routes)


class ExceptionLogger:
    """Middleware that logs every exception of the user's own routes.

    uvicorn would log them too, but it also logs each connection that is cut at shutdown, so it is silenced.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            log.exception("%s %r raised an exception", scope.get("method", scope["type"]), scope["path"])
            raise


class BearerAuth:
    """Middleware that refuses requests without the token in `Authorization: Bearer`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_authorized(scope):
            await self._app(scope, receive, send)
            return
        refusal = JSONResponse({"error": "unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        header: bytes = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = header.partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected)
