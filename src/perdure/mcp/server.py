"""`Tasks` makes the tools of a server durable.

tasks = Tasks("sqlite:///tasks.db")
server = MCPServer("reports", **tasks.attach())

@server.tool()
@tasks.durable
async def build_report(year: int, ctx: Context) -> str: ...
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from types import CoroutineType
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.extension import Extension, compose_tool_call_handler
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams
from msgspec import UNSET
from msgspec.structs import replace

from ..runtime import App, ClientCannotAnswer, Runtime, RuntimeConfig, Task, TaskFailed
from ..runtime.config import check_options, with_options
from ..runtime.function import checked
from ..runtime.shared_context import SharedContext
from ..runtime.startup_error import shown_at_exit
from ..runtime.task_group import task_group
from ..storage import Micros, Storage
from ..storage.time_types import Duration
from ..tasks import Owner, StoreConfig, Success
from ..tasks.application_name import escape_application
from ..tasks.config import check_duration
from ..tasks.edits import resolve_ttl
from ..tasks.encryption import EncryptedPart
from ..tasks.errors import InvalidValue
from . import hand_over
from .adapters import LowLevelAdapter, MCPServerAdapter, ServerAdapter, unknown_tool
from .admission import Admission
from .context import restored
from .errors import not_attached, not_running, to_mcp_error
from .handlers import Handlers
from .identity import DEFAULT_HEADERS, AnonymousPolicy, Identify, Identity
from .streams import Streams
from .task_stream import TRANSPORT_KEEP_ALIVE_SECONDS
from .tool import DurableTool, ToolOptions, make_tool, wrap
from .wire import RequestContext

log = logging.getLogger("perdure.mcp")

P = ParamSpec("P")
R = TypeVar("R")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class ServerArguments(TypedDict):
    """The arguments of `MCPServer` that make its tools durable."""

    extensions: Sequence[Extension]
    middleware: Sequence[ServerMiddleware[Any]]
    lifespan: Lifespan


class TasksOptions(TypedDict, total=False):
    """The options of `Tasks`."""

    application: str | None
    """The name under which the tasks are stored. Only servers with the same name share tasks. Default: the
    name of the server."""
    ttl: Duration | None
    """This option and the next five are also options of `StoreConfig` or `RuntimeConfig`, which have more."""
    max_ttl: Duration | None
    retention: Duration | None
    max_tasks_per_owner: int
    concurrency: int
    encrypt: EncryptedPart
    """With `everything`, arguments, results and all other contents of tasks are encrypted too."""
    encryption_keys: Sequence[str] | None
    """The keys for what is stored encrypted: the first one encrypts, all of them decrypt. Default: those in
    the environment variable PERDURE_ENCRYPTION_KEY, separated by commas. With a key, tools can read the
    access token of their caller, and the headers that `stored_headers` names."""
    stored_headers: Sequence[str]
    """The headers of a request that tools can read. Default: `authorization` and `x-request-id`."""
    anonymous: AnonymousPolicy
    """How a server treats callers without authentication. Default: `id`."""
    identify: Identify | None
    """Your own function to identify callers. It is called once for each request about tasks."""
    keep_alive: Duration
    """A request that waits for a task gets a message whenever its stream was silent for this time, so that
    proxies do not close it. Default: 15 seconds."""
    hand_over_after: Duration | None
    """If a call of a client without tasks has not ended after this time, it is answered with the id of its
    task. The client then gets the result with tools that perdure adds. By default, such a call waits for its
    end."""
    store: StoreConfig
    """Limits, sizes and retention of tasks."""
    runtime: RuntimeConfig
    """How this process runs tasks."""


class Tasks:
    """Durable tasks for one server, in both task protocols at once."""

    def __init__(self, url: str | Storage, **options: Unpack[TasksOptions]) -> None:
        """Keep tasks in the storage of this URL. `TasksOptions` lists the options."""
        check_options("Tasks", options, TasksOptions.__annotations__)
        anonymous, application = options.get("anonymous", "id"), options.get("application")
        stored_headers = options.get("stored_headers", DEFAULT_HEADERS)
        self._identity = Identity(anonymous, options.get("identify"), stored_headers)
        store = with_options(options.get("store", StoreConfig()), options)
        self._store_config = replace(store, allow_anonymous=anonymous != "refuse")
        keep_alive = options.get("keep_alive", TRANSPORT_KEEP_ALIVE_SECONDS)
        self._keep_alive = check_duration("keep_alive", keep_alive)
        self._app = App(
            url,
            application=application or "",  # without one, it is the name of the server when that starts
            encryption_keys=options.get("encryption_keys"),
            store=self._store_config,
            runtime=with_options(options.get("runtime", RuntimeConfig()), options),
        )
        if application is not None:
            escape_application(application)  # raises an error if it is invalid
        self._hosting = SharedContext(self._run)
        hand_over_after = options.get("hand_over_after")
        if hand_over_after is not None:
            hand_over_after = check_duration("hand_over_after", hand_over_after)
        self._handlers = Handlers(self._identity, hand_over_after)
        self.extension = Admission(self._identity, self._handlers)
        """The extension that admits calls, for adapters of frameworks."""
        self.work = True
        """Whether this process runs tasks. If it is False when the server starts, only workers run them."""
        self._server: object = None
        self._states: list[object] = []

    @property
    def runtime(self) -> Runtime:
        """The runtime, while the server runs."""
        return self._handlers.runtime

    @property
    def adapter(self) -> ServerAdapter | None:
        """The adapter of the server. None before the server has started."""
        return self._handlers.adapter

    def close_streams(self) -> None:
        """Answer all requests that wait for a task, because the server is about to stop.

        `perdure serve` calls this at SIGTERM. In a server of your own, call it before the connections are
        closed: streams of `subscriptions/listen` end with their result, waiting requests with an error that
        says to send them again.
        """
        if self._handlers.running is not None:
            self._handlers.running.close()

    # Tools

    @overload
    def durable(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def durable(self, /, **options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def durable(
        self, function: Callable[..., object] | None = None, /, **options: Unpack[ToolOptions]
    ) -> object:
        """Turn the calls of a tool into tasks, which survive a restart of the server.

        Write this decorator below the one that registers the tool. The function runs outside of the request
        that calls it, and runs again if its worker is lost or stops. `ToolOptions` lists the options.
        """
        given = self._checked(options)

        def declare(function: Callable[..., object]) -> Callable[..., object]:
            tool = make_tool(function, given, self._run_tool)
            registered = wrap(tool)
            self._app.functions.add(tool.run)
            self._handlers.tools[tool.name] = tool
            return registered

        return declare if function is None else declare(function)

    def register(self, function: Callable[..., object], options: ToolOptions) -> DurableTool:
        """Register a tool that a framework declares, or register it again with other options.

        For adapters of frameworks, which call the function themselves.
        """
        tool = make_tool(function, self._checked(options), self._run_tool)
        self._app.functions.replace(tool.run)
        self._handlers.tools[tool.name] = tool
        return tool

    def _checked(self, options: ToolOptions) -> dict[str, Any]:
        given = checked("durable", options, ToolOptions.__annotations__)
        resolve_ttl(given.get("ttl_ms", UNSET), self._store_config)
        return given

    async def _run_tool(self, name: str, task: Task) -> Success:
        """Run the stored call of a task with the tool of this name. Workers call this."""
        adapter = self._handlers.adapter
        if adapter is None:
            raise not_running()
        try:
            with restored(task, self._app.clock, adapter.token_type):
                return await adapter.call(self._handlers.tools[name], task)
        except (MCPError, ClientCannotAnswer) as error:
            sent = (error if isinstance(error, MCPError) else to_mcp_error(error)).error
            raise TaskFailed(sent.code, sent.message, UNSET if sent.data is None else sent.data) from error

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
            extensions=[*extensions, self.extension],
            middleware=[self._middleware, *middleware],
            lifespan=self._within(lifespan or (lambda _: nullcontext({}))),
        )

    def install(self, server: Server[Any], *, authenticated: bool = False) -> None:
        """Serve tasks on a low-level `Server`. Call this before the server runs.

        Add the server's handler of `tools/call` first. Calls of durable functions no longer reach this
        handler, so write checks of your own as middleware. `authenticated` means that the HTTP transport of
        the server accepts only callers with a verified token.
        """
        adapter = LowLevelAdapter(server, self._handlers.tools, authenticated=authenticated)
        self.join(server, adapter, is_outermost=True)
        server.extensions[self.extension.identifier] = self.extension.settings()
        server.lifespan = self._within(server.lifespan)
        calling = server.get_request_handler("tools/call")
        handler = _unknown_tool if calling is None else calling.handler
        adapter.handler = compose_tool_call_handler([self.extension], handler)
        server.add_request_handler("tools/call", CallToolRequestParams, adapter.handler)

    def join(self, server: Server[Any], adapter: ServerAdapter, *, is_outermost: bool = False) -> None:
        """Serve `tasks/*` on the low-level server of a framework, whose tools the adapter calls.

        With `is_outermost`, the middleware of tasks comes before all others, so it sees the final answer.
        """
        self.bind(adapter.server)
        for method in self.extension.methods():
            server.add_request_handler(method.method, method.params_type, method.handler)
        server.middleware.insert(0 if is_outermost else len(server.middleware), self._middleware)
        self._set_adapter(adapter)

    def serving(self, server: object, state: object = None) -> AbstractAsyncContextManager[None]:
        """Run tasks within this block, in which the server runs. The user's lifespan has yielded `state`."""
        return shown_at_exit(self._serve(server, state))

    @asynccontextmanager
    async def _serve(self, server: object, state: object) -> AsyncGenerator[None]:
        self.bind(server)
        self._states.append(state)
        try:
            if len(self._states) == 1:
                await self._check(server)
            async with self._hosting.use():
                yield
        finally:
            del self._states[next(n for n, each in enumerate(self._states) if each is state)]

    async def _check(self, server: object) -> None:
        """Raise InvalidValue if the server lacks something that tasks need. Called when the server starts."""
        if isinstance(server, MCPServer):
            self._check_parts(cast("MCPServer[Any]", server))
            self._set_adapter(MCPServerAdapter(cast("MCPServer[Any]", server)))
        adapter = self._handlers.adapter
        if adapter is not None:
            await adapter.check_tools(self._handlers.tools)
            if self._handlers.hand_over_after is not None:
                hand_over.check_names(await adapter.tools())
            if adapter.requires_authentication and not self._app.has_keys:
                log.info(
                    "without an encryption key, tools cannot read the access token or the headers of their "
                    "caller; if they need these, set PERDURE_ENCRYPTION_KEY to a key from `perdure key`"
                )
        self._app.name_after(None if adapter is None else adapter.name)

    @asynccontextmanager
    async def _run(self) -> AsyncGenerator[None]:
        async with self._app.open(work=self.work) as runtime, task_group() as group:
            streams = self._handlers.running = Streams(
                runtime, group, self._keep_alive, self._identity.owns_session
            )
            streams.start_soon(runtime.attendance.keep)
            try:
                yield
            finally:
                streams.close()
                self._handlers.running = None

    @contextmanager
    def overridden(
        self, url: str | Storage, *, owner: Owner, clock: Callable[[], Micros], **runtime: float
    ) -> Generator[None]:
        """Use another storage and clock, and one owner for all callers, if the server starts in this block.

        For tests, which must not touch the storage of the server. The keyword arguments in `runtime` replace
        options of `RuntimeConfig`.
        """
        if self._states or self._identity.fixed_owner is not None:
            raise InvalidValue(
                "server", "is already running; stop it, or wait until the previous run_task() has returned"
            )
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
            raise InvalidValue(
                "server", "this Tasks object belongs to another server; create one Tasks object per server"
            )
        self._server = server

    def _check_parts(self, server: MCPServer[Any]) -> None:
        """Raise InvalidValue if the server was built without a part of `attach()`."""
        if not self._handlers.is_bound:
            raise InvalidValue("server", not_attached("the extension"))
        if tasks_of(server) is not self:
            raise InvalidValue("server", not_attached("the middleware"))

    def _set_adapter(self, adapter: ServerAdapter) -> None:
        self._handlers.adapter = adapter
        adapter.states = self._states
        adapter.encrypts_contents = self._store_config.encrypt == "everything"
        self._identity.requires_authentication = adapter.requires_authentication

    def _middleware(self, ctx: RequestContext, call_next: CallNext) -> CoroutineType[Any, Any, HandlerResult]:
        return self._handlers.middleware(ctx, call_next)


def tasks_of(server: MCPServer[Any] | Server[Any]) -> Tasks | None:
    """Return the `Tasks` object that is attached to a server, or None if there is none."""
    owners = (getattr(each, "__self__", None) for each in server.middleware)
    return next((owner for owner in owners if isinstance(owner, Tasks)), None)


async def _unknown_tool(_: RequestContext, params: CallToolRequestParams) -> HandlerResult:
    return unknown_tool(params.name)
