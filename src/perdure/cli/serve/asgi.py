"""Runs the server of `perdure serve`: starts and stops its parts, and routes requests to them.

Requests for `/mcp` and other routes of the MCP server go to that server. `Health` answers `/health`, and
`Readiness` answers `/ready`. All other paths go to the dashboard. `/.well-known/` needs no token, because
clients request paths below it to find out how to get a token.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from ...feeds.account import ACCOUNTS
from ...feeds.source import open_source
from ...operating.encryption_keys import MissingKeys
from ...operating.maintenance import measure_write
from ...runtime.background import run_in_background
from ...storage import Micros, Storage
from ...storage.errors import StorageBusy, StorageError, StorageFull, StorageReadOnly, StorageUnavailable
from ...storage.install_advice import install_command
from ...tasks.task_snapshot import TASKS
from ..errors import CommandError
from ..options import read_settings_file, require_shared_storage
from ..output import print_message
from ..signals import stop_signals
from .banner import banner, first_task
from .command import ServeOptions
from .poller import FeedPoller
from .servers import MCP_PATH, HostedServer

if TYPE_CHECKING:
    from ...web import Dashboard

log = logging.getLogger("perdure.serve")

HEALTH_PATH = "/health"
READY_PATH = "/ready"
WELL_KNOWN_PATH = "/.well-known/"
STOPPED_WITH_TASKS = "Stopped. Unfinished tasks, if any, resume at the next start."
SHUTDOWN_SECONDS = 2
"""When the server stops, requests that are still open are cancelled after this number of seconds."""

_REASONS: dict[type[StorageError], str] = {
    StorageFull: "the storage is full",
    StorageReadOnly: "the storage is read-only",
    StorageBusy: "the storage is locked by other processes",
    StorageUnavailable: "the storage does not accept writes at the moment",
}
STOPPING = JSONResponse({"status": "stopping"}, 503)
_UNAVAILABLE = JSONResponse({"status": "storage unavailable"}, 503)
_UNAUTHORIZED = JSONResponse({"error": "unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})


async def run(options: ServeOptions, hosted: HostedServer) -> None:
    """Serve requests until a signal stops the process."""
    with options.bind() as listener:
        async with stop_signals() as stop:
            async with _start(hosted, options, options.base_url(listener)) as app:
                name, info, tools = app.storage.name, await app.storage.info(), await hosted.tools()
                print_message(banner(options, hosted, options.base_url(listener), name, info, tools))
                ending = STOPPED_WITH_TASKS if info.is_shared else "Stopped."
                server = HttpServer(app)
                serving = server.start(listener, stop)
                await stop.wait()
                has_failed = serving.done()
                server.should_exit = True  # refuses new connections while the other parts stop
                await app.answer_waiting_requests()
            await serving  # raises an error of the HTTP server, now that the other parts have stopped
    if has_failed:
        raise RuntimeError("the HTTP server exited unexpectedly")
    print_message(ending)


class HttpServer(uvicorn.Server):
    """A uvicorn server that handles neither signals nor the application's lifespan. The caller does both."""

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

    def start(self, listener: socket.socket, stop: anyio.Event) -> asyncio.Task[None]:
        """Start an asyncio task that serves until `should_exit` is set. Set `stop` when it ends."""
        serving = asyncio.create_task(self.serve([listener]))
        serving.add_done_callback(lambda _: stop.set())
        return serving

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _import_dashboard() -> type[Dashboard]:
    try:
        from ...web import Dashboard  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        hint = f"use --no-dashboard, or install it with: {install_command('web')}"
        raise CommandError(f"the dashboard needs the web extra; {hint}") from error
    return Dashboard


async def _make_poller(hosted: HostedServer) -> FeedPoller:
    """Return a poller that uses the settings in the current directory. Raise an error if they are invalid."""
    settings = read_settings_file()
    if settings.url not in (None, hosted.storage):
        log.warning("ignoring `url` in the feeds settings; the server polls the accounts in its own storage")
    async with open_source(settings):  # checks the settings, and sends no request
        return FeedPoller(settings, simulated=hosted.is_sample)


@asynccontextmanager
async def _start(hosted: HostedServer, options: ServeOptions, address: str) -> AsyncGenerator[ServeApp]:
    """Start the MCP server, dashboard and poller, and yield the combined application.

    Stop them when the `async with` block ends.
    """
    dashboard_type = _import_dashboard() if options.dashboard else None
    poller = await _make_poller(hosted) if options.feeds else None
    tasks, server = hosted.tasks, _log_exceptions(hosted.app)
    tasks.work = options.work
    async with hosted.lifespan(), AsyncExitStack() as stack:
        store = tasks.runtime.store
        storage, missing_keys = store.storage, MissingKeys.of(store)
        if not options.work:
            await require_shared_storage(storage, "--no-work needs a storage that other processes can open")
        if options.token and not hosted.has_own_authentication:
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
                config=store.config,
                keys=store.keys,
                missing_keys=missing_keys,
                name=hosted.name,
                first_task=first_task(options, hosted, address, await hosted.tools()),
            )
            await stack.enter_async_context(made.running())
            dashboard = made.app
        if poller is not None:
            await stack.enter_async_context(run_in_background(poller.poll_forever(storage)))
        health = Health(storage, poller)
        ready = Readiness(health, missing_keys, store.clock)
        yield ServeApp(hosted, storage, server, dashboard, health, ready)


@dataclass
class ServeApp:
    """The ASGI application that combines the MCP server, the dashboard, `/health` and `/ready`."""

    hosted: HostedServer
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
        """At shutdown, end the requests that are waiting for a task, so that their clients get a response."""
        self.is_stopping = True
        self.hosted.tasks.close_streams()
        with anyio.move_on_after(SHUTDOWN_SECONDS):
            while self.open_posts:  # noqa: ASYNC110 (no event reports the end of the last one)
                await anyio.sleep(0.01)

    def _route(self, scope: Scope) -> ASGIApp:
        if self.is_stopping:
            return STOPPING
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


class Probe(ABC):
    """An ASGI application that answers every request with a report of the current state of the process."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.response()
        await response(scope, receive, send)

    @abstractmethod
    async def response(self) -> Response: ...


class Health(Probe):
    """The ASGI application at `/health`. It reports whether the storage can be read and written.

    Requests need no token, so the responses do not show where the storage is.
    """

    def __init__(self, storage: Storage, poller: FeedPoller | None = None) -> None:
        self._storage = storage
        self._poller = poller
        self._probe = asyncio.Lock()

    async def response(self) -> Response:
        try:
            await self._storage.counts(TASKS, "health", now=0)
        except StorageError:
            return _UNAVAILABLE
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
        """Return the error of the last write, or None if it succeeded.

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


class Readiness(Probe):
    """The ASGI application at `/ready`. It reports whether this process can run the tasks in the storage.

    The process is not ready if the storage fails, or if tasks are encrypted with a key that the process does
    not have.
    """

    def __init__(self, health: Health, missing_keys: MissingKeys, clock: Callable[[], Micros]) -> None:
        self._health = health
        self._missing_keys = missing_keys
        self._clock = clock

    async def response(self) -> Response:
        health = await self._health.response()
        if health.status_code != 200:
            return health
        try:
            missing = await self._missing_keys.search(now=self._clock())
        except StorageError:
            return _UNAVAILABLE
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
