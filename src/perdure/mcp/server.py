"""`Tasks`, with which the tools of a server become durable.

tasks = Tasks("sqlite:///tasks.db")
server = MCPServer("reports", **tasks.attach())

@server.tool()
@tasks.durable
async def build_report(year: int, ctx: Context) -> str: ...
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from math import isfinite
from typing import Any, ParamSpec, TypedDict, TypeVar, cast, overload

import anyio
from anyio.abc import TaskGroup
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.extension import Extension, MethodBinding, compose_tool_call_handler
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, CallToolRequestParams, CallToolResult, TextContent
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from pydantic import BaseModel

from ..runtime import App, ClientCannotAnswer, Failed, Function, Pause, Runtime, RuntimeConfig, Task
from ..runtime.config import check_seconds
from ..storage import Micros, Storage
from ..storage.time_types import Duration, to_milliseconds, to_seconds
from ..tasks import Owner, StoreConfig, Success
from ..tasks.edits import resolve_ttl
from ..tasks.errors import InvalidValue
from .adapters import LowLevelAdapter, MCPServerAdapter, ServerAdapter
from .admission import Admission
from .errors import not_attached, not_running, to_mcp_error
from .handlers import Handlers
from .identity import AnonymousPolicy, Identify, Identity
from .streams import TRANSPORT_KEEP_ALIVE_SECONDS, OpenStreams, StatusNotifier
from .tool import DurableTool, TaskMode, check_function, wrap
from .wire import RequestContext

log = logging.getLogger("perdure.mcp")

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", StoreConfig, RuntimeConfig)

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class ServerArguments(TypedDict):
    """The arguments of `MCPServer` that make its tools durable."""

    extensions: Sequence[Extension]
    middleware: Sequence[ServerMiddleware[Any]]
    lifespan: Lifespan


class Tasks:
    """Durable tasks for one server, in both task protocols at once."""

    def __init__(
        self,
        url: str | Storage,
        *,
        ttl: Duration | UnsetType | None = UNSET,
        max_ttl: Duration | UnsetType | None = UNSET,
        retention: Duration | UnsetType | None = UNSET,
        max_tasks_per_owner: int | UnsetType = UNSET,
        concurrency: int | UnsetType = UNSET,
        anonymous: AnonymousPolicy = "id",
        identify: Identify | None = None,
        keep_alive: Duration = TRANSPORT_KEEP_ALIVE_SECONDS,
        store: StoreConfig = StoreConfig(),
        runtime: RuntimeConfig = RuntimeConfig(),
    ) -> None:
        """Keep tasks in the storage of this URL.

        The first five options are those of `store` and `runtime`, which have more. `anonymous` decides what a
        server without authentication does, and `identify` identifies callers in a way of your own; it is
        called once for each request about tasks. A request that waits for a task gets a message whenever its
        stream was silent for `keep_alive`, so that proxies do not close it.
        """
        self._identity = Identity(anonymous, identify)
        store = _with_options(
            store, ttl=ttl, max_ttl=max_ttl, retention=retention, max_tasks_per_owner=max_tasks_per_owner
        )
        self._store_config = replace(store, allow_anonymous=anonymous != "refuse")
        self._app = App(
            url, store=self._store_config, runtime=_with_options(runtime, concurrency=concurrency)
        )
        check_seconds("keep_alive", keep_alive, above_zero=True)
        self._host = _RuntimeHost(self._app, to_seconds(keep_alive))
        self._handlers = Handlers(self, self._identity)
        self._admission = Admission(self, self._identity, self._handlers)
        self._tools: dict[str, DurableTool] = {}
        self._server: object = None
        self._adapter: ServerAdapter | None = None
        self._states: list[object] = []
        """What the user's lifespan yielded, for each time that it is entered now."""

    @property
    def runtime(self) -> Runtime:
        """The runtime, while the server runs."""
        return self._host.runtime

    @property
    def adapter(self) -> ServerAdapter | None:
        """The server, once it has started."""
        return self._adapter

    @property
    def has_tools(self) -> bool:
        """Whether there are durable functions."""
        return bool(self._tools)

    @property
    def streams(self) -> OpenStreams:
        """The streams of requests that wait for tasks."""
        return self._host.streams

    @property
    def notifier(self) -> StatusNotifier:
        """What notifies sessions of 2025-11-25, while the server runs."""
        return self._host.notifier

    def close_streams(self) -> None:
        """Answer all requests that wait for a task, because the server is about to stop.

        `perdure serve` calls this at SIGTERM. In a server of your own, call it before the connections are
        closed: streams of `subscriptions/listen` end with their result, waiting requests with an error that
        says to send them again.
        """
        self._host.streams.close()

    # Tools

    @overload
    def durable(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def durable(
        self,
        /,
        *,
        name: str | None = None,
        mode: TaskMode = "optional",
        retries: int = 0,
        retry_on: tuple[type[Exception], ...] = (),
        backoff: Duration = 1,
        restart: bool = True,
        timeout: Duration | None = None,
        ttl: Duration | None = None,
        poll_interval: Duration = 5,
        input_deadline: Duration | None = None,
        operators_answer: bool = False,
        concurrency: int | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def durable(
        self,
        function: Callable[..., object] | None = None,
        /,
        *,
        name: str | None = None,
        mode: TaskMode = "optional",
        retries: int = 0,
        retry_on: tuple[type[Exception], ...] = (),
        backoff: Duration = 1,
        restart: bool = True,
        timeout: Duration | None = None,
        ttl: Duration | None = None,
        poll_interval: Duration = 5,
        input_deadline: Duration | None = None,
        operators_answer: bool = False,
        concurrency: int | None = None,
    ) -> object:
        """Make the calls of a tool tasks, which survive the server.

        Write it below the decorator that registers the tool. The function runs outside of the request that
        calls it, and again if its worker is lost or stops, unless `restart` is false. `retries` is how often
        it runs again after one of the exceptions in `retry_on`, after `Again`, or after a timeout; `backoff`
        is the time before the first retry. With `mode="required"` only clients that understand tasks may call
        the tool. `ttl` is how long a task can wait for its first start; `poll_interval` is the longest
        interval that clients are advised to poll in; a question must be answered within `input_deadline`,
        else the task fails.
        """
        ttl_ms = UNSET if ttl is None else _milliseconds("ttl", ttl)
        resolve_ttl(ttl_ms, self._store_config)

        def register(function: Callable[..., object]) -> Callable[..., object]:
            called = name or getattr(check_function(function), "__name__", "")
            tool = DurableTool(
                name=called,
                function=function,
                mode=mode,
                ttl_ms=ttl_ms,
                poll_interval_ms=_milliseconds("poll_interval", poll_interval),
                operators_answer=operators_answer,
                retry_on=retry_on,
            )
            registered = wrap(tool)
            self._app.functions.add(
                Function(
                    name=called,
                    handler=self._handler_of(tool),
                    retries=retries,
                    retry_on=retry_on,
                    restart=restart,
                    backoff=_seconds("backoff", backoff),
                    timeout=None if timeout is None else _seconds("timeout", timeout),
                    input_deadline=None
                    if input_deadline is None
                    else _seconds("input_deadline", input_deadline),
                    concurrency=concurrency,
                )
            )
            self._tools[called] = tool
            return registered

        return register if function is None else register(function)

    def _handler_of(self, tool: DurableTool) -> Callable[[Task], Awaitable[Success]]:
        """Return the function that workers call: it calls the tool by its name, from the stored call."""

        async def run(task: Task) -> Success:
            if self._adapter is None:
                raise not_running()
            try:
                return await _call(self._adapter, tool, task)
            except MCPError as error:
                data = UNSET if error.error.data is None else error.error.data
                raise Failed(error.error.code, error.error.message, data) from error
            except ClientCannotAnswer as error:
                refusal = to_mcp_error(error).error
                raise Failed(refusal.code, refusal.message, refusal.data) from error

        return run

    # Servers

    def attach(
        self,
        *,
        middleware: Sequence[ServerMiddleware[Any]] = (),
        extensions: Sequence[Extension] = (),
        lifespan: Lifespan | None = None,
    ) -> ServerArguments:
        """Return arguments for `MCPServer`: `MCPServer("name", **tasks.attach())`.

        Pass your own middleware, extensions and lifespan here. Tasks run within your lifespan.
        """
        return ServerArguments(
            extensions=[*extensions, self._admission],
            middleware=[self._middleware, *middleware],
            lifespan=self._within(lifespan or _no_lifespan),
        )

    def install(self, server: Server[Any], *, authenticated: bool = False) -> None:
        """Serve tasks on a low-level `Server`, before it runs. Calls of durable functions no longer reach its
        handler of `tools/call`: checks of your own belong into middleware.

        `authenticated` means that its HTTP transport accepts only callers with a verified token.
        """
        adapter = LowLevelAdapter(server, self._tools, authenticated=authenticated)
        self.join(server, adapter, is_outermost=True)
        server.extensions[self._admission.identifier] = self._admission.settings()
        server.lifespan = self._within(server.lifespan)
        calling = server.get_request_handler("tools/call")
        handler = _unknown_tool if calling is None else calling.handler
        server.add_request_handler(
            "tools/call", CallToolRequestParams, compose_tool_call_handler([self._admission], handler)
        )

    def join(self, server: Server[Any], adapter: ServerAdapter, *, is_outermost: bool = False) -> None:
        """Serve `tasks/*` on the low-level server of a framework, whose tools the adapter calls.

        If the middleware of tasks is the outermost, it sees the answer that is sent.
        """
        self.bind(adapter.server)
        for method in self._admission.methods():
            server.add_request_handler(method.method, method.params_type, _for_versions(method))
        server.middleware.insert(0 if is_outermost else len(server.middleware), self._middleware)
        self._set_adapter(adapter)

    @property
    def extension(self) -> Extension:
        """The extension that admits calls, for adapters of frameworks."""
        return self._admission

    @asynccontextmanager
    async def serving(self, server: object, state: object = None) -> AsyncGenerator[None]:
        """Run tasks within this block, in which the server runs; `state` is that of the user's lifespan."""
        self.bind(server)
        self._states.append(state)
        try:
            if isinstance(server, MCPServer) and len(self._states) == 1:
                self._check_parts(cast("MCPServer[Any]", server))
                self._set_adapter(MCPServerAdapter(cast("MCPServer[Any]", server)))
            if self._adapter is not None:
                self._adapter.state = state
                if len(self._states) == 1:
                    await self._adapter.check_tools(self._tools)
            async with self._host.open():
                yield
        finally:
            del self._states[next(n for n, each in enumerate(self._states) if each is state)]
            if self._adapter is not None:
                self._adapter.state = self._states[-1] if self._states else None

    @contextmanager
    def overridden(
        self,
        url: str | Storage,
        *,
        owner: Owner,
        clock: Callable[[], Micros],
        **runtime: float,
    ) -> Generator[None]:
        """Use another storage and clock, and one owner for all callers, if the server starts in this block.

        For tests, which must not touch the storage of the server. `runtime` are options of `RuntimeConfig`.
        """
        if self._states or self._identity.fixed_owner is not None:
            raise InvalidValue("server", "is already running; run one task after another")
        host, app = self._host, self._app.replaced(url, clock=clock, **runtime)
        self._host, self._identity.fixed_owner = host.replaced(app), owner
        try:
            yield
        finally:
            self._host, self._identity.fixed_owner = host, None

    def start_soon(self, function: Callable[..., Awaitable[None]], /, *args: object) -> None:
        """Run a function in the background, until it returns or the server stops."""
        self._host.start_soon(function, *args)

    def _within(self, lifespan: Lifespan) -> Lifespan:
        @asynccontextmanager
        async def both(server: object) -> AsyncGenerator[Any]:
            async with lifespan(server) as state, self.serving(server, state):
                yield state

        return both

    def bind(self, server: object) -> None:
        """Raise InvalidValue if the tasks belong to another server."""
        if self._server not in (None, server):
            raise InvalidValue("server", "these tasks belong to another server; make a Tasks for each")
        self._server = server

    def _check_parts(self, server: MCPServer[Any]) -> None:
        """Raise InvalidValue if the server was built without a part of `attach()`."""
        if not self._handlers.is_bound:
            raise InvalidValue("server", not_attached("the extension").error.message)
        if tasks_of(server) is not self:
            raise InvalidValue("server", not_attached("the middleware").error.message)

    def _set_adapter(self, adapter: ServerAdapter) -> None:
        self._adapter = adapter
        self._identity.requires_authentication = adapter.requires_authentication

    async def _middleware(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        return await self._handlers.middleware(ctx, call_next)


async def _call(adapter: ServerAdapter, tool: DurableTool, task: Task) -> Success:
    try:
        return await adapter.call(tool, task)
    except Pause as pause:
        task.check_askable(pause.requests)
        raise


def tasks_of(server: MCPServer[Any] | Server[Any]) -> Tasks | None:
    """Return the tasks that are attached to a server."""
    owners = (getattr(each, "__self__", None) for each in server.middleware)
    return next((owner for owner in owners if isinstance(owner, Tasks)), None)


@asynccontextmanager
async def _no_lifespan(_: object) -> AsyncGenerator[dict[str, Any]]:
    yield {}


async def _unknown_tool(_: RequestContext, params: CallToolRequestParams) -> HandlerResult:
    return CallToolResult(content=[TextContent(text=f"Unknown tool: {params.name}")], is_error=True)


def _for_versions(method: MethodBinding) -> Callable[[RequestContext, BaseModel], Awaitable[HandlerResult]]:
    """Return a handler that serves a method only at its versions, as `MCPServer` does for extensions."""

    async def handle(ctx: RequestContext, params: BaseModel) -> HandlerResult:
        if ctx.protocol_version not in (method.protocol_versions or ()):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method.method)
        return await method.handler(ctx, params)

    return handle


def _with_options(config: C, **options: object) -> C:
    """Return settings with options that were set. Raise InvalidValue if one is set in the settings too."""
    given = {name: value for name, value in options.items() if not isinstance(value, UnsetType)}
    for name in given:
        if getattr(config, name) != getattr(type(config)(), name):
            kind = type(config).__name__
            raise InvalidValue(name, f"is set twice: as an option of Tasks and in its {kind}; set it once")
    return replace(config, **given)


def _seconds(name: str, value: Duration) -> float:
    seconds = to_seconds(value)
    if type(seconds) not in (int, float) or not isfinite(seconds):
        raise InvalidValue(name, f"must be a number of seconds or a timedelta, not {value!r}")
    return seconds


def _milliseconds(name: str, value: Duration) -> int:
    return to_milliseconds(_seconds(name, value))


class _RuntimeHost:
    """The lifetime of the runtime: it starts with the first lifespan of the server and stops with the last.

    Clients in one process enter a server's lifespan in any order. So the runtime runs in a task that
    belongs to none of them, and that the last one awaits.
    """

    def __init__(self, app: App, keep_alive: float) -> None:
        self._app = app
        self._keep_alive = keep_alive
        self.streams = OpenStreams(keep_alive)
        self._notifier: StatusNotifier | None = None
        self._users = 0
        self._lock = anyio.Lock()
        self._runtime: Runtime | None = None
        self._group: TaskGroup | None = None
        self._hosting: asyncio.Task[None] | None = None
        self._stop = anyio.Event()

    def replaced(self, app: App) -> _RuntimeHost:
        return _RuntimeHost(app, self._keep_alive)

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            raise not_running()
        return self._runtime

    @property
    def notifier(self) -> StatusNotifier:
        if self._notifier is None:
            raise not_running()
        return self._notifier

    def start_soon(self, function: Callable[..., Awaitable[None]], /, *args: object) -> None:
        if self._group is None:
            raise not_running()
        self._group.start_soon(self._log_errors, function, args)

    async def _log_errors(self, function: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        """Await a function whose failure must not stop the runtime."""
        try:
            await function(*args)
        except Exception:
            log.exception("%s failed in the background", getattr(function, "__qualname__", function))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        async with self._lock:
            if not self._users:
                await self._open()
            self._users += 1
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                async with self._lock:
                    self._users -= 1
                    if not self._users:
                        await self._close()

    async def _open(self) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = anyio.Event()
        self._hosting = asyncio.create_task(self._host(opened))
        try:
            await asyncio.shield(opened)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._close()
            raise

    async def _close(self) -> None:
        hosting, self._hosting = self._hosting, None
        self.streams.close()
        self._stop.set()
        if hosting is not None:
            await hosting

    async def _host(self, opened: asyncio.Future[None]) -> None:
        try:
            async with self._app.open() as self._runtime, anyio.create_task_group() as self._group:
                self.streams = OpenStreams(self._keep_alive)
                self._notifier = StatusNotifier(self._runtime, self.streams, self._group)
                opened.set_result(None)
                await self._stop.wait()
                self._group.cancel_scope.cancel()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            self._runtime = self._group = self._notifier = None
