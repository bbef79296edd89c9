"""How a client asks about tasks in each protocol, through the SDK's session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, cast

from mcp.client import ClientSession
from mcp.client.session import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    InputRequest,
    InputRequiredResult,
    PaginatedRequestParams,
    RequestParams,
    Result,
    TaskMetadata,
)
from mcp_types import Request as WireRequest
from pydantic import ConfigDict, RootModel, ValidationError
from pydantic.alias_generators import to_camel

from ...tasks import Status
from ..protocol import CORE, MODERN, Wire
from .errors import CannotAnswer, NoTasks, WasCancelled
from .states import TaskState


class AnyResult(RootModel[dict[str, Any]]):
    """What a server answers, to the letter."""


MOST_ROUNDS = 16
"""In which a server asks before it makes a task."""


class CallbackRefused(MCPError):
    """A callback of the client will not answer."""


class TaskParams(RequestParams):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(WireRequest[TaskParams, str]):
    """Any request about one task. Its id goes into the header by which requests are routed."""

    method: str
    params: TaskParams
    name_param = "taskId"


class CreatedTask(Result):
    """The answer to a call that became a task, in 2026-07-28."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel, populate_by_name=True)

    result_type: Literal["task"]
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None = None
    poll_interval_ms: int | None = None

    @property
    def state(self) -> TaskState:
        return TaskState.read(self.model_dump(by_alias=True, mode="json", exclude_none=True))


class Dialect(ABC):
    """The questions that a client asks about tasks."""

    asks_with_the_result = False
    """Whether what a task asks comes while its result is waited for, instead of with its state."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session

    @abstractmethod
    async def start(
        self, tool: str, arguments: Mapping[str, Any], *, ttl: int | None, meta: Wire | None
    ) -> TaskState | CallToolResult:
        """Call a tool; what it became, or what it answered at once."""

    @abstractmethod
    async def outcome(self, state: TaskState) -> CallToolResult:
        """The result of a task that has ended, or that asks in a way which only this can answer."""

    @abstractmethod
    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:
        """Answer what the task asked."""

    async def get(self, task_id: str) -> TaskState:
        return TaskState.read(await self._send("tasks/get", TaskParams(task_id=task_id)))

    async def cancel(self, task_id: str) -> None:
        await self._send("tasks/cancel", TaskParams(task_id=task_id))

    async def ask_callbacks(self, questions: Mapping[str, InputRequest]) -> Wire:
        """Have the client's own callbacks answer. Raises MCPError where one will not."""
        answers: Wire = {}
        for key, asked in questions.items():
            meta = asked.params.meta if asked.params else None
            context = ClientRequestContext(session=self.session, request_id=key, meta=meta)
            answer = await self.session.dispatch_input_request(context, asked)
            if isinstance(answer, ErrorData):
                raise CallbackRefused.from_error_data(answer)
            answers[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        return answers

    async def _send(self, method: str, params: TaskParams) -> Wire:
        request = TaskRequest(method=method, params=params)
        return (await self.session.send_request(request, AnyResult)).root


class ModernDialect(Dialect):
    """2026-07-28."""

    async def start(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        ttl: int | None,  # noqa: ARG002, here the server decides
        meta: Wire | None,
    ) -> TaskState | CallToolResult:
        answers: Wire | None = None
        state: str | None = None
        for _ in range(MOST_ROUNDS):
            result = await self.session.call_tool(
                tool,
                dict(arguments),
                input_responses=answers,
                request_state=state,
                meta=cast("Any", meta),
                allow_input_required=True,
                allow_claimed=True,
            )
            if not isinstance(result, InputRequiredResult):
                return result.state if isinstance(result, CreatedTask) else cast("CallToolResult", result)
            answers = await self.ask_callbacks(result.input_requests or {})
            state = result.request_state
        raise MCPError(INTERNAL_ERROR, f"the server still asks after {MOST_ROUNDS} rounds")

    async def outcome(self, state: TaskState) -> CallToolResult:
        return state.outcome

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:
        await self._send("tasks/update", TaskParams(task_id=task_id, input_responses=dict(answers)))


class PlainDialect(Dialect):
    """Protocols without tasks: each call is answered when it is done."""

    async def start(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        ttl: int | None,  # noqa: ARG002
        meta: Wire | None,
    ) -> TaskState | CallToolResult:
        return await self.session.call_tool(tool, dict(arguments), meta=cast("Any", meta))

    async def outcome(self, state: TaskState) -> CallToolResult:  # noqa: ARG002
        raise NoTasks(self.session.protocol_version)

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:  # noqa: ARG002
        raise NoTasks(self.session.protocol_version)

    async def _send(self, method: str, params: TaskParams) -> Wire:  # noqa: ARG002
        raise NoTasks(self.session.protocol_version)


class CoreDialect(Dialect):
    """2025-11-25."""

    asks_with_the_result = True

    async def start(
        self, tool: str, arguments: Mapping[str, Any], *, ttl: int | None, meta: Wire | None
    ) -> TaskState | CallToolResult:
        if not await self._is_durable(tool):
            return await self.session.call_tool(tool, dict(arguments), meta=cast("Any", meta))
        params = CallToolRequestParams(
            name=tool, arguments=dict(arguments), task=TaskMetadata(ttl=ttl), _meta=cast("Any", meta)
        )
        try:
            answer = await self.session.send_request(CallToolRequest(params=params), CallToolResult)
        except ValidationError as refused:
            return TaskState.read(_task_within(refused))
        return answer

    async def _is_durable(self, tool: str) -> bool:
        """Whether the server lists the tool as one that may be called as a task. Others may not."""
        cursor: str | None = None
        capabilities = self.session.server_capabilities
        while capabilities is not None and capabilities.tasks is not None:
            page = await self.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            for each in page.tools:
                if each.name == tool:
                    support = each.execution.task_support if each.execution else None
                    return support in ("optional", "required")
            cursor = page.next_cursor
            if cursor is None:
                break
        return False

    async def outcome(self, state: TaskState) -> CallToolResult:
        while state.status is not Status.CANCELLED:
            try:
                result = await self._send("tasks/result", TaskParams(task_id=state.task_id))
                return CallToolResult.model_validate(result, by_name=False)
            except MCPError as error:
                state = await self.get(state.task_id)
                if state.status.is_terminal and state.status is not Status.CANCELLED:
                    raise
                if not state.status.is_terminal and not may_be_repeated(error):
                    raise
        raise WasCancelled(state.task_id)

    async def answer(self, task_id: str, answers: Mapping[str, Any]) -> None:  # noqa: ARG002
        raise CannotAnswer


def may_be_repeated(error: MCPError) -> bool:
    """Whether a server of perdure says so: it does not keep a request waiting for days."""
    data = error.error.data
    return isinstance(data, dict) and cast("Wire", data).get("retryable") is True


def _task_within(refused: ValidationError) -> Mapping[str, Any]:
    """The task in an answer that the SDK refuses: it knows no other answer to a call than a result."""
    for error in refused.errors():
        seen = error["input"]
        if isinstance(seen, dict) and isinstance(task := cast("Wire", seen).get("task"), dict):
            return cast("Wire", task)
    raise refused


def dialect_of(session: ClientSession) -> Dialect:
    """The one that this session speaks."""
    return {MODERN: ModernDialect, CORE: CoreDialect}.get(session.protocol_version or "", PlainDialect)(
        session
    )
