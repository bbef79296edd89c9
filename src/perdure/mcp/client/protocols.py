"""How each protocol version calls tools as tasks and reads tasks, through a session of the SDK."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import mcp_types
import msgspec
from mcp.client import ClientSession
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, InputRequest, InputRequiredResult, RequestParams
from pydantic import ConfigDict, RootModel, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from ...tasks import Status
from ..wire import IDEMPOTENCY_KEY, PROGRESS, PROTOCOL_2025, PROTOCOL_2026, VARIABLES, JsonObject
from .errors import (
    AnswersNotSupported,
    ConnectionLost,
    InvalidTaskResponse,
    TasksNotSupported,
    TaskWasCancelled,
)

MAX_INPUT_ROUNDS = 16
"""Maximum number of rounds in which a server asks before it creates a task."""
REQUEST_TIMEOUT_SECONDS = 30.0
"""How long a server may take to answer a request about a task. After that, another connection is opened."""

MIN_POLL_DELAY, DEFAULT_POLL_DELAY, MAX_POLL_DELAY = 0.05, 1.0, 30.0
"""Bounds of the seconds between two polls, and what is used if the server advises nothing."""

_LOST_SESSION = ("Session terminated", "Session not found")
_CLOSED = ("Connection closed", *_LOST_SESSION)
_UNANSWERED = ("SSE stream", "Server returned an error response")
"""How the messages start by which the SDK reports an unanswered request. It has no codes for them."""

_questions: TypeAdapter[dict[str, InputRequest]] = TypeAdapter(dict[str, InputRequest])


class TaskState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task as the server last reported it."""

    task_id: str
    status: Status
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: int | None = None
    poll_interval_ms: int | None = None
    input_requests: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    meta: dict[str, Any] = msgspec.field(default={}, name="_meta")

    @classmethod
    def read(cls, response: Mapping[str, Any]) -> TaskState:
        """Read a server's response; raise InvalidTaskResponse if it is not a task."""
        renamed: JsonObject = {}
        if "ttl" in response:  # as 2025-11-25 spells it
            renamed = {"ttlMs": response["ttl"], "pollIntervalMs": response.get("pollInterval")}
        try:
            return msgspec.convert({**renamed, **response}, cls)
        except msgspec.ValidationError as error:
            task_id = response.get("taskId")
            raise InvalidTaskResponse(str(error), task_id if isinstance(task_id, str) else None) from error

    @property
    def questions(self) -> dict[str, InputRequest]:
        """The open questions of the task, by key."""
        try:
            return _questions.validate_python(self.input_requests)
        except ValidationError as error:
            raise InvalidTaskResponse("it asks an unknown kind of question", self.task_id) from error

    @property
    def variables(self) -> Mapping[str, Any]:
        """The state that a server of perdure shares with its client."""
        return self.meta.get(VARIABLES, {})

    @property
    def progress(self) -> Mapping[str, Any] | None:
        """The progress of the task (`done` and `total`), if a server of perdure reports it."""
        return self.meta.get(PROGRESS)

    @property
    def poll_delay(self) -> float:
        """Seconds until the next poll, as advised by the server, within bounds."""
        if self.poll_interval_ms is None:
            return DEFAULT_POLL_DELAY
        return max(MIN_POLL_DELAY, min(self.poll_interval_ms / 1000, MAX_POLL_DELAY))

    def unanswered(self, answered: Collection[str]) -> tuple[str, ...]:
        """Return the keys of questions that a client must answer now, given those that it has answered."""
        if self.status is not Status.INPUT_REQUIRED:
            return ()
        return tuple(key for key in self.input_requests if key not in answered)

    @property
    def outcome(self) -> CallToolResult:
        """The result of an ended task. If it ended in another way, that is raised."""
        if self.status is Status.CANCELLED:
            raise TaskWasCancelled(self.task_id)
        if self.error is not None:
            code, message = self.error.get("code", mcp_types.INTERNAL_ERROR), self.error.get("message", "")
            raise MCPError(code, message, self.error.get("data"))
        if self.result is None:
            raise InvalidTaskResponse(f"it is {self.status} and has no result", self.task_id)
        return CallToolResult.model_validate(self.result, by_name=False)


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool, as a client's author wrote it."""

    tool: str
    arguments: Mapping[str, Any]
    ttl_ms: int | None = None
    idempotency_key: str | None = None
    progress_callback: ProgressFnT | None = None

    @property
    def meta(self) -> Any:  # noqa: ANN401 - the SDK's type of it lists only its own keys
        return None if self.idempotency_key is None else {IDEMPOTENCY_KEY: self.idempotency_key}


class RawResult(RootModel[dict[str, Any]]):
    """A server's result, unchanged."""


class CallbackRefused(MCPError):
    """A callback of the client refused to answer a question."""


class TaskRequestParams(RequestParams):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(mcp_types.Request[TaskRequestParams, str]):
    """A request about one task. The SDK puts the task's id into the header by which requests are routed."""

    method: str
    params: TaskRequestParams
    name_param = "taskId"


class CreateTaskResult(mcp_types.Result):
    """The response to a call that became a task, at 2026-07-28. What else it has, `tasks/get` has too."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    result_type: Literal["task"]
    task_id: str


class TaskProtocol(ABC):
    """The requests of a client about tasks, on one session.

    They raise ConnectionLost if the server did not answer, and otherwise the server's `MCPError`.
    """

    asks_on_result_stream = False
    """Whether questions arrive while the result is awaited, instead of with the task's state."""

    def __init__(self, session: ClientSession, callbacks: ClientSession) -> None:
        """Send requests through `session`. The callbacks of `callbacks` answer questions."""
        self.session = session
        self._callbacks = callbacks
        self.has_called = False
        """Whether a `tools/call` was sent, so that the tool may run."""

    @abstractmethod
    async def start(self, call: ToolCall) -> str | CallToolResult:
        """Call a tool. Return the id of its task, or the result if the server answered at once."""

    @abstractmethod
    async def result(self, state: TaskState) -> CallToolResult | None:
        """Return the result of a task that has ended or asks; None if the server must be polled again."""

    @abstractmethod
    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:
        """Answer questions of the task."""

    async def get(self, task_id: str) -> TaskState:
        return TaskState.read(await self._send("tasks/get", TaskRequestParams(task_id=task_id)))

    async def cancel(self, task_id: str) -> None:
        await self._send("tasks/cancel", TaskRequestParams(task_id=task_id))

    async def validate_result(self, tool: str, result: CallToolResult) -> None:
        """Raise RuntimeError if the result does not match the output schema of the tool."""
        with raises_connection_lost():
            await self.session.validate_tool_result(tool, result)

    async def answer_by_callbacks(self, questions: Mapping[str, InputRequest]) -> JsonObject:
        """Return the answers of the client's callbacks; raise CallbackRefused if one refuses."""
        answers: JsonObject = {}
        for key, asked in questions.items():
            meta = asked.params.meta if asked.params else None
            context = ClientRequestContext(session=self._callbacks, request_id=key, meta=meta)
            answer = await self._callbacks.dispatch_input_request(context, asked)
            if isinstance(answer, mcp_types.ErrorData):
                raise CallbackRefused.from_error_data(answer)
            answers[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        return answers

    async def _send(self, method: str, params: TaskRequestParams) -> JsonObject:
        request = TaskRequest(method=method, params=params)
        with raises_connection_lost():
            return (await self.session.send_request(request, RawResult, REQUEST_TIMEOUT_SECONDS)).root

    async def _call_tool(self, call: ToolCall) -> CallToolResult:
        """Call a tool that does not become a task."""
        self.has_called = True
        with raises_connection_lost():
            return await self.session.call_tool(
                call.tool, dict(call.arguments), progress_callback=call.progress_callback, meta=call.meta
            )


class Protocol2026(TaskProtocol):
    """2026-07-28: the server decides which calls become tasks, and a task's state has everything."""

    async def start(self, call: ToolCall) -> str | CallToolResult:
        answers: JsonObject | None = None
        state: str | None = None
        self.has_called = True
        for _ in range(MAX_INPUT_ROUNDS):
            with raises_connection_lost():
                result = await self.session.call_tool(
                    call.tool,
                    dict(call.arguments),
                    progress_callback=call.progress_callback,
                    input_responses=answers,
                    request_state=state,
                    meta=call.meta,
                    allow_input_required=True,
                    allow_claimed=True,
                )
            if isinstance(result, CreateTaskResult):
                return result.task_id
            if not isinstance(result, InputRequiredResult):
                return cast("CallToolResult", result)
            answers = await self.answer_by_callbacks(result.input_requests or {})
            state = result.request_state
        raise MCPError(
            mcp_types.INTERNAL_ERROR, f"the server still asks questions after {MAX_INPUT_ROUNDS} rounds"
        )

    async def result(self, state: TaskState) -> CallToolResult | None:
        return state.outcome

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:
        params = TaskRequestParams(task_id=task_id, input_responses=dict(answers))
        await self._send("tasks/update", params)


class Protocol2025(TaskProtocol):
    """2025-11-25: the client asks for a task, and `tasks/result` waits and asks questions."""

    asks_on_result_stream = True

    async def start(self, call: ToolCall) -> str | CallToolResult:
        if not await self._supports_tasks(call.tool):
            return await self._call_tool(call)
        params = mcp_types.CallToolRequestParams(
            name=call.tool,
            arguments=dict(call.arguments),
            task=mcp_types.TaskMetadata(ttl=call.ttl_ms),
            _meta=call.meta,
        )
        self.has_called = True
        try:
            with raises_connection_lost():
                return await self.session.send_request(
                    mcp_types.CallToolRequest(params=params),
                    CallToolResult,
                    progress_callback=call.progress_callback,
                )
        except ValidationError as error:
            return TaskState.read(_task_in_validation_error(error)).task_id

    async def _supports_tasks(self, tool: str) -> bool:
        """Return whether the server lists the tool as one that may become a task; others must not."""
        cursor: str | None = None
        capabilities = self.session.server_capabilities
        while capabilities is not None and capabilities.tasks is not None:
            with raises_connection_lost(was_sent=False):
                page = await self.session.list_tools(params=mcp_types.PaginatedRequestParams(cursor=cursor))
            for each in page.tools:
                if each.name == tool:
                    support = each.execution.task_support if each.execution else None
                    return support in ("optional", "required")
            cursor = page.next_cursor
            if cursor is None:
                break
        return False

    async def result(self, state: TaskState) -> CallToolResult | None:
        """Wait for the result. The error of a busy server looks like the task's own: its state decides."""
        request = TaskRequest(method="tasks/result", params=TaskRequestParams(task_id=state.task_id))
        try:
            answer = await self.session.send_request(request, RawResult)
        except MCPError as error:
            now = await self._get_unless_busy(state.task_id)
            if now is not None and now.status is Status.CANCELLED:
                raise TaskWasCancelled(state.task_id) from error
            is_own = now is not None and now.status is Status.FAILED and now.status_message == error.message
            if is_own or not (is_retryable(error) or is_connection_lost(error)):
                raise
            return None
        return CallToolResult.model_validate(answer.root, by_name=False)

    async def _get_unless_busy(self, task_id: str) -> TaskState | None:
        try:
            return await self.get(task_id)
        except MCPError as error:
            if is_retryable(error):
                return None
            raise

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:  # noqa: ARG002
        raise AnswersNotSupported(task_id)


class NoTaskProtocol(TaskProtocol):
    """Versions without tasks: each call is answered when it ends."""

    async def start(self, call: ToolCall) -> str | CallToolResult:
        return await self._call_tool(call)

    async def result(self, state: TaskState) -> CallToolResult | None:
        raise TasksNotSupported(self.session.protocol_version, state.task_id)

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:  # noqa: ARG002
        raise TasksNotSupported(self.session.protocol_version, task_id)

    async def _send(self, method: str, params: TaskRequestParams) -> JsonObject:  # noqa: ARG002
        raise TasksNotSupported(self.session.protocol_version, params.task_id)


def protocol_of(session: ClientSession, callbacks: ClientSession) -> TaskProtocol:
    """Return the protocol of the version that the session has negotiated."""
    kinds = {PROTOCOL_2026: Protocol2026, PROTOCOL_2025: Protocol2025}
    return kinds.get(session.protocol_version or "", NoTaskProtocol)(session, callbacks)


def is_retryable(error: MCPError) -> bool:
    """Return whether a server of perdure reports that the same request may succeed later."""
    data = error.error.data
    return isinstance(data, dict) and cast("JsonObject", data).get("retryable") is True


def is_connection_lost(error: MCPError) -> bool:
    """Return whether the SDK, and not the server, reports that a request was not answered."""
    if error.error.data is not None:
        return False
    if error.code == mcp_types.REQUEST_TIMEOUT and error.message.endswith("timed out"):
        return True
    return error.message.startswith((*_CLOSED, *_UNANSWERED))


@contextmanager
def raises_connection_lost(*, was_sent: bool = True) -> Generator[None]:
    """Raise ConnectionLost for the SDK's errors that mean it. `was_sent` is False for harmless requests."""
    try:
        yield
    except MCPError as error:
        if not is_connection_lost(error):
            raise
        raise ConnectionLost(
            error.message,
            was_sent=was_sent and not error.message.startswith(_LOST_SESSION),
            is_closed=error.message.startswith(_CLOSED),
        ) from error


def _task_in_validation_error(invalid: ValidationError) -> Mapping[str, Any]:
    """Return the task in a response that the SDK refuses: it expects the result of the call."""
    for error in invalid.errors():
        found = error["input"]
        if isinstance(found, dict) and isinstance(task := cast("JsonObject", found).get("task"), dict):
            return cast("JsonObject", task)
    raise invalid
