"""The handlers of `tasks/*`, and the middleware for what the SDK has no other seam for.

Each handler reads its parameters, calls the runtime, and writes the answer in the protocol of the client.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import wraps
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import MethodBinding
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_INFO_META_KEY, RequestParams

from ..runtime import Runtime
from ..storage import Micros
from ..storage.errors import PerdureError
from ..tasks import Owner, Snapshot, Status
from ..tasks.errors import NotFound, TerminalTask
from . import wire
from .adapters import ServerAdapter
from .errors import header_mismatch, missing_capability, not_running, to_mcp_error
from .hand_over import HandOver
from .identity import Identity, headers_of
from .subscription import Subscription, subscription_result
from .task_stream import Session, Streams, TaskStream
from .tool import DurableTool
from .wire import PROTOCOL_2025, PROTOCOL_2026, JsonObject, RequestContext, as_object

log = logging.getLogger("perdure.mcp")

P = ParamSpec("P")
R = TypeVar("R")

NAME_HEADER = "mcp-name"
EARLY_POLL_DELAY = 0.25
"""Seconds for which the answer to a poll is delayed that comes earlier than it was advised."""
MAX_REMEMBERED_POLLS = 8192


class Serving:
    """A server with tasks, as the handlers of its requests see it."""

    def __init__(self) -> None:
        self.tools: dict[str, DurableTool] = {}
        """The durable functions by name, whether they are tools of the server or not."""
        self.adapter: ServerAdapter | None = None
        """None before the server has started."""
        self.running: Streams | None = None
        """None if the server does not run."""
        self.hand_over: HandOver | None = None
        """How calls of clients without tasks are handed over; None if they wait for their end."""

    def fixed(self) -> Serving:
        """Return the server as it is now. A call that outlives a stop ends with what it started with."""
        return copy(self)

    @property
    def streams(self) -> Streams:
        if self.running is None:
            raise not_running()
        return self.running

    @property
    def runtime(self) -> Runtime:
        return self.streams.runtime

    def now(self) -> Micros:
        return self.runtime.store.clock()


class PollLimiter:
    """When clients were advised to poll each task again, by this process.

    The protocols allow a server to slow down clients that poll too often. The answer to an early poll is
    delayed until the task changes, or for a short time: the client learns of the end no later, and with fewer
    requests. A client that follows the advice is not delayed, unless another client polls the same task.
    """

    def __init__(self) -> None:
        self._due: OrderedDict[str, float] = OrderedDict()

    def promise(self, task_id: str, interval_ms: int) -> None:
        """Note that a client is advised to poll after this interval."""
        self._due[task_id] = anyio.current_time() + interval_ms / 1000
        self._due.move_to_end(task_id)
        if len(self._due) > MAX_REMEMBERED_POLLS:
            self._due.popitem(last=False)

    def is_early(self, task_id: str) -> bool:
        due = self._due.get(task_id)
        return due is not None and anyio.current_time() < due


def raises_mcp_errors(
    method: Callable[P, CoroutineType[Any, Any, R]],
) -> Callable[P, CoroutineType[Any, Any, R]]:
    """Make a coroutine function raise JSON-RPC errors in place of errors of ours."""

    @wraps(method)
    async def convert(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(*args, **kwargs)
        except PerdureError as error:
            raise to_mcp_error(error) from error

    return convert


class Handlers:
    """The handlers of one server."""

    def __init__(self, serving: Serving, identity: Identity) -> None:
        self._serving = serving
        self._identity = identity
        self._polls = PollLimiter()
        self._created: dict[ServerSession, list[Snapshot]] = {}
        """The tasks that calls created which have not been answered yet. Each request has its own session."""
        self.is_bound = False
        """Whether the server serves the methods."""

    def bindings(self) -> Sequence[MethodBinding]:
        self.is_bound = True
        both = frozenset({PROTOCOL_2026, PROTOCOL_2025})
        only_2026, only_2025 = frozenset({PROTOCOL_2026}), frozenset({PROTOCOL_2025})
        served = (
            ("tasks/get", self.get, both),
            ("tasks/cancel", self.cancel, both),
            ("tasks/update", self.update, only_2026),
            ("tasks/list", self.list, only_2025),
            ("tasks/result", self.result, only_2025),
        )
        return [
            MethodBinding(method, RequestParams, raises_mcp_errors(handler), protocol_versions=versions)
            for method, handler, versions in served
        ]

    # Methods

    async def get(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner, task_id = await self._task_named_by(ctx)
        snapshot = await self._serving.runtime.get(owner, task_id)
        if not snapshot.task.is_terminal:
            snapshot = await self._read_when_due(owner, snapshot)
        if ctx.protocol_version == PROTOCOL_2026:
            return {"resultType": "complete", **wire.task_2026(snapshot.task, self._serving.now())}
        if snapshot.task.status is Status.INPUT_REQUIRED:  # a client that only polls is asked in its session
            Session.of(ctx).follow(ctx, snapshot.task, self._serving.streams).poll()
        return wire.task_2025(snapshot.task, self._serving.now())

    async def _read_when_due(self, owner: Owner, snapshot: Snapshot) -> Snapshot:
        """Return the task; a moment later, if it is polled earlier than was advised and does not change."""
        if self._polls.is_early(snapshot.task.task_id):
            snapshot = await self._serving.runtime.later(owner, snapshot, EARLY_POLL_DELAY)
        self._promise_poll(snapshot, self._serving)
        return snapshot

    def _promise_poll(self, snapshot: Snapshot, serving: Serving) -> None:
        interval = wire.poll_interval_ms(snapshot.task, serving.now())
        self._polls.promise(snapshot.task.task_id, interval)

    async def cancel(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner, task_id = await self._task_named_by(ctx)
        runtime = self._serving.runtime
        if ctx.protocol_version == PROTOCOL_2026:
            with suppress(TerminalTask):  # it has ended, as the client wishes
                await runtime.cancel(owner, task_id)
            return {"resultType": "complete"}
        try:
            cancelled = await runtime.cancel_now(owner, task_id)
        except TerminalTask as error:
            ended = wire.task_2025((await runtime.get(owner, task_id)).task, self._serving.now())
            raise MCPError(INVALID_PARAMS, f"the task is {ended['status']}, which is final") from error
        return wire.task_2025(cancelled.task, self._serving.now())

    async def update(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        """Store answers and variables. They are ignored if the task has ended, perhaps by other answers."""
        owner = self._identity.caller_of(ctx).owner
        if not wire.declares_tasks(ctx.params):
            raise missing_capability()
        update = wire.decode(ctx.params, wire.UpdateParams)
        _check_name_header(ctx, update.task_id)
        answers, variables = update.input_responses, update.variables
        runtime = self._serving.runtime
        if answers or variables:
            with suppress(TerminalTask):
                await runtime.answer(owner, update.task_id, answers, variables)
        else:
            await runtime.get(owner, update.task_id)
        return {"resultType": "complete"}

    async def list(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        caller = self._identity.caller_of(ctx)
        if not caller.can_list_tasks:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", "tasks/list")
        cursor = wire.decode(ctx.params, wire.ListParams).cursor
        page = await self._serving.runtime.store.list(caller.owner, cursor=cursor, newest_first=True)
        for error in page.not_readable:
            log.warning("left out of tasks/list: %s", error)
        now = self._serving.now()
        answer: JsonObject = {"tasks": [wire.task_2025(snapshot.task, now) for snapshot in page.tasks]}
        if page.next_cursor is not None:
            answer["nextCursor"] = page.next_cursor
        return answer

    async def result(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner, task_id = await self._task_named_by(ctx)
        task = (await TaskStream(ctx, owner, self._serving.streams).wait(task_id)).task
        return wire.result_2025(task, wire.result_or_raise(task))

    async def _task_named_by(self, ctx: RequestContext) -> tuple[Owner, str]:
        """Return the caller and the id of the task that a request names.

        A client of 2026-07-28 must declare the extension, or the tasks of 2025-11-25 for a task of that
        protocol.
        """
        owner = self._identity.caller_of(ctx).owner
        is_declared = ctx.protocol_version != PROTOCOL_2026 or wire.declares_tasks(ctx.params)
        if not is_declared and not wire.declares_tasks_of_2025(ctx.params):
            raise missing_capability()
        task_id = wire.decode(ctx.params, wire.TaskParams).task_id
        _check_name_header(ctx, task_id)
        if not is_declared and not await self._is_of_2025(owner, task_id):
            raise missing_capability()
        return owner, task_id

    async def _is_of_2025(self, owner: Owner, task_id: str) -> bool:
        with suppress(NotFound):
            return (
                wire.protocol_of((await self._serving.runtime.get(owner, task_id)).task.meta) == PROTOCOL_2025
            )
        return False

    # Middleware

    async def middleware(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Serve what the SDK has no other seam for, and pass on the rest."""
        if ctx.request_id is None:  # a notification
            return await call_next(ctx)
        await self._refuse_strangers(ctx)
        match ctx.method, ctx.protocol_version:
            case "tools/call", _:
                return await self._answer_call(ctx, call_next)
            case "subscriptions/listen", version if version == PROTOCOL_2026:
                return await self._listen(ctx, call_next)
            case "logging/setLevel", version if version != PROTOCOL_2026:
                Session.of(ctx).set_level((ctx.params or {}).get("level"))
                return await call_next(ctx)
            case "initialize", _:
                return self._add_capability(ctx, await call_next(ctx))
            case "tools/list", _:
                return await self._list_tools(ctx, await call_next(ctx))
            case _:
                return await call_next(ctx)

    @raises_mcp_errors
    async def _refuse_strangers(self, ctx: RequestContext) -> None:
        """Refuse callers without access to tasks before the SDK reads the parameters of their request."""
        if ctx.method.startswith("tasks/"):
            self._identity.caller_of(ctx)
        elif ctx.method == "tools/call" and self._identity.may_refuse:
            name, adapter = (ctx.params or {}).get("name"), self._serving.adapter
            if adapter is not None and isinstance(name, str) and await adapter.find(name) is not None:
                self._identity.caller_of(ctx)

    @raises_mcp_errors
    async def _listen(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        notifications = as_object((ctx.params or {}).get("notifications"))
        streams = self._serving.streams
        if "taskIds" not in notifications:
            with streams.open():
                return await call_next(ctx)
            return self._stamp(subscription_result(ctx))
        owner = self._identity.caller_of(ctx).owner
        if not wire.declares_tasks(ctx.params):
            raise missing_capability()
        task_ids = wire.decode(notifications, wire.ListenParams, "$.notifications").task_ids
        has_others = any(value for kind, value in notifications.items() if kind != "taskIds")
        result = await Subscription(ctx, owner, task_ids, streams).serve(call_next, has_others=has_others)
        return self._stamp(wire.dump_result(result))

    def _stamp(self, result: JsonObject) -> JsonObject:
        """Add the name of the server to a result of 2026-07-28 that the SDK does not send."""
        adapter = self._serving.adapter
        stamp = {} if adapter is None else {SERVER_INFO_META_KEY: adapter.info_stamp}
        return {**result, "_meta": {**as_object(result.get("_meta")), **stamp}}

    def _add_capability(self, ctx: RequestContext, result: HandlerResult) -> HandlerResult:
        """Advertise tasks at 2025-11-25, which has no extensions."""
        answer = wire.dump_result(result)
        if answer.get("protocolVersion") != PROTOCOL_2025 or not self._serving.tools:
            return result
        tasks: JsonObject = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        if self._identity.may_list_tasks(ctx):
            tasks["list"] = {}
        return {**answer, "capabilities": {**as_object(answer.get("capabilities")), "tasks": tasks}}

    async def _list_tools(self, ctx: RequestContext, result: HandlerResult) -> HandlerResult:
        """Show at 2025-11-25 which tools can be tasks, and to clients without tasks what they can use."""
        answer, adapter, hand_over = wire.dump_result(result), self._serving.adapter, self._serving.hand_over
        is_2025 = ctx.protocol_version == PROTOCOL_2025
        if not answer or adapter is None or not (is_2025 or hand_over is not None):
            return result
        durable = await adapter.durable_tools()
        if is_2025:
            answer = _with_task_support(answer, durable)
        if hand_over is None:
            return answer
        if answer.get("cacheScope") == "public":  # the list depends on the client
            answer["cacheScope"] = "private"
        return hand_over.list_tools(answer, durable) if wire.is_without_tasks(ctx) else answer

    # Calls that became tasks

    def remember_created(self, ctx: RequestContext, snapshot: Snapshot) -> None:
        """Note that a call created a task, which its answer will name."""
        self._created[ctx.session].append(snapshot)

    async def _answer_call(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Make sure that the answer names the task that the call created. Else no client knows the task."""
        requested = wire.requested_task(ctx)  # raises -32602 with the field that is wrong
        serving = self._serving.fixed()
        created, named = list[Snapshot](), None
        self._created[ctx.session] = created
        try:
            result = await call_next(ctx)
            answer = wire.dump_result(result) if created or requested is not None else {}
            task = wire.created_task(answer) if ctx.protocol_version == PROTOCOL_2025 else answer
            named = next((each for each in created if each.task.task_id == task.get("taskId")), None)
        finally:
            del self._created[ctx.session]
            if wire.idempotency_key_of(wire.meta_of(ctx)) is None:  # else the client can repeat the call
                for each in created:
                    if each is not named:  # other middleware has replaced or repeated it, or the call failed
                        await serving.streams.cancel_abandoned(each.task.owner, each.task.task_id)
        if named is not None:
            self._promise_poll(named, serving)
            if ctx.protocol_version == PROTOCOL_2025:
                token = wire.meta_of(ctx).get("progressToken")
                Session.of(ctx).follow(ctx, named.task, serving.streams, token)
        if requested is None:
            return result
        if task:
            return {"task": task}
        _raise_refusal(answer)
        return result


def _with_task_support(answer: JsonObject, durable: Mapping[str, DurableTool]) -> JsonObject:
    tools = [
        {**tool, "execution": {"taskSupport": durable[tool["name"]].mode}}
        if tool["name"] in durable
        else tool
        for tool in answer.get("tools", ())
    ]
    return {**answer, "tools": tools}


def _raise_refusal(result: JsonObject) -> None:
    """Raise the error that a result reports: a client that requests a task cannot read a result instead."""
    text = wire.error_text(result)
    if text is not None:
        raise MCPError(INVALID_PARAMS, text)


def _check_name_header(ctx: RequestContext, task_id: str) -> None:
    """Raise if the header names another task than the body. A missing header is tolerated."""
    header = headers_of(ctx).get(NAME_HEADER) if ctx.protocol_version == PROTOCOL_2026 else None
    if header is not None and decode_header_value(header) != task_id:
        raise header_mismatch("Mcp-Name")
