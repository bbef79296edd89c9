"""Staying with a task on the stream of one request: its questions go out as requests, its progress as such.

So wait `tasks/result` of 2025-11-25, and every call of a durable tool by a client that knows of no tasks.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import aclosing, contextmanager, suppress
from math import inf
from typing import Any

import anyio
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    REQUEST_TIMEOUT,
    CreateMessageRequest,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitResult,
    InputRequest,
    ListRootsRequest,
    ListRootsResult,
)
from pydantic import BaseModel, TypeAdapter, ValidationError

from ..runtime import Runtime
from ..storage.errors import PerdureError
from ..tasks import InputKind, Owner, Progress, Snapshot
from ..tasks.errors import MalformedAnswer, TerminalTask
from ..tasks.inputs import Input, InputError, capability_of
from .errors import to_mcp_error
from .wire import (
    JsonObject,
    RequestContext,
    capabilities_of,
    input_request,
    related_task,
    required_capability,
)

QUESTION_PATIENCE = 3600.0
"""Seconds that a question may be open on one stream. It can be asked again on another."""

MAX_ASKS = 3
"""How often a client is asked the same, if its answers are malformed."""

_request: TypeAdapter[InputRequest] = TypeAdapter(InputRequest)


class TaskStream:
    """Stays with one task. Asks each question once."""

    def __init__(self, request: RequestContext, runtime: Runtime, owner: Owner, *, names_task: bool) -> None:
        self._request = request
        self._runtime = runtime
        self._owner = owner
        self._names_task = names_task
        """Whether the client knows of the task: then questions name it, and progress is not sent."""
        self._asked: set[str] = set()
        self._told: Progress | None = None
        self._refusal: MCPError | None = None
        self._patience = anyio.CancelScope()
        self._left = inf
        self._open_questions = 0

    async def wait(self, task_id: str, timeout: float | None = None) -> Snapshot:
        """The task once it has ended. Raises what a client is told where it cannot be asked.

        TimeoutError after so many seconds, in which the client was not being asked.
        """
        with anyio.fail_after(timeout) as self._patience:
            return await self._until_ended(task_id)

    async def _until_ended(self, task_id: str) -> Snapshot:
        last = await self._runtime.get(self._owner, task_id)
        async with anyio.create_task_group() as asking:
            try:
                async with aclosing(self._runtime.watch(self._owner, task_id)) as states:
                    async for last in states:
                        await self._tell(last)
                        self._ask_what_is_new(last, asking)
            except PerdureError as error:
                self._refusal = to_mcp_error(error)
            asking.cancel_scope.cancel()
        if self._refusal is not None:
            raise self._refusal
        return last

    def _ask_what_is_new(self, snapshot: Snapshot, asking: TaskGroup) -> None:
        for key in self.questions(snapshot).keys() - self._asked:
            self._asked.add(key)
            asking.start_soon(self._ask, snapshot, key, asking.cancel_scope)

    def questions(self, snapshot: Snapshot) -> dict[str, Input]:
        """Return the outstanding questions that the client of this request can be asked."""
        can = capabilities_of(self._request)
        return {key: asked for key, asked in snapshot.task.questions.items() if asked.capability in can}

    async def wait_for_input(self, task_id: str) -> Snapshot:
        """The task once it has ended or waits for the client."""
        async with aclosing(self._runtime.watch(self._owner, task_id)) as states:
            async for snapshot in states:
                await self._tell(snapshot)
                if snapshot.task.is_terminal or self.questions(snapshot):
                    return snapshot
        raise MCPError(INTERNAL_ERROR, "the task was lost")

    @contextmanager
    def _unhurried(self) -> Generator[None]:
        """People take their time: while they are asked, the wait runs out later."""
        if not self._open_questions:
            self._left = self._patience.deadline - anyio.current_time()
            self._patience.deadline = anyio.current_time() + max(self._left, QUESTION_PATIENCE)
        self._open_questions += 1
        try:
            yield
        finally:
            self._open_questions -= 1
            if not self._open_questions:
                self._patience.deadline = anyio.current_time() + self._left

    async def _tell(self, snapshot: Snapshot) -> None:
        progress = snapshot.task.progress
        if progress is None or progress == self._told or self._names_task:
            return
        self._told = progress
        await self._request.session.report_progress(
            progress.done, progress.total, snapshot.task.status_message
        )

    async def _ask(self, snapshot: Snapshot, key: str, scope: anyio.CancelScope) -> None:
        asked = input_request(snapshot.task.outstanding[key])
        if self._names_task:
            params = dict(asked.get("params") or {})
            asked["params"] = {**params, "_meta": {**params.get("_meta", {}), **related_task(snapshot.task)}}
        try:
            with self._unhurried():
                await self._ask_until_valid(snapshot, key, asked)
        except MCPError as error:
            self._refusal = error
        except PerdureError as error:
            self._refusal = to_mcp_error(error)
        if self._refusal is not None:
            scope.cancel()

    async def _ask_until_valid(self, snapshot: Snapshot, key: str, asked: JsonObject) -> None:
        """Ask the client, again if its answer is malformed. A JSON-RPC error is an answer for the tool."""
        task_id, why = snapshot.task.task_id, ""
        for _ in range(MAX_ASKS):
            try:
                answer = await ask(self._request, _request.validate_python(_with_reason(asked, why)))
                with suppress(TerminalTask):
                    await self._runtime.answer(self._owner, task_id, {key: answer})
                return
            except MCPError as error:
                if isinstance(error, NoBackChannelError) or error.code in (
                    CONNECTION_CLOSED,
                    REQUEST_TIMEOUT,
                ):
                    raise MCPError(
                        INTERNAL_ERROR, f"the client did not answer {key!r}: {error.message}"
                    ) from error
                failure = InputError(code=error.code, message=error.message)
                with suppress(TerminalTask):
                    await self._runtime.fail_question(self._owner, task_id, key, failure)
                return
            except MalformedAnswer as error:
                why = str(error)
            except ValidationError:
                why = f"the answer to {key!r} is malformed"
        raise MCPError(INTERNAL_ERROR, why, {"retryable": True})


def _with_reason(asked: JsonObject, why: str) -> JsonObject:
    """The question, with the reason why the last answer to it was not accepted."""
    params = dict(asked.get("params") or {})
    if not why or "message" not in params:
        return asked
    return {**asked, "params": {**params, "message": f"{params['message']}\n\n({why})"}}


async def ask(request: RequestContext, asked: InputRequest) -> JsonObject:
    """Ask the client, on the stream of this request."""
    check_askable(request, asked)
    answer = await request.session.send_request(
        asked, _answer_type(asked), metadata=ServerMessageMetadata(related_request_id=request.request_id)
    )
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)


async def ask_all(request: RequestContext, asked: Mapping[str, InputRequest]) -> dict[str, Any]:
    """Ask the client several things, one after the other."""
    return {key: await ask(request, each) for key, each in asked.items()}


def check_askable(request: RequestContext, asked: InputRequest) -> None:
    """Raise if the client did not declare that it can be asked this."""
    params = None if asked.params is None else asked.params.model_dump(by_alias=True, mode="json")
    capability = capability_of(InputKind(asked.method), params)
    if capability not in capabilities_of(request):
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"the client does not declare what {asked.method} needs",
            required_capability(capability),
        )


def _answer_type(asked: InputRequest) -> type[BaseModel]:
    match asked:
        case ElicitRequest():
            return ElicitResult
        case ListRootsRequest():
            return ListRootsResult
        case CreateMessageRequest(params=params):
            return CreateMessageResultWithTools if params.tools or params.tool_choice else CreateMessageResult
