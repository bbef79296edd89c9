"""Runs the server of `perdure serve`: starts and stops its parts, and routes requests to them.

Requests for `/mcp` and other routes of the MCP server go to that server, `/health` goes to `Health`, `/ready`
to `Readiness`, and all other paths go to the dashboard. `/.well-known/` needs no token: there, clients find
out how to get one.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ...feeds.account import ACCOUNTS
from ...feeds.api import open_source
from ...mcp.adapters import ServerAdapter
from ...operating.encryption_keys import find_missing_keys
from ...operating.maintenance import measure_write
from ...storage import Storage
from ...storage.errors import StorageBusy, StorageError, StorageFull, StorageReadOnly, StorageUnavailable
from ...tasks import TaskStore
from ...tasks.stored_task import TASKS
from ..errors import CommandError
from ..options import read_settings_file
from ..output import print_message
from ..signals import run_in_background, stop_signals
from .banner import banner
from .command import ServeOptions
from .poller import FeedPoller
from .servers import MCP_PATH, HostedServer

if TYPE_CHECKING:
    from ...web import Dashboard

log = logging.getLogger("perdure.serve")

HEALTH_PATH = "/health"
READY_PATH = "/ready"
WELL_KNOWN_PATH = "/.well-known/"
SHUTDOWN_SECONDS = 2
"""When the server stops, requests that are still open are cancelled after this number of seconds."""

_REASONS: dict[type[StorageError], str] = {
    StorageFull: "the storage is full",
    StorageReadOnly: "the storage is read-only",
    StorageBusy: "the storage is locked by other processes",
    StorageUnavailable: "the storage does not accept writes at the moment",
}
_STOPPING = JSONResponse({"status": "stopping"}, 503)
_UNAUTHORIZED = JSONResponse({"error": "unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})


async def run(options: ServeOptions, hosted: HostedServer) -> None:
    """Serve requests until a signal stops the process."""
    recovery = "Running tasks will be recovered by another worker or at the next start."
    with options.bind() as listener:
        async with stop_signals("waiting for running tasks", recovery) as stop:
            async with _start(hosted, options) as app:
                info, tools = await app.storage.info(), await app.adapter.tools()
                address = options.base_url(listener)
                print_message(banner(options, hosted, address, app.storage.name, info, tools))
                server = HttpServer(app)
                serving = asyncio.create_task(server.serve([listener]))
                serving.add_done_callback(lambda _: stop.set())
                await stop.wait()
                has_failed = serving.done()
                server.should_exit = True  # refuses new connections while the other parts stop
                await app.answer_waiting_requests()
            await serving  # raises an error of the HTTP server, now that the other parts have stopped
    if has_failed:
        raise RuntimeError("the HTTP server exited unexpectedly")
    print_message("Stopped. Unfinished tasks resume at the next start.")


class HttpServer(uvicorn.Server):
    """A uvicorn server that does not handle signals or the application's lifespan: its caller does."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            log_level="critical",  # see `_log_exceptions`
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _import_dashboard() -> type[Dashboard]:
    try:
        from ...web import Dashboard  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        hint = "install the web extra: pip install 'perdure[web]', or use --no-dashboard"
        raise CommandError(f"{error.name} is not installed; {hint}") from error
    return Dashboard


async def _make_poller(hosted: HostedServer) -> FeedPoller:
    """Return a poller that uses the settings in the current directory. Raise an error if they are invalid."""
    settings = read_settings_file()
    if settings.url not in (None, hosted.storage):
        log.warning("ignoring `url` in the feeds settings; the server polls the accounts in its own storage")
    async with open_source(settings):  # checks the settings, and sends no request
        return FeedPoller(settings, simulated=hosted.is_sample)


@asynccontextmanager
async def _start(hosted: HostedServer, options: ServeOptions) -> AsyncGenerator[ServeApp]:
    """Start the MCP server, dashboard and poller, and yield the combined application. Stop them at exit."""
    dashboard_type = _import_dashboard() if options.dashboard else None
    poller = await _make_poller(hosted) if options.feeds else None
    tasks, server = hosted.tasks, _log_exceptions(hosted.app)
    tasks.work = options.work
    async with hosted.lifespan() as adapter, AsyncExitStack() as stack:
        storage = tasks.runtime.store.storage
        if not (options.work or (await storage.info()).is_shared):
            raise CommandError("--no-work needs a storage that workers can open; this one is in memory")
        is_protected = hosted.authenticates_clients and adapter.requires_authentication
        if options.token and not is_protected:
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
                config=tasks.runtime.store.config,
                keys=tasks.runtime.store.keys,
            )
            await stack.enter_async_context(made.running())
            dashboard = made.app
        if poller is not None:
            await stack.enter_async_context(run_in_background(poller.poll_forever(storage)))
        health = Health(storage, poller)
        ready = Readiness(health, tasks.runtime.store)
        yield ServeApp(hosted, adapter, storage, server, dashboard, health, ready)


@dataclass
class ServeApp:
    """The ASGI application that combines the MCP server, the dashboard and `/health`."""

    hosted: HostedServer
    adapter: ServerAdapter
    storage: Storage
    server: ASGIApp
    """The MCP server. It requires the token from --token, unless it has its own authentication."""
    dashboard: ASGIApp
    """The application that handles all other paths: the dashboard or, with --no-dashboard, the MCP server."""
    health: Health
    readiness: Readiness
    is_stopping: bool = False
    open_posts: int = 0
    """Number of POST requests to the MCP server that have not been answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._route(scope)
        is_post = app is self.server and scope.get("method") == "POST"
        self.open_posts += is_post
        try:
            await app(scope, receive, send)
        finally:
            self.open_posts -= is_post

    async def answer_waiting_requests(self) -> None:
        """At shutdown, end the requests that wait for a task, so that their clients get a response."""
        self.is_stopping = True
        self.hosted.tasks.close_streams()
        with anyio.move_on_after(SHUTDOWN_SECONDS):
            while self.open_posts:  # noqa: ASYNC110 (the last of them needs no event)
                await anyio.sleep(0.01)

    def _route(self, scope: Scope) -> ASGIApp:
        if self.is_stopping:
            return _STOPPING
        path: str = scope["path"]
        is_own = any(route.matches(scope)[0] is not Match.NONE for route in self.hosted.app.routes)
        if is_own or path == f"{MCP_PATH}/":
            return self.server
        if path == HEALTH_PATH:
            return self.health
        if path == READY_PATH:
            return self.readiness
        if path.startswith(WELL_KNOWN_PATH):
            return self.hosted.app  # responds with 404, without a check of the token
        return self.dashboard


class Health:
    """The ASGI application at `/health`. It reports whether the storage can be read and written.

    Requests need no token, so the responses do not show where the storage is.
    """

    def __init__(self, storage: Storage, poller: FeedPoller | None = None) -> None:
        self._storage = storage
        self._poller = poller
        self._probe = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.response()
        await response(scope, receive, send)

    async def response(self) -> Response:
        try:
            await self._storage.counts(TASKS, "health", now=0)
        except StorageError:
            return JSONResponse({"status": "storage unavailable"}, 503)
        error = await self._write_error()
        if error is not None:
            reason = _REASONS.get(type(error), "the storage failed; see the server log")
            return JSONResponse({"status": "writes fail", "reason": reason}, 503)
        if self._poller is None:
            return JSONResponse({"status": "ok"})
        # A failing poller is not a reason for a load balancer to move clients to another server.
        feeds = "not polled; see the server log" if self._poller.is_failing else "polled"
        return JSONResponse({"status": "ok", "feeds": feeds})

    async def _write_error(self) -> StorageError | None:
        """Return the error of the most recent failed write, or None if a later write succeeded.

        After a failed write, each health request tries to write. Otherwise the error might never clear: a
        load balancer sends no requests to a server that reports an error, so there might be no other write.
        """
        if self._storage.write_error is not None and not self._probe.locked():
            async with self._probe:
                try:
                    await measure_write(self._storage, "health")
                except StorageError as error:
                    log.warning("writes to the storage are failing: %s", error)
        return self._storage.write_error


class Readiness:
    """The ASGI application at `/ready`. It reports whether this process can serve all tasks.

    It is not ready if the storage fails, or if tasks are encrypted with a key that it does not have.
    """

    def __init__(self, health: Health, store: TaskStore) -> None:
        self._health = health
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.response()
        await response(scope, receive, send)

    async def response(self) -> Response:
        health = await self._health.response()
        if health.status_code != 200:
            return health
        store = self._store
        try:
            missing = await find_missing_keys(
                store.storage, store.keys, application=store.application, now=store.clock()
            )
        except StorageError:
            return JSONResponse({"status": "storage unavailable"}, 503)
        if missing:
            which = ", ".join(sorted(missing))
            reason = f"tasks are encrypted with keys that this process does not have: {which}"
            log.error("not ready: %s; set PERDURE_ENCRYPTION_KEY to the same keys in all processes", reason)
            return JSONResponse({"status": "keys missing", "reason": reason}, 503)
        return JSONResponse({"status": "ready"})


def _log_exceptions(app: ASGIApp) -> ASGIApp:
    """Return an application that calls `app` and logs its exceptions.

    uvicorn's own log is off, because it would also report each connection that is cut when the server stops.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception:
            log.exception("request %s %r failed", scope.get("method", scope["type"]), scope["path"])
            raise

    return call


def _require_token(app: ASGIApp, token: str) -> ASGIApp:
    """Return an application that rejects requests without the header `Authorization: Bearer <token>`."""
    expected = f"bearer {token}".encode()

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        header: bytes = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, given = header.partition(b" ")
        is_authorized = hmac.compare_digest(scheme.lower() + b" " + given.strip(), expected)
        await (app if is_authorized else _UNAUTHORIZED)(scope, receive, send)

    return check
