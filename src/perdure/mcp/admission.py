"""What a `tools/call` of a durable tool becomes: a task, a question, a refusal, or a result.

The SDK validates the arguments and runs the resolvers, as for any other tool; then the call is stored as a
task. All middleware and all other extensions see one ordinary answer.

A client that does not understand tasks is served too, unless the tool requires them: its call waits for the
task. Questions of the task reach it in the way of its protocol. If the client disconnects, the task is
cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio
import msgspec
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams
from msgspec import UNSET, UnsetType

from ..storage import Micros
from ..storage.errors import PerdureError
from ..tasks import NewTask, Snapshot
from ..tasks.edits import resolve_ttl
from ..tasks.errors import TerminalTask
from .adapters import ServerAdapter
from .errors import missing_capability, to_mcp_error, wrong_task_mode
from .handlers import Handlers, Serving
from .identity import Caller, Identity
from .tool import DurableTool
from .wire import (
    EXTENSION,
    PROTOCOL_2026,
    JsonObject,
    RequestContext,
    StoredCall,
    capabilities_of,
    create_task_result,
    created_result,
    declares_tasks,
    idempotency_key_of,
    input_request,
    meta_of,
    requested_task,
    result_2026,
    result_or_raise,
    stored_meta,
)

WAITING_STATE_PREFIX = "perdure/task:"
"""The start of the `requestState` of a call that waits for a task which its client does not know."""

INPUT_ROUND_TIMEOUT = 600.0
"""Seconds within which a client without tasks must send its answers: as long as the SDK accepts its state."""


class Admission(Extension):
    """The tasks extension of one server. It must be the last of the server's extensions."""

    identifier = EXTENSION

    def __init__(self, serving: Serving, identity: Identity, handlers: Handlers) -> None:
        self._serving = serving
        self._identity = identity
        self._handlers = handlers
        self._rounds: dict[str, anyio.CancelScope] = {}
        """The waits for the answers of clients that do not understand tasks, by the ids of their tasks."""

    def methods(self) -> Sequence[MethodBinding]:
        return self._handlers.bindings()

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext
    ) -> HandlerResult:
        """Answer with a task, a question, a refusal, or a result to a client that waits."""
        try:
            return await self._admit(params, ctx, call_next)
        except PerdureError as error:
            raise to_mcp_error(error) from error

    async def _admit(
        self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext
    ) -> HandlerResult:
        adapter = self._serving.adapter
        tool = None if adapter is None else await adapter.find(params.name)
        if adapter is None or tool is None:
            if self._serving.has_tools and requested_task(ctx) is not None:
                raise wrong_task_mode(params.name, "cannot be called as a task")
            return await call_next(ctx)
        caller = self._identity.caller_of(ctx)
        if ctx.protocol_version == PROTOCOL_2026:
            return await self._admit_2026(params, ctx, adapter, tool, caller)
        return await self._admit_2025(params, ctx, adapter, tool, caller)

    # 2026-07-28: the client declares that it understands tasks, and then each call of the tool is one

    async def _admit_2026(
        self,
        params: CallToolRequestParams,
        ctx: RequestContext,
        adapter: ServerAdapter,
        tool: DurableTool,
        caller: Caller,
    ) -> HandlerResult:
        declares = declares_tasks(ctx.params)
        if tool.mode == "required" and not declares:
            raise missing_capability()
        state = params.request_state or ""
        if state.startswith(WAITING_STATE_PREFIX):
            return await self._resume_waiting(ctx, caller, state.removeprefix(WAITING_STATE_PREFIX))
        prepared = await adapter.prepare(params, ctx, resolve=True)
        if not isinstance(prepared, StoredCall):
            return prepared
        called_at = self._now()
        snapshot = await self._create(ctx, tool, caller, prepared)
        if not declares:
            return await self._wait_2026(ctx, caller, snapshot.task.task_id)
        self._handlers.remember_created(ctx, snapshot)
        return create_task_result(snapshot.task, self._shown_at(snapshot, called_at))

    async def _resume_waiting(self, ctx: RequestContext, caller: Caller, task_id: str) -> HandlerResult:
        """Take the answers of a round, and wait on."""
        runtime = self._serving.runtime
        await runtime.get(caller.owner, task_id)
        self._end_round(task_id)
        answers = (ctx.params or {}).get("inputResponses")
        if isinstance(answers, Mapping) and answers:
            with suppress(TerminalTask):
                await runtime.answer(caller.owner, task_id, cast("Mapping[str, Any]", answers))
        return await self._wait_2026(ctx, caller, task_id)

    async def _wait_2026(self, ctx: RequestContext, caller: Caller, task_id: str) -> JsonObject:
        """Wait for a task that the client does not know. Its questions are rounds of the call."""
        stream = self._handlers.stream(ctx, caller.owner, names_task=False)
        snapshot = await self._cancel_if_disconnected(ctx, caller, stream.wait_for_input(task_id), task_id)
        if snapshot.task.is_terminal:
            return result_2026(result_or_raise(snapshot.task.outcome))
        asked = {key: input_request(each) for key, each in stream.questions(snapshot).items()}
        if idempotency_key_of(meta_of(ctx)) is None:
            self._serving.start_soon(self._cancel_unless_answered, caller, task_id, frozenset(asked))
        state = f"{WAITING_STATE_PREFIX}{task_id}"
        return {"resultType": "input_required", "inputRequests": asked, "requestState": state}

    async def _cancel_unless_answered(self, caller: Caller, task_id: str, asked: frozenset[str]) -> None:
        """Cancel the task of a client that does not return with its answers: no other client knows it."""
        with anyio.CancelScope() as scope:
            self._end_round(task_id)
            self._rounds[task_id] = scope
            await anyio.sleep(INPUT_ROUND_TIMEOUT)
            del self._rounds[task_id]
            with suppress(PerdureError):
                task = (await self._serving.runtime.get(caller.owner, task_id)).task
                if asked <= task.outstanding.keys():
                    await self._serving.runtime.cancel(caller.owner, task_id)

    def _end_round(self, task_id: str) -> None:
        """Stop waiting for the answers of an earlier round: the client has returned."""
        if task_id in self._rounds:
            self._rounds.pop(task_id).cancel()

    # Up to 2025-11-25: the client requests a task, or waits. Resolvers ask inside the task.

    async def _admit_2025(
        self,
        params: CallToolRequestParams,
        ctx: RequestContext,
        adapter: ServerAdapter,
        tool: DurableTool,
        caller: Caller,
    ) -> HandlerResult:
        requested = requested_task(ctx)
        if requested is None and tool.mode == "required":
            raise wrong_task_mode(tool.name, "can only be called as a task")
        if requested is not None:
            resolve_ttl(requested.ttl_ms, self._serving.runtime.store.config)
        prepared = await adapter.prepare(params, ctx, resolve=False)
        if not isinstance(prepared, StoredCall):
            return prepared
        if requested is None:
            snapshot = await self._create(ctx, tool, caller, prepared)
            return await self._wait_2025(ctx, caller, snapshot.task.task_id)
        called_at = self._now()
        snapshot = await self._create(ctx, tool, caller, prepared, requested.ttl_ms)
        self._handlers.remember_created(ctx, snapshot)
        return created_result(snapshot.task, self._shown_at(snapshot, called_at))

    async def _wait_2025(self, ctx: RequestContext, caller: Caller, task_id: str) -> JsonObject:
        stream = self._handlers.stream(ctx, caller.owner, names_task=False)
        ended = await self._cancel_if_disconnected(ctx, caller, stream.wait(task_id), task_id)
        result = result_2026(result_or_raise(ended.task.outcome))
        result.pop("resultType")
        return result

    # Both

    def _now(self) -> Micros:
        return self._serving.runtime.store.clock()

    def _shown_at(self, snapshot: Snapshot, called_at: Micros) -> Micros:
        """Return the time for the answer to a call: the task's creation, or now if the task is older."""
        created_at = snapshot.task.created_at
        return created_at if created_at >= called_at else self._now()

    async def _create(
        self,
        ctx: RequestContext,
        tool: DurableTool,
        caller: Caller,
        call: StoredCall,
        ttl: int | UnsetType | None = UNSET,
    ) -> Snapshot:
        new = NewTask(
            method="tools/call",
            params=msgspec.to_builtins(call),
            meta=stored_meta(ctx),
            session_id=caller.session_id,
            ttl_ms=tool.ttl_ms if isinstance(ttl, UnsetType) else ttl,
            is_ttl_requested=not isinstance(ttl, UnsetType),
            poll_interval_ms=tool.poll_interval_ms,
            client_can=capabilities_of(ctx),
            operators_answer=tool.operators_answer,
            idempotency_key=idempotency_key_of(meta_of(ctx)),
            function=tool.name,
        )
        runtime = self._serving.runtime
        with anyio.CancelScope(shield=True):  # a call that is given up must know its task, to cancel it
            return await runtime.create(caller.owner, new)
        raise AssertionError("a shielded scope is not cancelled")

    async def _cancel_if_disconnected(
        self, ctx: RequestContext, caller: Caller, waiting: Awaitable[Snapshot], task_id: str
    ) -> Snapshot:
        """Cancel the task if the call ends before it: no other client knows it.

        With an idempotency key, the client can repeat the call.
        """
        try:
            return await waiting
        except BaseException:
            if idempotency_key_of(meta_of(ctx)) is None:
                with anyio.CancelScope(shield=True), suppress(PerdureError, MCPError):
                    await self._serving.runtime.cancel(caller.owner, task_id)
            raise
