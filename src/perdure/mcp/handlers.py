"""The handlers of `tasks/*`, and the middleware for what the SDK has no other seam for.

Each handler reads its parameters, calls the runtime, and writes the answer in the protocol of the client.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

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
from .adapters import ServerAdapter
from .errors import header_mismatch, missing_capability, to_mcp_error
from .identity import Identity, headers_of
from .streams import OpenStreams, StatusNotifier, Subscription, TaskStream, subscription_result
from .wire import (
    PROTOCOL_2025,
    PROTOCOL_2026,
    JsonObject,
    ListenParams,
    ListParams,
    RequestContext,
    TaskParams,
    UpdateParams,
    as_object,
    declares_tasks,
    declares_tasks_of_2025,
    decode,
    dump_result,
    error_text,
    idempotency_key_of,
    lift_task,
    meta_of,
    poll_interval_ms,
    protocol_of,
    requested_task,
    result_2025,
    result_or_raise,
    task_2025,
    task_2026,
)

log = logging.getLogger("perdure.mcp")

P = ParamSpec("P")
R = TypeVar("R")

NAME_HEADER = "mcp-name"
EARLY_POLL_DELAY = 0.25
"""Seconds for which the answer to a poll is delayed that comes earlier than it was advised."""
MAX_REMEMBERED_POLLS = 8192


class Serving(Protocol):
    """A server with tasks, as its request handlers see it."""

    @property
    def has_tools(self) -> bool:
        """Whether there are durable functions."""
        ...

    @property
    def adapter(self) -> ServerAdapter | None:
        """None before the server has started."""
        ...

    @property
    def runtime(self) -> Runtime:
        """Raise MCPError if the server does not run."""
        ...

    @property
    def streams(self) -> OpenStreams: ...

    @property
    def notifier(self) -> StatusNotifier:
        """Raise MCPError if the server does not run."""
        ...

    def start_soon(self, function: Callable[..., Awaitable[None]], /, *args: object) -> None:
        """Run a function in the background, until it returns or the server stops."""
        ...


class PollLimiter:
    """When clients were advised to poll each task again, by this process.

    The protocols allow a server to slow down clients that poll too often. The answer to an early poll is
    delayed until the task changes, or for a short time: the client learns of the end no later, and with fewer
    requests. A client that follows the advice is never delayed.
    """

    def __init__(self) -> None:
        self._due: OrderedDict[str, float] = OrderedDict()

    def promise(self, task_id: str, interval_ms: int) -> None:
        """Note that a client is advised to poll after this interval."""
        self._due[task_id] = time.monotonic() + interval_ms / 1000
        self._due.move_to_end(task_id)
        if len(self._due) > MAX_REMEMBERED_POLLS:
            self._due.popitem(last=False)

    def is_early(self, task_id: str) -> bool:
        due = self._due.get(task_id)
        return due is not None and time.monotonic() < due


def raises_mcp_errors(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
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
        self._created: WeakKeyDictionary[ServerSession, list[Snapshot]] = WeakKeyDictionary()
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
        owner = self._identity.caller_of(ctx).owner
        task_id = _task_id(ctx)
        await self._require_declaration(ctx, owner, task_id)
        snapshot = await self._serving.runtime.get(owner, task_id)
        if not snapshot.task.is_terminal:
            snapshot = await self._read_when_due(owner, snapshot)
        now = self._now()
        if ctx.protocol_version == PROTOCOL_2026:
            return {"resultType": "complete", **task_2026(snapshot.task, now)}
        if snapshot.task.status is Status.INPUT_REQUIRED:  # a client that only polls is asked in its session
            self._serving.notifier.poll(ctx, snapshot)
        return task_2025(snapshot.task, now)

    async def _read_when_due(self, owner: Owner, snapshot: Snapshot) -> Snapshot:
        """Return the task; a moment later, if it is polled earlier than was advised and does not change."""
        task_id = snapshot.task.task_id
        if self._polls.is_early(task_id):
            snapshot = await self._serving.runtime.later(owner, snapshot, EARLY_POLL_DELAY)
        self._promise_poll(snapshot)
        return snapshot

    async def cancel(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner = self._identity.caller_of(ctx).owner
        task_id = _task_id(ctx)
        await self._require_declaration(ctx, owner, task_id)
        runtime = self._serving.runtime
        if ctx.protocol_version == PROTOCOL_2026:
            with suppress(TerminalTask):  # it has ended, as the client wishes
                await runtime.cancel(owner, task_id)
            return {"resultType": "complete"}
        try:
            cancelled = await runtime.cancel_now(owner, task_id)
        except TerminalTask as error:
            ended = task_2025((await runtime.get(owner, task_id)).task, self._now())
            raise MCPError(INVALID_PARAMS, f"the task is {ended['status']}, which is final") from error
        return task_2025(cancelled.task, self._now())

    async def update(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner = self._identity.caller_of(ctx).owner
        if not declares_tasks(ctx.params):
            raise missing_capability()
        update = decode(ctx.params, UpdateParams)
        _check_name_header(ctx, update.task_id)
        await self.answer(owner, update.task_id, update)
        return {"resultType": "complete"}

    async def answer(self, owner: Owner, task_id: str, update: UpdateParams) -> None:
        """Store answers and variables. They are ignored if the task has ended, perhaps by other answers."""
        if not (update.input_responses or update.variables):
            await self._serving.runtime.get(owner, task_id)
            return
        with suppress(TerminalTask):
            await self._serving.runtime.answer(owner, task_id, update.input_responses, update.variables)

    async def list(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        caller = self._identity.caller_of(ctx)
        if not caller.can_list_tasks:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", "tasks/list")
        cursor = decode(ctx.params, ListParams).cursor
        page = await self._serving.runtime.store.list(caller.owner, cursor=cursor, newest_first=True)
        for error in page.newer:
            log.warning("left out of tasks/list: %s", error)
        now = self._now()
        answer: JsonObject = {"tasks": [task_2025(snapshot.task, now) for snapshot in page.tasks]}
        if page.next_cursor is not None:
            answer["nextCursor"] = page.next_cursor
        return answer

    async def result(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner = self._identity.caller_of(ctx).owner
        stream = self.stream(ctx, owner, names_task=True)
        task = (await stream.wait(_task_id(ctx))).task
        return result_2025(task, result_or_raise(task.outcome))

    def stream(self, ctx: RequestContext, owner: Owner, *, names_task: bool) -> TaskStream:
        """Return the stream of a request that waits for a task."""
        serving = self._serving
        return TaskStream(ctx, serving.runtime, owner, names_task=names_task, streams=serving.streams)

    async def _require_declaration(self, ctx: RequestContext, owner: Owner, task_id: str) -> None:
        """Raise -32021 if the client of 2026-07-28 declares tasks of 2025-11-25 only, and this is not one."""
        if not _lacks_extension(ctx):
            return
        with suppress(NotFound):
            task = (await self._serving.runtime.get(owner, task_id)).task
            if protocol_of(task.meta) == PROTOCOL_2025:
                return
        raise missing_capability()

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
                self._serving.streams.set_level(ctx, (ctx.params or {}).get("level"))
                return await call_next(ctx)
            case "initialize", _:
                return self._add_capability(ctx, await call_next(ctx))
            case "tools/list", version if version == PROTOCOL_2025:
                return await self._add_task_support(await call_next(ctx))
            case _:
                return await call_next(ctx)

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
        if not declares_tasks(ctx.params):
            raise missing_capability()
        task_ids = decode(notifications, ListenParams, "$.notifications").task_ids
        subscription = Subscription(ctx, self._serving.runtime, owner, task_ids, streams)
        has_others = any(value for kind, value in notifications.items() if kind != "taskIds")
        return self._stamp(dump_result(await subscription.serve(call_next, has_others=has_others)))

    def _stamp(self, result: JsonObject) -> JsonObject:
        """Add the name of the server to a result of 2026-07-28 that the SDK does not send."""
        adapter = self._serving.adapter
        stamp = {} if adapter is None else {SERVER_INFO_META_KEY: adapter.info_stamp}
        return {**result, "_meta": {**as_object(result.get("_meta")), **stamp}}

    def _add_capability(self, ctx: RequestContext, result: HandlerResult) -> HandlerResult:
        """Advertise tasks at 2025-11-25, which has no extensions."""
        answer = as_object(result)
        if answer.get("protocolVersion") != PROTOCOL_2025 or not self._serving.has_tools:
            return result
        tasks: JsonObject = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        if self._identity.may_list_tasks(ctx):
            tasks["list"] = {}
        return {**answer, "capabilities": {**as_object(answer.get("capabilities")), "tasks": tasks}}

    async def _add_task_support(self, result: HandlerResult) -> HandlerResult:
        answer, adapter = as_object(result), self._serving.adapter
        if not answer or adapter is None:
            return result
        durable = await adapter.durable_tools()
        tools = [
            {**tool, "execution": {"taskSupport": durable[tool["name"]].mode}}
            if tool["name"] in durable
            else tool
            for tool in answer.get("tools", ())
        ]
        return {**answer, "tools": tools}

    # Calls that became tasks

    def remember_created(self, ctx: RequestContext, snapshot: Snapshot) -> None:
        """Note that a call created a task, which its answer will name."""
        self._created.setdefault(ctx.session, []).append(snapshot)

    async def _answer_call(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Make sure that the answer names the task that the call created. Else no client knows the task."""
        requested = requested_task(ctx)  # raises -32602 with the field that is wrong
        try:
            result = await call_next(ctx)
        except BaseException:
            await self._cancel_created(ctx)
            raise
        lifted = lift_task(result) if ctx.protocol_version == PROTOCOL_2025 else None
        task = lifted["task"] if lifted is not None else as_object(result)
        task_id = as_object(task).get("taskId")
        created = next(
            (each for each in self._created.get(ctx.session, ()) if each.task.task_id == task_id), None
        )
        await self._cancel_created(ctx, keep=created)  # those that other middleware has replaced or repeated
        if created is not None:
            self._promise_poll(created)
            if ctx.protocol_version == PROTOCOL_2025:
                self._serving.notifier.follow(ctx, created, meta_of(ctx).get("progressToken"))
        if lifted is not None:
            return lifted
        if requested is not None:
            _raise_refusal(result)
        return result

    async def _cancel_created(self, ctx: RequestContext, keep: Snapshot | None = None) -> None:
        """Cancel the tasks that a call created. With an idempotency key, the client can repeat the call."""
        created = self._created.pop(ctx.session, [])
        if idempotency_key_of(meta_of(ctx)) is not None:
            return
        for task in (each.task for each in created if each is not keep):
            with anyio.CancelScope(shield=True), suppress(PerdureError):
                await self._serving.runtime.cancel(task.owner, task.task_id)

    def _promise_poll(self, snapshot: Snapshot) -> None:
        task = snapshot.task
        self._polls.promise(task.task_id, poll_interval_ms(task, self._now()))

    def _now(self) -> Micros:
        return self._serving.runtime.store.clock()


def _raise_refusal(result: HandlerResult) -> None:
    """Raise the error that a result reports: a client that requests a task cannot read a result instead."""
    text = error_text(dump_result(result))
    if text is not None:
        raise MCPError(INVALID_PARAMS, text)


def _task_id(ctx: RequestContext) -> str:
    """Return the id of the task that a request names.

    A client of 2026-07-28 must declare the extension, or the tasks of 2025-11-25 for a task of that protocol.
    """
    if _lacks_extension(ctx) and not declares_tasks_of_2025(ctx.params):
        raise missing_capability()
    task_id = decode(ctx.params, TaskParams).task_id
    _check_name_header(ctx, task_id)
    return task_id


def _lacks_extension(ctx: RequestContext) -> bool:
    return ctx.protocol_version == PROTOCOL_2026 and not declares_tasks(ctx.params)


def _check_name_header(ctx: RequestContext, task_id: str) -> None:
    """Raise if the header names another task than the body. A missing header is tolerated."""
    header = headers_of(ctx).get(NAME_HEADER) if ctx.protocol_version == PROTOCOL_2026 else None
    if header is not None and decode_header_value(header) != task_id:
        raise header_mismatch("Mcp-Name")
