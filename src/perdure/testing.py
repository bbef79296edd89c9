"""Help for tests of your own durable tools: no network, a client that answers, and time that passes at once.

    def test_the_report_is_signed_three_days_later() -> None:
        client = FakeClient({"name": "Ada"})
        result = SimulatedTime().run(run_task, server, "build_report", {"year": 2026}, client=client)
        assert result.structured_content == {"result": "Report 2026, signed by Ada"}
        assert client.questions[0].message == "Who signs it?"

A tool runs as in production: its arguments are validated, the task is stored, a worker claims and runs it.
Only the storage is another one: an empty memory for each call of `run_task`.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec
from mcp.client import Client
from mcp.client.context import ClientRequestContext
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
from .mcp.server import Tasks, tasks_of
from .storage import Micros
from .storage.time_types import SECOND, system_clock
from .tasks import InputKind, Json, LogEntry, Owner, Progress, Snapshot
from .tasks.canonical_json import JsonLike
from .tasks.errors import InvalidValue

P = ParamSpec("P")
T = TypeVar("T")

OWNER = Owner.local()
"""The owner of all tasks of these tests."""

SIMULATED_INTERVALS = {
    "heartbeat_interval": 6 * 3600,
    "queue_poll_interval": 600,
    "purge_interval": 24 * 3600,
}
"""Intervals of the runtime, in seconds, for simulated time: each of them costs a moment of real time."""

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The time at which simulated time starts."""

MAX_REAL_WAIT = 30.0
"""Seconds of real time after which a simulation that only waits for threads or sockets is given up."""

FakeAnswer: TypeAlias = (
    Mapping[str, JsonLike] | BaseModel | Literal["decline", "cancel"] | "Callable[[Question], FakeAnswer]"
)
"""The content of an accepted form, as a mapping or model; `decline` or `cancel`; a result of the SDK (such as
`ElicitResult`, `CreateMessageResult`, `ListRootsResult`); or a function that returns one of these."""


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
            f"the tool asked {question.message or question.kind.value!r}, but FakeClient has no answer left"
        )


class FakeClient:
    """A client that gives the answers it was created with, in order, and records what it receives."""

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
        """The log of the task, after it has finished."""
        self.unanswered: NoAnswerLeft | None = None
        self._answers = deque(answers)

    def answer(self, kind: InputKind, params: Json) -> BaseModel:
        """Return the next answer, as a result of the SDK. Raise NoAnswerLeft if there is none."""
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

    def connect(self, server: MCPServer[Any], extension: ClientTasks) -> Client:
        """Return a client of the SDK that declares the capabilities, for questions before there is a task."""

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
    server: MCPServer[Any],
    tool: str,
    arguments: Mapping[str, Any] = {},
    *,
    client: FakeClient | None = None,
) -> CallToolResult:
    """Call a durable tool, answer its questions, and return its result.

    Raise MCPError if the call is refused or the task fails, and NoAnswerLeft if the client has no answer.
    """
    tasks = tasks_of(server)
    if tasks is None:
        raise InvalidValue("server", "has no durable tools; create it with **tasks.attach()")
    fake, extension = client or FakeClient(), ClientTasks(reconnect=False)
    time = SimulatedTime.current()
    clock, intervals = (system_clock, {}) if time is None else (time.clock, SIMULATED_INTERVALS)
    with tasks.overridden("memory:", owner=OWNER, clock=clock, **intervals):
        async with fake.connect(server, extension) as connection:
            outcome = await _call(tasks, extension, connection, tool, arguments, fake)
    if fake.unanswered is not None:
        raise fake.unanswered
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _call(
    tasks: Tasks,
    extension: ClientTasks,
    connection: Client,
    tool: str,
    arguments: Mapping[str, Any],
    client: FakeClient,
) -> CallToolResult | Exception:
    """Return the result, or the error: an error raised inside the SDK's client would come out in groups."""
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
    """Instead of waiting for a timeout, moves the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self.now = math.nextafter(self.now + max(timeout, 0), math.inf)  # else a timer may never be due
            return ready
        ready = super().select(MAX_REAL_WAIT)
        if not ready:
            raise RuntimeError("everything waits for something that does not happen")
        return ready


class _SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class SimulatedTime:
    """Time that does not pass while anything can run. When everything waits, it jumps to the next timer.

    So a tool that sleeps for three days runs in a moment. To move the time in a test, sleep. The code must
    wait with anyio or asyncio: time also jumps while a plain function runs in its thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function to its end, in simulated time."""
        with asyncio.Runner(loop_factory=_SimulatedLoop) as runner:
            self._loop = runner.get_loop()
            return runner.run(function(*args, **kwargs))

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
        """Return the time in microseconds since 1970, as a storage expects it."""
        return round(self.now().timestamp() * SECOND)
