"""`Tasks`: what a server's author writes.

tasks = Tasks("sqlite:///tasks.db")
server = MCPServer("reports", **tasks.attach())

@server.tool()
@tasks.durable
async def build_report(year: int, task: Task) -> str: ...
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NoReturn, ParamSpec, TypedDict, TypeVar, cast, overload

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.extension import Extension, MethodBinding
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
)
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from pydantic import BaseModel

from ..runtime import (
    App,
    ClientCannotAnswer,
    Executor,
    Failed,
    Function,
    Pause,
    Runtime,
    RuntimeConfig,
    Task,
)
from ..runtime.endings import said_by
from ..storage import Storage
from ..storage.errors import PerdureError
from ..tasks import StoreConfig, Success, TaskStore
from ..tasks.edits import resolve_ttl
from ..tasks.errors import InvalidValue
from ..tasks.task_record import headline
from .background import Background
from .callers import Anonymous, Callers, Identify
from .capabilities import required
from .durable import Durable, Mode, Running, at, current_admission, entry, forgiving
from .hosts import Host, LowLevelHost, MCPServerHost, error_in
from .methods import Methods
from .middleware import Middleware
from .protocol import EXTENSION, MODERN, Request
from .service import Service
from .streams import TRANSPORT_KEEP_ALIVE_SECONDS

log = logging.getLogger("perdure.mcp")

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

Lifespan = Callable[[Any], AbstractAsyncContextManager[S]]


class Attachment(TypedDict):
    """The three arguments of `MCPServer` that make its tools durable."""

    extensions: Sequence[Extension]
    middleware: Sequence[ServerMiddleware[Any]]
    lifespan: Lifespan[Any]


class Tasks(Extension):
    """Durable tasks for one server, in both task protocols at once."""

    identifier = EXTENSION

    def __init__(
        self,
        url: str | Storage,
        *,
        store: StoreConfig = StoreConfig(),
        runtime: RuntimeConfig = RuntimeConfig(),
        executor: Callable[[TaskStore, RuntimeConfig], Executor] | None = None,
        anonymous: Anonymous = "id",
        identify: Identify | None = None,
        keep_alive: float = TRANSPORT_KEEP_ALIVE_SECONDS,
    ) -> None:
        """Where tasks are kept, and for whom.

        `anonymous` says what a server without authentication does, `identify` tells callers apart in a way
        of your own. A request that waits for a task gets a message whenever its stream was silent for
        `keep_alive` seconds, so that proxies do not close it.
        """
        if anonymous not in ("id", "session", "refuse"):
            raise InvalidValue("anonymous", f"must be 'id', 'session' or 'refuse', not {anonymous!r}")
        self._store_config = replace(store, allow_anonymous=anonymous != "refuse")
        self._app = App(url, store=self._store_config, runtime=runtime, executor=executor)
        self._background = Background(self._app, keep_alive)
        self._service = Service(self._background, Callers(anonymous, identify))
        self._methods = Methods(self._service)
        self._server: object = None
        self._states: list[object] = []
        """What the user's lifespan yielded, for each time that it is entered now."""
        self.middleware: ServerMiddleware[Any] = Middleware(self._service)

    @property
    def runtime(self) -> Runtime:
        """The runtime, while the server runs."""
        return self._background.runtime

    def close_streams(self) -> None:
        """Answer all requests that wait for a task, because the server is about to stop.

        `perdure serve` calls this at SIGTERM. In a server of your own, call it before the connections are
        closed: streams of `subscriptions/listen` end with their result, waiting requests with an error that
        says to send them again.
        """
        self._background.streams.close()

    # Marking tools

    @overload
    def durable(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def durable(
        self,
        /,
        *,
        mode: Mode = "optional",
        retries: int = 0,
        restart: bool = True,
        name: str | None = None,
        ttl: int | UnsetType | None = UNSET,
        poll_interval: int = 5_000,
        backoff: float = 1.0,
        timeout: float | None = None,
        concurrency: int | None = None,
        operators_answer: bool = False,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def durable(
        self,
        function: Callable[..., object] | None = None,
        /,
        *,
        mode: Mode = "optional",
        retries: int = 0,
        restart: bool = True,
        name: str | None = None,
        ttl: int | UnsetType | None = UNSET,
        poll_interval: int = 5_000,
        backoff: float = 1.0,
        timeout: float | None = None,
        concurrency: int | None = None,
        operators_answer: bool = False,
    ) -> Callable[..., object]:
        """Make the calls of a tool tasks, which survive the server.

        Write `@tasks.durable`, or `@tasks.durable(...)` with options, directly above the function and below
        the decorator that registers the tool. The server does not start if the function is not its tool.

        A tool runs at least once: after its worker was lost or stopped it runs again, from the start, so what
        it does outside must bear that. `restart=False` is for a tool that must not run twice; its task fails
        instead. `retries` is how often it runs again after it raised `Again` or took too long.

        A client is only asked what it declared; with `operators_answer=True` the tool may ask anything,
        because operators answer on the dashboard. A `mode` of "required" serves only clients that understand
        tasks. `ttl` and `poll_interval` are in milliseconds, `backoff` and `timeout` in seconds; see
        `Function`.
        """
        if type(retries) is not int or retries < 0:
            raise InvalidValue("retries", f"must be an integer of at least 0, not {retries!r}")
        resolve_ttl(ttl, self._store_config)

        def mark(function: Callable[..., object]) -> Callable[..., object]:
            called = name or getattr(function, "__name__", "")
            durable = Durable(
                name=called,
                function=function,
                mode=mode,
                ttl=ttl,
                poll_interval=poll_interval,
                operators_answer=operators_answer,
            )
            registered = entry(function, durable)
            self._app.functions.add(
                Function(
                    name=called,
                    handler=self._run,
                    retries=retries,
                    restart=restart,
                    backoff=backoff,
                    timeout=timeout,
                    concurrency=concurrency,
                )
            )
            self._service.known[called] = durable
            return registered

        return mark if function is None else mark(function)

    async def _run(self, task: Task) -> Success:
        """Call the tool of a task by name, from the stored call: the first time as after a crash."""
        running = Running(task)
        params = cast("dict[str, Any]", task.params)
        call = CallToolRequestParams.model_validate({**params, "_meta": task.meta}, by_name=False)
        try:
            with at(running):
                result = await self._service.host.result_of(call)
        except MCPError as error:
            log.info("task %s: tool %r failed: %r", task.id, call.name, headline(error.error.message))
            data = UNSET if error.error.data is None else error.error.data
            raise Failed(error.error.code, error.error.message, data) from error
        if running.raised is not None:
            _raise_for_runtime(running.raised, task)
        cause = None if running.cause is None else said_by(running.cause)
        return Success.of(result, error=error_in(result), cause=cause)

    # Joining a server

    def attach(self) -> Attachment:
        """The arguments for `MCPServer`: `MCPServer("name", **tasks.attach())`."""
        return Attachment(extensions=[self], middleware=[self.middleware], lifespan=self.lifespan)

    def install(self, server: Server[Any], *, authenticated: bool = False) -> None:
        """Join a low-level `Server`, before it runs. Its handler of `tools/call` calls the durable functions.

        `authenticated` says that its HTTP transport lets in only callers with a verified token.
        """
        self.join(server, LowLevelHost(server, self._service.known, authenticated=authenticated))
        server.extensions[self.identifier] = self.settings()
        server.lifespan = self.around(server.lifespan)
        calling = server.get_request_handler("tools/call")
        if calling is not None:
            server.add_request_handler("tools/call", calling.params_type, forgiving(calling.handler))

    def join(self, server: Server[Any], host: Host) -> None:
        """Serve task requests on a low-level server, of whatever framework, whose tools the host can call."""
        self.belong_to(host.server)
        for method in self.methods():
            server.add_request_handler(method.method, method.params_type, _gated(method))
        server.middleware.append(self.middleware)
        self._service.host = host

    @asynccontextmanager
    async def lifespan(self, server: object) -> AsyncGenerator[dict[str, Any]]:
        """Run tasks as long as the server runs."""
        async with self._joined(server, state := dict[str, Any]()):
            yield state

    def around(self, mine: Lifespan[S]) -> Lifespan[S]:
        """A lifespan of your own, with tasks running within it."""

        @asynccontextmanager
        async def both(server: object) -> AsyncGenerator[S]:
            async with mine(server) as state, self._joined(server, state):
                yield state

        return both

    @asynccontextmanager
    async def _joined(self, server: object, state: object) -> AsyncGenerator[None]:
        self.belong_to(server)
        if isinstance(server, MCPServer) and self._states == []:
            self._service.host = MCPServerHost(cast("MCPServer[Any]", server))
        self._states.append(state)
        self._service.host.state = state
        try:
            if len(self._states) == 1:
                await self._service.host.check_tools(self._service.known)
            async with self._background.open():
                yield
        finally:
            del self._states[next(n for n, each in enumerate(self._states) if each is state)]
            self._service.host.state = self._states[-1] if self._states else None

    def belong_to(self, server: object) -> None:
        """Raise where another server has these tasks already."""
        if self._server not in (None, server):
            raise InvalidValue("server", "these tasks belong to another server; make a Tasks for each")
        self._server = server

    # What the SDK asks an extension

    def methods(self) -> Sequence[MethodBinding]:
        self._service.serves_methods = True
        return self._methods.bindings()

    async def intercept_tool_call(
        self,
        params: CallToolRequestParams,
        ctx: Request,
        call_next: CallNext,
    ) -> HandlerResult:
        """Note the call as it comes to the tool, and what resolvers ask where that is no answer."""
        admission = current_admission()
        if admission is not None:
            admission.called = params
        result = await call_next(ctx)
        if admission is None or not isinstance(result, InputRequiredResult):
            return result
        if ctx.protocol_version != MODERN or ctx.session.protocol_version == MODERN:
            return result
        admission.asked = result
        return CallToolResult(content=[])


def _raise_for_runtime(error: PerdureError, task: Task) -> NoReturn:
    """Raise what a tool raised; a question that its client cannot be asked, as the error of the protocol."""
    try:
        if isinstance(error, Pause):
            task.check_askable(error.requests)
        raise error
    except ClientCannotAnswer as refused:
        data = required(refused.capability)
        raise Failed(MISSING_REQUIRED_CLIENT_CAPABILITY, str(refused), data) from refused


def _gated(method: MethodBinding) -> Callable[[Request, BaseModel], Awaitable[HandlerResult]]:
    """The method at the versions that have it, as the SDK's own servers do for extensions."""

    async def handle(request: Request, params: BaseModel) -> HandlerResult:
        if request.protocol_version not in (method.protocol_versions or ()):
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method.method)
        return await method.handler(request, params)

    return handle
