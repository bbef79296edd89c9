"""Test tools for durable tools: a client that answers questions, and simulated time. No network is needed.

    def test_the_report_is_signed_three_days_later() -> None:
        client = FakeClient({"name": "Ada"})
        result = SimulatedTime().run(run_task, server, "build_report", {"year": 2026}, client=client)
        assert result.structured_content == {"result": "Report 2026, signed by Ada"}
        assert client.questions[0].message == "Who signs it?"

A tool runs as in production: its arguments are validated, the task is stored, and a worker claims and runs
the task. The only difference is the storage: each call of `run_task` uses a new, empty storage in memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import selectors
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, cast

import anyio.to_thread
import msgspec
from mcp.client import Client
from mcp.client.context import ClientRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    INTERNAL_ERROR,
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
)
from pydantic import BaseModel

from .mcp.client import ClientTasks
from .mcp.errors import ATTACH_TO_LOW_LEVEL, ATTACH_TO_MCPSERVER
from .mcp.server import Tasks, tasks_of
from .runtime.threads import run_in_thread
from .storage import Micros
from .storage.time_types import SECOND, system_clock
from .tasks import InputKind, Json, LogEntry, Owner, Progress, Snapshot
from .tasks.canonical_json import JsonLike
from .tasks.errors import InvalidValue

if TYPE_CHECKING:
    from fastmcp import FastMCP

P = ParamSpec("P")
T = TypeVar("T")

OWNER = Owner.local()
"""The owner of all tasks that `run_task` creates."""

SIMULATED_INTERVALS = {
    "heartbeat_interval": 6 * 3600,
    "queue_poll_interval": 600,
    "purge_interval": 24 * 3600,
}
"""The intervals of the runtime in simulated time, in seconds. They are long, because the work that is done
after each interval takes real time.
"""

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The time at which simulated time starts."""

MAX_REAL_WAIT = 30.0
"""Maximum number of real seconds to wait for a thread or a socket if no timer is set. Then a test fails."""

FakeAnswer: TypeAlias = (
    Mapping[str, JsonLike] | BaseModel | Literal["decline", "cancel"] | "Callable[[Question], FakeAnswer]"
)
"""An answer to a question: the content of an accepted form, as a mapping or a pydantic model; `decline` or
`cancel`; a result of the MCP SDK (`ElicitResult`, `CreateMessageResult` or `ListRootsResult`); or a function
that returns one of these."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question that a tool asked its client."""

    kind: InputKind
    params: Json

    @property
    def message(self) -> str:
        """The message of an elicitation. Empty for other kinds of questions."""
        message = self.params.get("message") if isinstance(self.params, dict) else None
        return message if isinstance(message, str) else ""


class NoAnswerLeft(AssertionError):
    """Raised by `run_task` when the tool asked more questions than the client has answers."""

    def __init__(self, question: Question) -> None:
        super().__init__(
            f"the tool asked {question.message or question.kind.value!r}, but FakeClient has no answer left; "
            "pass more answers to it"
        )


class FakeClient:
    """A client that answers questions with `answers`, in order, and records what it receives."""

    def __init__(
        self,
        *answers: FakeAnswer,
        capabilities: Sequence[Literal["elicitation", "sampling", "roots"]] = (
            "elicitation",
            "sampling",
            "roots",
        ),
    ) -> None:
        self.capabilities = capabilities
        """The kinds of questions that the client declares it can answer."""
        self.questions: list[Question] = []
        self.progress: list[Progress] = []
        self.log: list[LogEntry] = []
        """The newest log entries of the task."""
        self.unanswered: NoAnswerLeft | None = None
        self._answers = deque(answers)

    def answer(self, kind: InputKind, params: Json) -> BaseModel:
        """Return the next answer, as a result of the MCP SDK. Raise NoAnswerLeft if no answer is left."""
        question = Question(kind=kind, params=params)
        self.questions.append(question)
        if not self._answers:
            self.unanswered = NoAnswerLeft(question)
            raise self.unanswered
        answer = self._answers.popleft()
        while callable(answer):
            answer = answer(question)
        match answer:
            case "decline" | "cancel":
                return ElicitResult(action=answer)
            case ElicitResult() | CreateMessageResult() | ListRootsResult():
                return answer
            case BaseModel():
                return ElicitResult(action="accept", content=answer.model_dump(mode="json"))
            case _:
                return ElicitResult.model_validate({"action": "accept", "content": dict(answer)})

    def record(self, snapshot: Snapshot) -> None:
        """Record the progress and the log of a task."""
        progress = snapshot.task.progress
        if progress is not None and self.progress[-1:] != [progress]:
            self.progress.append(progress)
        self.log = [*snapshot.task.log.entries]

    def connect(self, server: MCPServer[Any] | Server[Any], extension: ClientTasks) -> Client:
        """Return a client of the MCP SDK for `server`, which declares `capabilities`.

        The client answers questions that are asked before the task is created.
        """

        async def elicit(
            context: ClientRequestContext,  # noqa: ARG001 (the SDK passes it)
            params: ElicitRequestParams,
        ) -> ElicitResult | ErrorData:
            return self._callback(InputKind.ELICITATION, params, ElicitResult)

        async def sample(
            context: ClientRequestContext,  # noqa: ARG001
            params: CreateMessageRequestParams,
        ) -> CreateMessageResult | ErrorData:
            return self._callback(InputKind.SAMPLING, params, CreateMessageResult)

        async def list_roots(context: ClientRequestContext) -> ListRootsResult | ErrorData:  # noqa: ARG001
            return self._callback(InputKind.ROOTS, None, ListRootsResult)

        return Client(
            server,
            extensions=[extension],
            elicitation_callback=elicit if "elicitation" in self.capabilities else None,
            sampling_callback=sample if "sampling" in self.capabilities else None,
            list_roots_callback=list_roots if "roots" in self.capabilities else None,
        )

    def _callback(self, kind: InputKind, params: BaseModel | None, result_type: type[T]) -> T | ErrorData:
        try:
            answer = self.answer(kind, None if params is None else _dump(params))
        except NoAnswerLeft as error:
            return ErrorData(code=INTERNAL_ERROR, message=str(error))
        if isinstance(answer, result_type):
            return answer
        message = f"FakeClient answers {kind.value} with {type(answer).__name__}, not {result_type.__name__}"
        return ErrorData(code=INTERNAL_ERROR, message=message)


async def run_task(
    server: MCPServer[Any] | Server[Any] | FastMCP[Any],
    tool: str,
    arguments: Mapping[str, Any] = {},
    *,
    client: FakeClient | None = None,
) -> CallToolResult:
    """Call a durable tool, answer its questions, and return its result.

    `server` is a server of the official SDK or of FastMCP. Raise MCPError if the call is rejected or the task
    fails. Raise NoAnswerLeft if the client has no answer left.
    """
    tasks, target = _find_tasks(server)
    fake, extension = client or FakeClient(), ClientTasks()
    time = SimulatedTime.current()
    clock, intervals = (system_clock, {}) if time is None else (time.clock, SIMULATED_INTERVALS)
    with tasks.overridden("memory:", owner=OWNER, clock=clock, **intervals):
        async with fake.connect(target, extension) as connection:
            outcome = await _call(tasks, extension, connection, tool, arguments, fake)
    if fake.unanswered is not None:
        raise fake.unanswered
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _find_tasks(
    server: MCPServer[Any] | Server[Any] | FastMCP[Any],
) -> tuple[Tasks, MCPServer[Any] | Server[Any]]:
    """Return the tasks of a server, and the server to which a client of the SDK can connect."""
    if "fastmcp" in sys.modules:  # always true for a FastMCP server; FastMCP may not be installed
        from fastmcp import FastMCP  # noqa: PLC0415

        if isinstance(server, FastMCP):
            return _find_tasks_of_fastmcp(server)
    if not isinstance(server, MCPServer | Server):
        raise InvalidValue(
            "server", f"must be a server of the MCP SDK or of FastMCP, not a {type(server).__name__}"
        )
    tasks = tasks_of(server)
    if tasks is not None:
        return tasks, server
    advice = ATTACH_TO_LOW_LEVEL if isinstance(server, Server) else ATTACH_TO_MCPSERVER
    raise InvalidValue("server", f"has no Tasks object attached; {advice}")


def _find_tasks_of_fastmcp(server: FastMCP[Any]) -> tuple[Tasks, Server[Any]]:
    from .fastmcp.adapter import low_level_server, tasks_of  # noqa: PLC0415, FastMCP may not be installed

    tasks = tasks_of(server)
    if tasks is None:
        raise InvalidValue(
            "server",
            "has no TasksExtension; import it from perdure.fastmcp, and call "
            "server.add_extension(TasksExtension(url))",
        )
    return tasks, low_level_server(server)


async def _call(
    tasks: Tasks,
    extension: ClientTasks,
    connection: Client,
    tool: str,
    arguments: Mapping[str, Any],
    client: FakeClient,
) -> CallToolResult | Exception:
    """Return the result of a call, or its error. The SDK would wrap a raised error in exception groups."""
    try:
        task = await extension.start(connection, tool, arguments)
        if task.id:
            await _follow(tasks, task.id, client)
        return await task.wait()
    except Exception as error:
        return error


async def _follow(tasks: Tasks, task_id: str, client: FakeClient) -> None:
    """Answer the questions of a task until it has finished."""
    async with aclosing(tasks.runtime.watch(OWNER, task_id)) as snapshots:
        async for snapshot in snapshots:
            client.record(snapshot)
            answers = {
                key: _dump(client.answer(question.kind, question.params))
                for key, question in snapshot.task.outstanding.items()
            }
            if answers:
                await tasks.runtime.answer(OWNER, task_id, answers)


def _dump(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


class _JumpingSelector(selectors.SelectSelector):
    """A selector that advances the simulated time instead of waiting for a timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.calls_in_threads = 0
        self.waiting_threads = 0
        """Number of threads that are waiting for the event loop."""
        self.anyio_limiter: anyio.CapacityLimiter | None = None
        """The limiter that counts the running calls of `anyio.to_thread.run_sync`. Set when the loop runs."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        calls = self.calls_in_threads
        if self.anyio_limiter is not None:
            calls += self.anyio_limiter.borrowed_tokens
        if timeout is not None and calls <= self.waiting_threads:
            self.now = math.nextafter(self.now + max(timeout, 0), math.inf)  # else a timer may never be due
            return ready
        ready = super().select(MAX_REAL_WAIT)
        if not ready:
            raise RuntimeError(
                f"no thread or socket became ready within {MAX_REAL_WAIT:g} seconds, and no timer is set; "
                "check what the test is waiting for"
            )
        return ready


class _SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time.

    The time stands still while a function runs in a thread, unless the function itself is waiting for the
    loop. `anyio.from_thread.run`, for example, makes the loop create a task, and waits for this task.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self._is_called_by_thread = False
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    async def run_in_thread(self, function: Callable[..., T], *args: object, **options: Any) -> T:  # noqa: ANN401
        self._jumping.calls_in_threads += 1
        try:
            return await anyio.to_thread.run_sync(function, *args, **options)
        finally:
            self._jumping.calls_in_threads -= 1

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # noqa: ANN401
        """Call a function in a thread of asyncio, as `asyncio.to_thread` does."""
        self._jumping.calls_in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._end_call)
        return future

    def _end_call(self, _: asyncio.Future[Any]) -> None:
        self._jumping.calls_in_threads -= 1

    async def shutdown_default_executor(self, *timeout: Any) -> None:  # noqa: ANN401
        """Join the threads of asyncio. Since Python 3.12, this has a timeout, which is in real time."""
        self._jumping.calls_in_threads += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._jumping.calls_in_threads -= 1

    async def run_simulated(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._jumping.anyio_limiter = anyio.to_thread.current_default_thread_limiter()
        return await coroutine

    def call_soon_threadsafe(
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._call_for_thread, callback, args, context=context)

    def _call_for_thread(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self._is_called_by_thread = True
        try:
            callback(*args)
        finally:
            self._is_called_by_thread = False

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        task = super().create_task(coro, **options)
        if self._is_called_by_thread:
            self._jumping.waiting_threads += 1
            task.add_done_callback(self._stop_waiting)
        return task

    def _stop_waiting(self, _: asyncio.Task[Any]) -> None:
        self._jumping.waiting_threads -= 1


class SimulatedTime:
    """Simulated time, which stands still while code runs. When all code waits, it jumps to the next timer.

    Therefore a tool that sleeps for three days finishes in a moment. To advance the time in a test, call
    `anyio.sleep`. Code must wait with anyio or asyncio. While a function runs in one of their threads, time
    stands still. For anyio, only the threads of its default limiter are counted.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function in simulated time, and return its result."""
        with asyncio.Runner(loop_factory=_SimulatedLoop) as runner:
            loop = self._loop = cast("_SimulatedLoop", runner.get_loop())
            context = contextvars.copy_context()
            context.run(run_in_thread.set, loop.run_in_thread)
            return runner.run(loop.run_simulated(function(*args, **kwargs)), context=context)

    @classmethod
    def current(cls) -> SimulatedTime | None:
        """Return the simulated time of the running event loop, or None if its time is real."""
        loop = asyncio.get_running_loop()
        return cls(loop) if isinstance(loop, _SimulatedLoop) else None

    @property
    def elapsed(self) -> timedelta:
        """The time that has passed since `run` was called."""
        return timedelta(seconds=0 if self._loop is None else self._loop.time())

    def now(self) -> datetime:
        return EPOCH + self.elapsed

    def clock(self) -> Micros:
        """Return the simulated time in microseconds since 1970-01-01, for use as the clock of a storage."""
        return round(self.now().timestamp() * SECOND)
