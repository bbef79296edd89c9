"""How each protocol version calls tools as tasks and reads tasks, through a session of the SDK."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

import mcp_types
import msgspec
from mcp.client import ClientSession
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, InputRequest, InputRequiredResult
from pydantic import TypeAdapter, ValidationError

from ...storage.exception_text import type_and_text_of
from ...tasks import Status
from ..errors import AnswersNotSupported, InvalidTaskResponse, TasksNotSupported, TaskWasCancelled
from ..wire import PROGRESS, PROTOCOL_2025, PROTOCOL_2026, VARIABLES, JsonObject, RawResult

MAX_INPUT_ROUNDS = 16
"""Maximum number of rounds in which a server asks before it creates a task."""
REQUEST_TIMEOUT_SECONDS = 30.0
"""How long a server may take to answer a request about a task. After that, another connection is opened."""

MIN_POLL_DELAY, DEFAULT_POLL_DELAY, MAX_POLL_DELAY = 0.05, 1.0, 30.0
"""Minimum, default and maximum number of seconds between two polls. The server can advise another number."""

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
            reason = "a question is invalid or of an unknown kind"
            raise InvalidTaskResponse(reason, self.task_id) from error

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
        """The result of an ended task. Raise an error if the task failed or was cancelled."""
        if self.status is Status.CANCELLED:
            raise TaskWasCancelled(self.task_id)
        if self.error is not None:
            code, message = self.error.get("code", mcp_types.INTERNAL_ERROR), self.error.get("message", "")
            raise MCPError(code, message, self.error.get("data"))
        if self.result is None:
            raise InvalidTaskResponse(f"the status is {self.status}, but there is no result", self.task_id)
        return CallToolResult.model_validate(self.result, by_name=False)


class CallbackRefused(MCPError):
    """Raised when a callback of the client refuses to answer a question, or raises an exception."""


class TaskRequest(mcp_types.Request[dict[str, Any], str]):
    """A request about one task. The SDK puts the task's id into the header by which requests are routed."""

    name_param = "taskId"


class CreateTaskResult(mcp_types.Result):
    """The response to a call that became a task, at 2026-07-28. `tasks/get` also returns its other fields."""

    result_type: Literal["task"]
    task_id: str


class TaskProtocol:
    """The requests of a client about calls and tasks, on one session.

    This class has the requests of 2026-07-28, where the server decides which calls become tasks, and the
    state of a task contains its questions and its result. It is also used for versions without tasks, whose
    servers answer each call when it ends.
    """

    def __init__(self, session: ClientSession, callbacks: ClientSession) -> None:
        """Requests are sent through `session`. The callbacks of the session `callbacks` answer questions."""
        self.session = session
        self.callbacks = callbacks
        self.has_called = False
        """Whether a `tools/call` was sent, so that the tool may run."""

    async def start(
        self, call: CallToolRequestParams, progress_callback: ProgressFnT | None
    ) -> str | CallToolResult:
        """Call a tool. Return the id of its task, or the result if the server answered at once."""
        answers: JsonObject | None = None
        state: str | None = None
        self.has_called = True
        for _ in range(MAX_INPUT_ROUNDS):
            result = await self.session.call_tool(
                call.name,
                call.arguments,
                progress_callback=progress_callback,
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
            answers = await answer_by_callbacks(self.callbacks, result.input_requests or {})
            state = result.request_state
        raise MCPError(
            mcp_types.INTERNAL_ERROR,
            "gave up on the call, because the server was still asking questions after "
            f"{MAX_INPUT_ROUNDS} rounds",
        )

    async def get(self, task_id: str) -> TaskState:
        return TaskState.read(await self._request("tasks/get", task_id))

    async def read_result(self, state: TaskState) -> TaskState:
        """Return the state of an ended task together with its result."""
        return state

    async def read_stream(self, task_id: str) -> None:
        """Read the stream of notifications about changes, until the stream ends."""
        params = {"notifications": {"taskIds": [task_id]}}
        request = mcp_types.Request[dict[str, Any], str](method="subscriptions/listen", params=params)
        await self.session.send_request(request, mcp_types.EmptyResult)

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:
        await self._request("tasks/update", task_id, inputResponses=dict(answers))

    async def cancel(self, task_id: str) -> None:
        await self._request("tasks/cancel", task_id)

    async def _request(
        self, method: str, task_id: str, seconds: float | None = REQUEST_TIMEOUT_SECONDS, **params: object
    ) -> JsonObject:
        if self.session.protocol_version not in (PROTOCOL_2025, PROTOCOL_2026):
            raise TasksNotSupported(self.session.protocol_version, task_id)
        request = TaskRequest(method=method, params={"taskId": task_id, **params})
        return (await self.session.send_request(request, RawResult, seconds)).root


class Protocol2025(TaskProtocol):
    """The requests of 2025-11-25: the client requests tasks, and `tasks/result` waits and asks questions."""

    async def start(
        self, call: CallToolRequestParams, progress_callback: ProgressFnT | None
    ) -> str | CallToolResult:
        if not await self._supports_tasks(call.name):
            return await super().start(call, progress_callback)
        self.has_called = True
        request = mcp_types.CallToolRequest(params=call)
        try:
            result = await self.session.send_request(
                request, CallToolResult, progress_callback=progress_callback
            )
        except ValidationError as error:
            return TaskState.read(_task_in_validation_error(error)).task_id
        if not result.is_error:
            await self.session.validate_tool_result(call.name, result)
        return result

    async def _supports_tasks(self, tool: str) -> bool:
        """Return whether the server lists the tool as one whose calls may become tasks."""
        cursor: str | None = None
        capabilities = self.session.server_capabilities
        while capabilities is not None and capabilities.tasks is not None:
            page = await self.session.list_tools(params=mcp_types.PaginatedRequestParams(cursor=cursor))
            for each in page.tools:
                if each.name == tool:
                    support = each.execution.task_support if each.execution else None
                    return support in ("optional", "required")
            cursor = page.next_cursor
            if cursor is None:
                break
        return False

    async def read_result(self, state: TaskState) -> TaskState:
        """Read the result. The state shows whether an error is that of the task or of a busy server."""
        if state.status is Status.CANCELLED:
            return state
        try:
            result = await self._request("tasks/result", state.task_id, None)
        except MCPError as error:
            if state.status is Status.FAILED and state.status_message == error.message:
                return msgspec.structs.replace(state, error=error.error.model_dump())
            raise
        return msgspec.structs.replace(state, result=result)

    async def read_stream(self, task_id: str) -> None:
        """Wait for the result, because the server asks questions on the stream of this request."""
        await self._request("tasks/result", task_id, None)

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:  # noqa: ARG002
        raise AnswersNotSupported(task_id)

    async def cancel(self, task_id: str) -> None:
        try:
            await super().cancel(task_id)
        except MCPError:  # at 2025-11-25 a server refuses to cancel a task that has ended
            if not (await self.get(task_id)).status.is_terminal:
                raise


def protocol_of(session: ClientSession, callbacks: ClientSession) -> TaskProtocol:
    """Return the `TaskProtocol` for the version that the session has negotiated."""
    kind = Protocol2025 if session.protocol_version == PROTOCOL_2025 else TaskProtocol
    return kind(session, callbacks)


async def answer_by_callbacks(session: ClientSession, questions: Mapping[str, InputRequest]) -> JsonObject:
    """Return the answers of the callbacks of a client; raise CallbackRefused if one refuses or fails."""
    answers: JsonObject = {}
    for key, asked in questions.items():
        meta = asked.params.meta if asked.params else None
        context = ClientRequestContext(session=session, request_id=key, meta=meta)
        try:
            answer = await session.dispatch_input_request(context, asked)
        except Exception as error:
            message = f"the client's callback for {asked.method} failed: {type_and_text_of(error)}"
            raise CallbackRefused(mcp_types.INTERNAL_ERROR, message) from error
        if isinstance(answer, mcp_types.ErrorData):
            raise CallbackRefused.from_error_data(answer)
        answers[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    return answers


def _task_in_validation_error(invalid: ValidationError) -> Mapping[str, Any]:
    """Return the task in a response that the SDK rejects, because it expects the result of the call."""
    for error in invalid.errors():
        found = error["input"]
        if isinstance(found, dict) and isinstance(task := cast("JsonObject", found).get("task"), dict):
            return cast("JsonObject", task)
    raise invalid
