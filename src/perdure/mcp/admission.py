"""What a `tools/call` of a durable tool becomes: a task, a question, a refusal, or a result.

The SDK validates the arguments and runs the resolvers, as for any other tool; then the call is stored as a
task. All middleware and all other extensions see one ordinary answer.

A client that does not understand tasks is served too, unless the tool requires them: its call waits for the
task. Questions of the task reach it in the way of its protocol. If the client gives up the call, or the
process in which it waits is lost, the task is cancelled. At 2026-07-28 a client gives up by disconnecting;
before, over HTTP, only by cancelling its request, which does not end with a lost connection there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding
from mcp_types import CallToolRequestParams
from msgspec import UNSET, UnsetType

from ..storage import Micros
from ..tasks import NewTask, Snapshot, TaskRecord
from ..tasks.edits import resolve_ttl
from ..tasks.errors import TerminalTask
from ..tasks.inputs import Capability
from . import hand_over, wire
from .adapters import ServerAdapter
from .credentials import capture
from .errors import missing_capability, wrong_task_mode
from .hand_over import HandOver
from .handlers import Handlers, Serving, raises_mcp_errors
from .identity import Caller, Identity
from .task_stream import TaskStream, retry_busy
from .tool import DurableTool
from .wire import PROTOCOL_2026, JsonObject, RequestContext, StoredCall

INPUT_ROUND_TIMEOUT = 600.0
"""Seconds within which a client without tasks must send its answers: as long as the SDK accepts its state."""


class Admission(Extension):
    """The tasks extension of one server. It must be the last of the server's extensions."""

    identifier = wire.EXTENSION

    def __init__(
        self, serving: Serving, identity: Identity, handlers: Handlers, stored_headers: frozenset[str]
    ) -> None:
        self._serving = serving
        self._identity = identity
        self._handlers = handlers
        self._stored_headers = stored_headers

    def methods(self) -> Sequence[MethodBinding]:
        return self._handlers.bindings()

    @raises_mcp_errors
    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext
    ) -> HandlerResult:
        """Answer with a task, a question, a refusal, or a result to a client that waits."""
        tools = self._serving.hand_over
        if tools is not None and self.serves(params.name, ctx):
            return await self._call_own_tool(params, ctx, tools)
        adapter = self._serving.adapter
        tool = None if adapter is None else await adapter.find_called(params)
        if adapter is None or tool is None:
            if self._serving.tools and wire.requested_task(ctx) is not None:
                raise wrong_task_mode(params.name, "cannot be called as a task")
            return await call_next(ctx)
        call = _Call(ctx, self._serving.fixed(), tool, self._identity.caller_of(ctx), self._stored_headers)
        if ctx.protocol_version == PROTOCOL_2026:
            return await self._admit_2026(params, adapter, call)
        return await self._admit_2025(params, adapter, call)

    async def _admit_2026(
        self, params: CallToolRequestParams, adapter: ServerAdapter, call: _Call
    ) -> HandlerResult:
        """Answer a client that declares whether it understands tasks: then each call of the tool is one."""
        declares = wire.declares_tasks(call.ctx.params)
        if call.tool.mode == "required" and not declares:
            raise missing_capability()
        waiting_task = wire.waiting_task(params.request_state)
        if waiting_task is not None:
            return await self._resume_waiting(call, waiting_task)
        prepared = await adapter.prepare(params, call.ctx, resolve=True)
        if not isinstance(prepared, StoredCall):
            return prepared
        if not declares:
            async with call.attending() as process:
                snapshot = await call.create(prepared, attended_by=process)
                return await self._wait(call, snapshot.task.task_id)
        called_at = self._serving.now()
        snapshot = await call.create(prepared)
        self._handlers.remember_created(call.ctx, snapshot)
        return wire.create_task_result(snapshot.task, self._shown_at(snapshot, called_at))

    async def _resume_waiting(self, call: _Call, task_id: str) -> HandlerResult:
        """Take the answers of a round, and wait on."""
        runtime, owner = call.serving.runtime, call.caller.owner
        answers = wire.as_object((call.ctx.params or {}).get("inputResponses"))
        async with call.attending() as process:
            with anyio.CancelScope(shield=True), suppress(TerminalTask):  # to know whether they are stored
                await runtime.answer(owner, task_id, answers, attended_by=process)
            return await self._wait(call, task_id)

    async def _admit_2025(
        self, params: CallToolRequestParams, adapter: ServerAdapter, call: _Call
    ) -> HandlerResult:
        """Answer a client that requests a task, or waits. Resolvers ask inside the task."""
        requested = wire.requested_task(call.ctx)
        if requested is None and call.tool.mode == "required":
            raise wrong_task_mode(call.tool.name, "can only be called as a task")
        if requested is not None:
            resolve_ttl(requested.ttl_ms, self._serving.runtime.store.config)
        prepared = await adapter.prepare(params, call.ctx, resolve=False)
        if not isinstance(prepared, StoredCall):
            return prepared
        if requested is None:
            async with call.attending() as process:
                snapshot = await call.create(prepared, attended_by=process)
                return await self._wait(call, snapshot.task.task_id)
        called_at = self._serving.now()
        snapshot = await call.create(prepared, ttl=requested.ttl_ms)
        self._handlers.remember_created(call.ctx, snapshot)
        return wire.created_result(snapshot.task, self._shown_at(snapshot, called_at))

    # Clients without tasks

    def serves(self, tool: str, ctx: RequestContext) -> bool:
        """Return whether this is one of the tools that are added for a client without tasks."""
        return self._serving.hand_over is not None and tool in hand_over.NAMES and wire.is_without_tasks(ctx)

    async def _call_own_tool(
        self, params: CallToolRequestParams, ctx: RequestContext, tools: HandOver
    ) -> HandlerResult:
        owner = self._identity.caller_of(ctx).owner
        return wire.for_version(ctx, await tools.call(params, ctx, owner, self._serving.streams))

    async def _wait(self, call: _Call, task_id: str) -> JsonObject:
        """Wait for a task that the client does not know: for its end, or for a question that is a round of
        the call at 2026-07-28, or until the call is handed over.
        """
        stream, over = call.stream(), call.hand_over
        if over is not None:
            waiting = over.wait(stream, task_id, in_rounds=call.is_2026)
        else:
            waiting = stream.wait_for_input(task_id) if call.is_2026 else stream.wait(task_id)
        task = (await call.cancel_if_disconnected(waiting, task_id)).task
        asked = stream.questions(task) if call.is_2026 else {}
        if not task.is_terminal and not (asked and call.is_repeatable):
            task = await call.leave(task, asked)
        if task.is_terminal:
            return wire.for_version(call.ctx, wire.result_2026(wire.result_or_raise(task)))
        if asked or over is None:
            return wire.input_required(task, asked)
        answer = over.handed_over((call.ctx.params or {})["name"], task, stream.reachable_questions(task))
        return wire.for_version(call.ctx, answer)

    def _shown_at(self, snapshot: Snapshot, called_at: Micros) -> Micros:
        """Return the time for the answer to a call: the task's creation, or now if the task is older."""
        created_at = snapshot.task.created_at
        return created_at if created_at >= called_at else self._serving.now()


class _Call(msgspec.Struct, frozen=True):
    """A call of a durable tool."""

    ctx: RequestContext
    serving: Serving
    tool: DurableTool
    caller: Caller
    stored_headers: frozenset[str]

    @property
    def is_2026(self) -> bool:
        return self.ctx.protocol_version == PROTOCOL_2026

    @property
    def hand_over(self) -> HandOver | None:
        """How the call is handed over if it takes too long; None if its client must wait for its end."""
        over = self.serving.hand_over
        return over if over is not None and wire.is_without_tasks(self.ctx) else None

    @property
    def client_can(self) -> tuple[Capability, ...]:
        """What the task can ask: what the client declares, and forms if its model can answer them."""
        declared = wire.capabilities_of(self.ctx)
        if self.hand_over is None or self.tool.operators_answer or Capability.FORM in declared:
            return declared
        return (*declared, Capability.FORM)

    @property
    def is_repeatable(self) -> bool:
        """Whether the client can repeat the call and gets the same task, because it sent a key for it."""
        return wire.idempotency_key_of(wire.meta_of(self.ctx)) is not None

    def stream(self) -> TaskStream:
        """Return the stream of this call, on which its client waits for a task that it does not know."""
        return TaskStream(self.ctx, self.caller.owner, self.serving.streams, names_task=False)

    @asynccontextmanager
    async def attending(self) -> AsyncGenerator[str | None]:
        """Let the task of this call end with this process, unless the client can repeat the call."""
        if self.is_repeatable:
            yield None
            return
        async with self.serving.runtime.attendance.waiting() as process:
            yield process

    async def create(
        self, stored: StoredCall, *, ttl: int | UnsetType | None = UNSET, attended_by: str | None = None
    ) -> Snapshot:
        new = NewTask(
            method="tools/call",
            params=msgspec.to_builtins(stored),
            meta=wire.stored_meta(self.ctx),
            session_id=self.caller.session_id,
            ttl_ms=self.tool.ttl_ms if isinstance(ttl, UnsetType) else ttl,
            is_ttl_requested=not isinstance(ttl, UnsetType),
            poll_interval_ms=self.tool.poll_interval_ms,
            client_can=self.client_can,
            operators_answer=self.tool.operators_answer,
            idempotency_key=wire.idempotency_key_of(wire.meta_of(self.ctx)),
            function=self.tool.name,
            credentials=capture(self.ctx, self.stored_headers, has_key=bool(self.serving.runtime.store.keys)),
            attended_by=attended_by,
        )
        with anyio.CancelScope(shield=True):  # a call that is given up must know its task, to cancel it
            return await self.serving.runtime.create(self.caller.owner, new)
        raise AssertionError("a shielded scope is not cancelled")

    async def cancel_if_disconnected(self, waiting: Awaitable[Snapshot], task_id: str) -> Snapshot:
        """Cancel the task if the call ends before it: no other client knows it."""
        try:
            return await waiting
        except BaseException:
            if not self.is_repeatable:
                await self.serving.streams.cancel_abandoned(self.caller.owner, task_id)
            raise

    async def leave(self, task: TaskRecord, asked: Collection[str]) -> TaskRecord:
        """Let the task continue without this call, and return it; it may have ended meanwhile.

        If the answers to what the client was asked in a round do not come, the deadline of the questions ends
        the task: no other client knows it.
        """
        runtime, owner, task_id = self.serving.runtime, self.caller.owner, task.task_id
        leaving = retry_busy(lambda: runtime.leave(owner, task_id, asked, answer_within=INPUT_ROUND_TIMEOUT))
        try:
            return (await self.cancel_if_disconnected(leaving, task_id)).task
        except TerminalTask:
            return (await runtime.get(owner, task_id)).task
