"""`Tasks`, with which the tools of a server become durable.

tasks = Tasks("sqlite:///tasks.db")
server = MCPServer("reports", **tasks.attach())

@server.tool()
@tasks.durable
async def build_report(year: int, ctx: Context) -> str: ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.extension import Extension, MethodBinding, compose_tool_call_handler
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, CallToolRequestParams
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from pydantic import BaseModel

from ..runtime import App, ClientCannotAnswer, Failed, Runtime, RuntimeConfig, Task
from ..runtime.shared_context import SharedContext
from ..storage import Micros, Storage, is_shared_storage
from ..storage.time_types import Duration, to_seconds
from ..tasks import Owner, StoreConfig, Success
from ..tasks.application import escape_application
from ..tasks.config import check_duration
from ..tasks.edits import resolve_ttl
from ..tasks.encryption import EncryptedPart
from ..tasks.errors import InvalidValue
from .adapters import LowLevelAdapter, MCPServerAdapter, ServerAdapter, unknown_tool
from .admission import Admission
from .credentials import DEFAULT_HEADERS, check_headers, restored
from .errors import not_attached, not_running, to_mcp_error
from .hand_over import HandOver
from .handlers import Handlers, Serving
from .identity import AnonymousPolicy, Identify, Identity
from .task_stream import TRANSPORT_KEEP_ALIVE_SECONDS, Streams, task_group
from .tool import DurableTool, ToolOptions, checked, make_function, make_tool, wrap
from .wire import RequestContext

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", StoreConfig, RuntimeConfig)

UNNAMED_APPLICATION = "server"
"""The application of a server without a name whose storage no other process can open."""

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class ServerArguments(TypedDict):
    """The arguments of `MCPServer` that make its tools durable."""

    extensions: Sequence[Extension]
    middleware: Sequence[ServerMiddleware[Any]]
    lifespan: Lifespan


class TasksOptions(TypedDict, total=False):
    """The options of `Tasks`, for extensions of frameworks."""

    application: str | None
    ttl: Duration | None
    max_ttl: Duration | None
    retention: Duration | None
    max_tasks_per_owner: int
    concurrency: int
    anonymous: AnonymousPolicy
    identify: Identify | None
    encryption_keys: Sequence[str] | None
    encrypt: EncryptedPart
    stored_headers: Sequence[str]
    keep_alive: Duration
    hand_over_after: Duration | None
    store: StoreConfig
    runtime: RuntimeConfig


class Tasks:
    """Durable tasks for one server, in both task protocols at once."""

    def __init__(
        self,
        url: str | Storage,
        *,
        application: str | None = None,
        ttl: Duration | UnsetType | None = UNSET,
        max_ttl: Duration | UnsetType | None = UNSET,
        retention: Duration | UnsetType | None = UNSET,
        max_tasks_per_owner: int | UnsetType = UNSET,
        concurrency: int | UnsetType = UNSET,
        anonymous: AnonymousPolicy = "id",
        identify: Identify | None = None,
        encryption_keys: Sequence[str] | None = None,
        encrypt: EncryptedPart | UnsetType = UNSET,
        stored_headers: Sequence[str] = DEFAULT_HEADERS,
        keep_alive: Duration = TRANSPORT_KEEP_ALIVE_SECONDS,
        hand_over_after: Duration | None = None,
        store: StoreConfig = StoreConfig(),
        runtime: RuntimeConfig = RuntimeConfig(),
    ) -> None:
        """Keep tasks in the storage of this URL.

        Servers that share a storage keep their tasks apart, each under its `application`: by default, the
        name of the server. The next five options are those of `store` and `runtime`, which have more.
        `anonymous` decides what a server without authentication does, and `identify` identifies callers in a
        way of your own; it is called once for each request about tasks.

        `encryption_keys` are the keys for what is stored encrypted: the first one encrypts, all of them
        decrypt. By default they are those in the environment variable PERDURE_ENCRYPTION_KEY, separated by
        commas. With a key, tools can read the access token of their caller, and those headers of its request
        that `stored_headers` names. With `encrypt="everything"`, arguments, results and all other contents of
        tasks are encrypted too. A request that waits for a task gets a message whenever its stream was silent
        for `keep_alive`, so that proxies do not close it. A call of a client without tasks that has not
        ended after `hand_over_after` is answered with the id of its task, and tools let the client come back
        for the result; by default, such a call waits for its end.
        """
        self._identity = Identity(anonymous, identify)
        store = _with_options(
            store,
            ttl=ttl,
            max_ttl=max_ttl,
            retention=retention,
            max_tasks_per_owner=max_tasks_per_owner,
            encrypt=encrypt,
        )
        self._store_config = replace(store, allow_anonymous=anonymous != "refuse")
        self._application = application
        check_duration("keep_alive", keep_alive)
        self._keep_alive = to_seconds(keep_alive)
        self._app = App(
            url,
            application=application or "",  # without one, it is known when the server starts
            encryption_keys=encryption_keys,
            store=self._store_config,
            runtime=_with_options(runtime, concurrency=concurrency),
        )
        if application is not None:
            escape_application(application)  # raises an error if it is invalid
        self._hosting = SharedContext(self._run)
        self._serving = Serving()
        if hand_over_after is not None:
            check_duration("hand_over_after", hand_over_after)
            self._serving.hand_over = HandOver(to_seconds(hand_over_after))
        self._handlers = Handlers(self._serving, self._identity)
        self._admission = Admission(
            self._serving, self._identity, self._handlers, check_headers(stored_headers)
        )
        self.work = True
        """Whether this process runs tasks. Set it to False before the server starts, and only workers do."""
        self._server: object = None
        self._states: list[object] = []
        """What the user's lifespan yielded, for each time that it is entered now."""

    @property
    def runtime(self) -> Runtime:
        """The runtime, while the server runs."""
        return self._serving.runtime

    @property
    def adapter(self) -> ServerAdapter | None:
        """The server, once it has started."""
        return self._serving.adapter

    def close_streams(self) -> None:
        """Answer all requests that wait for a task, because the server is about to stop.

        `perdure serve` calls this at SIGTERM. In a server of your own, call it before the connections are
        closed: streams of `subscriptions/listen` end with their result, waiting requests with an error that
        says to send them again.
        """
        if self._serving.running is not None:
            self._serving.running.close()

    # Tools

    @overload
    def durable(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def durable(self, /, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def durable(
        self, function: Callable[..., object] | None = None, /, **options: Unpack[ToolOptions]
    ) -> object:
        """Make the calls of a tool tasks, which survive the server.

        Write it below the decorator that registers the tool. The function runs outside of the request that
        calls it, and again if its worker is lost or stops. `ToolOptions` lists the options.
        """
        given = self._checked(options)

        def declare(function: Callable[..., object]) -> Callable[..., object]:
            tool = make_tool(function, given)
            registered = wrap(tool)
            self._app.functions.add(make_function(tool, given, self._handler_of(tool)))
            self._serving.tools[tool.name] = tool
            return registered

        return declare if function is None else declare(function)

    def register(self, function: Callable[..., object], options: ToolOptions) -> DurableTool:
        """Register a tool that a framework declares, or register it again with other options.

        For adapters of frameworks, which call the function themselves.
        """
        given = self._checked(options)
        tool = make_tool(function, given)
        self._app.functions.replace(make_function(tool, given, self._handler_of(tool)))
        self._serving.tools[tool.name] = tool
        return tool

    def _checked(self, options: ToolOptions) -> dict[str, Any]:
        given = checked(options)
        resolve_ttl(given.get("ttl_ms", UNSET), self._store_config)
        return given

    def _handler_of(self, tool: DurableTool) -> Callable[[Task], Awaitable[Success]]:
        """Return the function that workers call: it calls the tool by its name, from the stored call."""

        async def run(task: Task) -> Success:
            adapter = self._serving.adapter
            if adapter is None:
                raise not_running()
            try:
                with restored(task, self.runtime.store.clock, adapter.token_type):
                    return await adapter.call(tool, task)
            except (MCPError, ClientCannotAnswer) as error:
                sent = (error if isinstance(error, MCPError) else to_mcp_error(error)).error
                raise Failed(sent.code, sent.message, UNSET if sent.data is None else sent.data) from error

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
        handler of `tools/call`, which must be added before: checks of your own belong into middleware.

        `authenticated` means that its HTTP transport accepts only callers with a verified token.
        """
        adapter = LowLevelAdapter(server, self._serving.tools, authenticated=authenticated)
        self.join(server, adapter, is_outermost=True)
        server.extensions[self._admission.identifier] = self._admission.settings()
        server.lifespan = self._within(server.lifespan)
        calling = server.get_request_handler("tools/call")
        handler = _unknown_tool if calling is None else calling.handler
        adapter.handler = compose_tool_call_handler([self._admission], handler)
        server.add_request_handler("tools/call", CallToolRequestParams, adapter.handler)

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
    def extension(self) -> Admission:
        """The extension that admits calls, for adapters of frameworks."""
        return self._admission

    @asynccontextmanager
    async def serving(self, server: object, state: object = None) -> AsyncGenerator[None]:
        """Run tasks within this block, in which the server runs; `state` is that of the user's lifespan."""
        self.bind(server)
        self._states.append(state)
        is_first = len(self._states) == 1
        try:
            if isinstance(server, MCPServer) and is_first:
                self._check_parts(cast("MCPServer[Any]", server))
                self._set_adapter(MCPServerAdapter(cast("MCPServer[Any]", server)))
            adapter = self._serving.adapter
            if adapter is not None:
                adapter.state = state
                if is_first:
                    await adapter.check_tools(self._serving.tools)
                    if self._serving.hand_over is not None:
                        self._serving.hand_over.check_names(await adapter.tools())
            if is_first:
                self._app.application = self._application_name()
            async with self._hosting.use():
                yield
        finally:
            del self._states[next(n for n, each in enumerate(self._states) if each is state)]
            if self._serving.adapter is not None:
                self._serving.adapter.state = self._states[-1] if self._states else None

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None]:
        async with self._app.open(work=self.work) as runtime, task_group() as group:
            streams = self._serving.running = Streams(
                runtime, group, self._keep_alive, self._identity.owns_session
            )
            streams.start_soon(runtime.attendance.keep)
            try:
                yield
            finally:
                streams.close()
                self._serving.running = None

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
        app = self._app
        self._app, self._identity.fixed_owner = app.replaced(url, clock=clock, **runtime), owner
        try:
            yield
        finally:
            self._app, self._identity.fixed_owner = app, None

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

    def _application_name(self) -> str:
        if self._application is not None:
            return self._application
        adapter = self._serving.adapter
        name = None if adapter is None else adapter.name
        if name is None and isinstance(self._app.url, str) and not is_shared_storage(self._app.url):
            return UNNAMED_APPLICATION
        if name is None:
            raise InvalidValue(
                "application",
                "the server has no name, and its tasks must not be confused with those of other servers; "
                "give it a name, or set Tasks(application=...)",
            )
        try:
            escape_application(name)
        except InvalidValue as error:
            reason = f"the name of the server cannot be used ({error})"
            raise InvalidValue("application", f"{reason}; set Tasks(application=...)") from error
        return name

    def _check_parts(self, server: MCPServer[Any]) -> None:
        """Raise InvalidValue if the server was built without a part of `attach()`."""
        if not self._handlers.is_bound:
            raise InvalidValue("server", not_attached("the extension").error.message)
        if tasks_of(server) is not self:
            raise InvalidValue("server", not_attached("the middleware").error.message)

    def _set_adapter(self, adapter: ServerAdapter) -> None:
        self._serving.adapter = adapter
        adapter.encrypts_contents = self._store_config.encrypt == "everything"
        self._identity.requires_authentication = adapter.requires_authentication

    async def _middleware(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        return await self._handlers.middleware(ctx, call_next)


def tasks_of(server: MCPServer[Any] | Server[Any]) -> Tasks | None:
    """Return the tasks that are attached to a server."""
    owners = (getattr(each, "__self__", None) for each in server.middleware)
    return next((owner for owner in owners if isinstance(owner, Tasks)), None)


@asynccontextmanager
async def _no_lifespan(_: object) -> AsyncGenerator[dict[str, Any]]:
    yield {}


async def _unknown_tool(_: RequestContext, params: CallToolRequestParams) -> HandlerResult:
    return unknown_tool(params.name)


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
