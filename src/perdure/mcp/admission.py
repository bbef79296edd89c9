"""What a `tools/call` of a durable tool becomes: a task, a question, a refusal, or a result.

The SDK validates the arguments and runs the resolvers, as for any other tool; then the call is stored as a
task. All middleware and all other extensions see one ordinary answer.

A client that does not understand tasks is served too, unless the tool requires them: its call waits for the
task. Questions of the task are sent to the client in the way of its protocol version. If the client gives up
the call, or the process in which it waits is lost, the task is cancelled. A client gives up by cancelling its
request, or by disconnecting. However, a client that uses HTTP up to 2025-11-25 can resume its stream after
disconnecting if the server has an event store. Then the task is cancelled only when the session ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

import anyio
import msgspec
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, CallToolRequestParams
from msgspec import UNSET, UnsetType

from ..runtime.attendance import cancel_abandoned, cancel_if_created
from ..runtime.task_group import task_group
from ..runtime.waits import retry_busy
from ..storage.errors import StorageFailed
from ..tasks import NewTask, Owner, Snapshot, TaskRecord
from ..tasks.edits import resolve_ttl
from ..tasks.errors import InvalidValue, TerminalTask
from ..tasks.inputs import Capability
from . import hand_over, wire
from .adapters import ServerAdapter, connection_of, has_disconnected
from .errors import missing_capability, wrong_task_mode
from .handlers import Handlers, raises_mcp_errors
from .identity import Identity
from .streams import Streams
from .task_stream import TaskStream
from .tool import DurableTool
from .wire import PROTOCOL_2026, JsonObject, RequestContext, StoredCall, T

INPUT_ROUND_TIMEOUT = 600.0
"""Seconds within which a client without tasks must answer. The SDK accepts the state of a round as long."""
DISCONNECT_POLL_SECONDS = 1.0
"""Seconds between two checks whether the client of a call that waits is still connected, up to 2025-11-25."""


class Admission(Extension):
    """The tasks extension of one server. It must be the last of the server's extensions."""

    identifier = wire.EXTENSION

    def __init__(self, identity: Identity, handlers: Handlers) -> None:
        self._identity = identity
        self._handlers = handlers

    @property
    def hands_over(self) -> bool:
        """Whether tools are added for clients without tasks."""
        return self._handlers.hand_over_after is not None

    def methods(self) -> Sequence[MethodBinding]:
        return self._handlers.bindings()

    @raises_mcp_errors
    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext
    ) -> HandlerResult:
        """Answer with a task, a question, a refusal, or a result to a client that waits."""
        limit = self._handlers.hand_over_after
        after = limit if limit is not None and wire.is_without_tasks(ctx) else None
        if after is not None and params.name in hand_over.NAMES:
            owner = self._identity.owner_of(ctx)
            own = hand_over.ToolCall(params, ctx, owner, self._handlers.streams, after)
            return wire.for_version(ctx, await own.answer())
        adapter = self._handlers.adapter
        tool = None if adapter is None else await adapter.find(params.name, params.meta)
        if adapter is None or tool is None:
            if self._handlers.tools and wire.requested_task(ctx) is not None:
                raise wrong_task_mode(
                    params.name, "cannot be called as a task; remove `task` from the request"
                )
            return await call_next(ctx)
        owner, streams = self._identity.owner_of(ctx), self._handlers.streams
        call = _Call(ctx, tool, self._identity, owner, streams, after)
        return await self._admit(params, adapter, call)

    async def _admit(
        self, params: CallToolRequestParams, adapter: ServerAdapter, call: _Call
    ) -> HandlerResult:
        """Create a task. If the client does not understand tasks or did not request one, wait for the task.

        At 2026-07-28, a client declares whether it understands tasks. If it does, each of its calls to the
        tool becomes a task, and resolvers run before the task is created. At 2025-11-25, a client requests a
        task for a call, and resolvers run in the task, where they can ask questions.
        """
        ctx, is_2026 = call.ctx, call.ctx.protocol_version == PROTOCOL_2026
        requested = None if is_2026 else wire.requested_task(ctx)
        gets_task = wire.declares_tasks(ctx.params) if is_2026 else requested is not None
        if call.tool.mode == "required" and not gets_task:
            only = "can only be called as a task; add `task` to the parameters of the request"
            raise missing_capability() if is_2026 else wrong_task_mode(call.tool.name, only)
        waiting_task = wire.waiting_task(params.request_state) if is_2026 else None
        if waiting_task is not None:
            return await call.resume(waiting_task)
        ttl = UNSET if requested is None else requested.ttl_ms
        if requested is not None:
            resolve_ttl(ttl, call.streams.runtime.store.config)  # raises an error if it is invalid
        prepared = await adapter.prepare(params, ctx, resolve=is_2026)
        if not isinstance(prepared, StoredCall):
            return prepared
        if not gets_task:
            async with call.attending() as process:
                snapshot = await call.create(prepared, attended_by=process)
                return await call.wait(snapshot.task.task_id)
        called_at = call.streams.runtime.store.clock()
        snapshot = await call.create(prepared, ttl=ttl)
        self._handlers.remember_created(ctx, snapshot)
        answer = wire.create_task_result if is_2026 else wire.created_result
        return answer(snapshot.task, max(called_at, snapshot.task.created_at))


class _Call(msgspec.Struct, frozen=True):
    """A call of a durable tool."""

    ctx: RequestContext
    tool: DurableTool
    identity: Identity
    owner: Owner
    streams: Streams
    """The streams of the server when the call arrived. The call ends with them when the server stops."""
    hand_over_after: float | None
    """Seconds after which the call is handed over. None if its client must wait for its end."""

    @property
    def client_can(self) -> tuple[Capability, ...]:
        """What the task can ask: what the client declares, and forms that the client's model can answer."""
        declared = wire.capabilities_of(self.ctx)
        if self.hand_over_after is None or self.tool.run.operators_answer or Capability.FORM in declared:
            return declared
        return (*declared, Capability.FORM)

    @property
    def is_repeatable(self) -> bool:
        """Whether the client can repeat the call and gets the same task, because it sent a key for it."""
        return wire.idempotency_key_of(wire.meta_of(self.ctx)) is not None

    def attending(self) -> AbstractAsyncContextManager[str | None]:
        """Let the task of this call end with this process, unless the client can repeat the call."""
        return nullcontext() if self.is_repeatable else self.streams.runtime.attendance.waiting()

    async def create(
        self, stored: StoredCall, *, ttl: int | UnsetType | None = UNSET, attended_by: str | None = None
    ) -> Snapshot:
        runtime, owner, meta = self.streams.runtime, self.owner, wire.meta_of(self.ctx)
        try:
            params = msgspec.to_builtins(stored)
        except TypeError as error:  # middleware has added it
            reason = f"an argument of {stored.name!r} cannot be stored with the task: {error}"
            raise InvalidValue("arguments", reason) from error
        new = NewTask(
            task_id=runtime.store.new_id(),
            method="tools/call",
            params=params,
            meta=wire.stored_meta(self.ctx, meta),
            session_id=connection_of(self.ctx).session_id,
            ttl_ms=self.tool.run.ttl_ms if isinstance(ttl, UnsetType) else ttl,
            is_ttl_requested=not isinstance(ttl, UnsetType),
            poll_interval_ms=self.tool.poll_interval_ms,
            client_can=self.client_can,
            operators_answer=self.tool.run.operators_answer,
            idempotency_key=wire.idempotency_key_of(meta),
            function=self.tool.name,
            credentials=self.identity.capture(self.ctx, has_key=bool(runtime.store.keys)),
            attended_by=attended_by,
        )
        try:
            with anyio.CancelScope(shield=True):  # a call that is given up must know which task to cancel
                return await runtime.create(owner, new)
        except StorageFailed:  # the task may be stored, but no answer will name it
            if not self.is_repeatable:
                self.streams.start_soon(cancel_if_created, runtime, owner, new.task_id)
            raise
        raise AssertionError("a shielded scope is not cancelled")

    # Clients without tasks

    async def resume(self, task_id: str) -> JsonObject:
        """Store the answers of a round of the call, and continue to wait for the task."""
        answers = wire.as_object((self.ctx.params or {}).get("inputResponses"))
        async with self.attending() as process:
            with anyio.CancelScope(shield=True), suppress(TerminalTask):  # to know if they are stored
                await self.streams.runtime.answer(self.owner, task_id, answers, attended_by=process)
            return await self.wait(task_id)

    async def wait(self, task_id: str) -> JsonObject:
        """Wait for a task that the client does not know, and return the answer to its call.

        The wait ends when the task ends or the call is handed over. At 2026-07-28, it also ends when the task
        asks a question, which the client answers in the next round of the call.
        """
        kind = TaskStream if self.hand_over_after is None else hand_over.HandOverStream
        stream = kind(self.ctx, self.owner, self.streams, names_task=False)
        waiting = stream.wait(task_id, at_most=self.hand_over_after)
        task = await self._cancel_if_disconnected(waiting, task_id)
        asked = stream.round_of(task)
        if not task.is_terminal and not (asked and self.is_repeatable):
            task = await self._leave(task_id, asked)
        if task.is_terminal:
            answer = wire.result_2026(wire.result_or_raise(task))
        elif asked or self.hand_over_after is None:
            answer = wire.input_required(task, asked)
        else:
            called, reachable = (self.ctx.params or {})["name"], stream.reachable_questions(task)
            answer = hand_over.handed_over(called, task, reachable)
        return wire.for_version(self.ctx, answer)

    async def _cancel_if_disconnected(self, waiting: Awaitable[T], task_id: str) -> T:
        """Await `waiting`. If the call ends first, cancel the task, because no other client knows it."""
        try:
            async with task_group() as group:
                group.start_soon(self._raise_if_disconnected)
                return await waiting
        except BaseException:
            if not self.is_repeatable:
                await cancel_abandoned(self.streams.runtime, self.owner, task_id)
            raise

    async def _raise_if_disconnected(self) -> None:
        """Wait until the client has disconnected, and then raise MCPError."""
        while True:
            if await has_disconnected(self.ctx):
                raise MCPError(CONNECTION_CLOSED, "the client has disconnected")
            await anyio.sleep(DISCONNECT_POLL_SECONDS)

    async def _leave(self, task_id: str, asked: Collection[str]) -> TaskRecord:
        """Let the task continue without this call, and return it. It may have ended in the meantime.

        The questions `asked` get a deadline. If the client does not send its answers in the next round, the
        task fails, because no other client knows it.
        """
        runtime, owner = self.streams.runtime, self.owner
        leaving = retry_busy(lambda: runtime.leave(owner, task_id, asked, answer_within=INPUT_ROUND_TIMEOUT))
        try:
            return (await self._cancel_if_disconnected(leaving, task_id)).task
        except TerminalTask:
            return (await runtime.get(owner, task_id)).task
