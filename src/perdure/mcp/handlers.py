"""The handlers of `tasks/*`, and middleware for requests that the SDK offers no other way to intercept.

Each handler reads its parameters, calls the runtime, and writes the answer in the protocol of the client.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from types import CoroutineType
from typing import Any, ParamSpec, TypeVar

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, SERVER_INFO_META_KEY, RequestParams

from ..runtime import Runtime
from ..runtime.attendance import cancel_abandoned
from ..storage.errors import PerdureError
from ..tasks import Owner, Snapshot, Status
from ..tasks.errors import NotFound, TerminalTask
from . import hand_over, wire
from .adapters import ServerAdapter, request_key
from .errors import missing_capability, not_running, to_mcp_error
from .identity import Identity, headers_of
from .streams import Streams, Subscription, subscription_result
from .task_stream import Session, TaskStream, follow_in_session
from .tool import DurableTool
from .wire import PROTOCOL_2025, PROTOCOL_2026, JsonObject, RequestContext, as_object

log = logging.getLogger("perdure.mcp")

P = ParamSpec("P")
R = TypeVar("R")

BOTH, ONLY_2026, ONLY_2025 = {PROTOCOL_2026, PROTOCOL_2025}, {PROTOCOL_2026}, {PROTOCOL_2025}
NAME_HEADER = "mcp-name"
EARLY_POLL_DELAY = 0.25
"""Seconds for which the answer to a poll is delayed if the poll comes earlier than advised."""
MAX_REMEMBERED_POLLS = 8192
MAX_POLLERS = 4
"""Maximum number of clients that can poll the same task at the advised times without being delayed."""


class PollLimiter:
    """Remembers when this process has advised clients to poll each task again.

    The protocols allow a server to slow down clients that poll too often. The answer to an early poll is
    delayed for a short time, or until the task changes. So the client sends fewer requests, and notices the
    end of the task no later. Clients that follow the advice are not delayed, unless more than `MAX_POLLERS`
    clients poll the same task.
    """

    def __init__(self) -> None:
        self._due: OrderedDict[str, deque[float]] = OrderedDict()
        """For each task, the times of advised polls that have not come yet, earliest first."""

    def promise(self, task_id: str, interval_ms: int) -> None:
        """Record that a client was advised to poll again after this interval."""
        due = self._due.setdefault(task_id, deque())
        if len(due) < MAX_POLLERS:
            due.append(anyio.current_time() + interval_ms / 1000)
        self._due.move_to_end(task_id)
        if len(self._due) > MAX_REMEMBERED_POLLS:
            self._due.popitem(last=False)

    def comes_early(self, task_id: str) -> bool:
        """Return whether a poll that comes now is earlier than advised.

        If it is not, remove the earliest advised time, because the poll was advised for this time.
        """
        due = self._due.get(task_id)
        if not due:
            return False
        is_early = anyio.current_time() < due[0]
        if not is_early:
            due.popleft()
        return is_early


def raises_mcp_errors(
    method: Callable[P, CoroutineType[Any, Any, R]],
) -> Callable[P, CoroutineType[Any, Any, R]]:
    """Make a coroutine function raise JSON-RPC errors in place of errors of perdure."""

    @wraps(method)
    async def convert(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(*args, **kwargs)
        except MCPError:
            raise
        except PerdureError as error:
            raise to_mcp_error(error) from error

    return convert


class Handlers:
    """Handles the requests of a server with tasks."""

    def __init__(self, identity: Identity, hand_over_after: float | None) -> None:
        self._identity = identity
        self.hand_over_after = hand_over_after
        """Seconds after which calls of clients without tasks are handed over. None if such calls wait."""
        self.tools: dict[str, DurableTool] = {}
        """The durable functions by name, whether they are tools of the server or not."""
        self.adapter: ServerAdapter | None = None
        """The adapter of the server. None before the server has started."""
        self.running: Streams | None = None
        """The open streams of the server. None if the server is not running."""
        self._polls = PollLimiter()
        self._created: dict[int, list[Snapshot]] = {}
        """For each request key, the tasks created by a call that has not been answered yet."""
        self._methods = {
            "tasks/get": (self.get, BOTH),
            "tasks/cancel": (self.cancel, BOTH),
            "tasks/update": (self.update, ONLY_2026),
            "tasks/list": (self.list, ONLY_2025),
            "tasks/result": (self.result, ONLY_2025),
        }
        """The handler of each method, and the versions that have it."""
        self.is_bound = False
        """Whether the server has received the handlers."""

    @property
    def streams(self) -> Streams:
        if self.running is None:
            raise not_running()
        return self.running

    @property
    def runtime(self) -> Runtime:
        return self.streams.runtime

    def bindings(self) -> Sequence[MethodBinding]:
        self.is_bound = True
        return [
            MethodBinding(method, RequestParams, raises_mcp_errors(handler))
            for method, (handler, _) in self._methods.items()
        ]

    # Methods

    async def get(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner, task_id = await self._task_named_by(ctx)
        runtime = self.runtime
        snapshot = await runtime.get(owner, task_id)
        if not snapshot.task.is_terminal:
            if self._polls.comes_early(snapshot.task.task_id):
                snapshot = await runtime.later(owner, snapshot, EARLY_POLL_DELAY)
            self._promise_poll(snapshot, runtime)
        now = runtime.store.clock()
        if ctx.protocol_version == PROTOCOL_2026:
            return {"resultType": "complete", **wire.task_2026(snapshot.task, now)}
        if snapshot.task.status is Status.INPUT_REQUIRED:  # a client that only polls is asked in its session
            follow_in_session(ctx, snapshot.task, self.streams).poll()
        return wire.task_2025(snapshot.task, now)

    def _promise_poll(self, snapshot: Snapshot, runtime: Runtime) -> None:
        interval = wire.poll_interval_ms(snapshot.task, runtime.store.clock())
        self._polls.promise(snapshot.task.task_id, interval)

    async def cancel(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner, task_id = await self._task_named_by(ctx)
        runtime = self.runtime
        if ctx.protocol_version == PROTOCOL_2026:
            with suppress(TerminalTask):  # the task has ended, as the client wants
                await runtime.cancel(owner, task_id)
            return {"resultType": "complete"}
        try:
            cancelled = await runtime.cancel_now(owner, task_id)
        except TerminalTask as error:
            ended = wire.task_2025((await runtime.get(owner, task_id)).task, self.runtime.store.clock())
            problem = f"the task has the status {ended['status']} and can no longer be cancelled"
            raise MCPError(INVALID_PARAMS, problem) from error
        return wire.task_2025(cancelled.task, self.runtime.store.clock())

    async def update(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        """Store answers and variables. Ignore them if the task has ended."""
        owner = self._identity.owner_of(ctx)
        if not wire.declares_tasks(ctx.params):
            raise missing_capability()
        update = wire.decode(ctx.params, wire.UpdateParams)
        _check_name_header(ctx, update.task_id)
        answers, variables = update.input_responses, update.meta.variables or {}
        runtime = self.runtime
        if answers or variables:
            with suppress(TerminalTask):
                await runtime.answer(owner, update.task_id, answers, variables)
        else:
            await runtime.get(owner, update.task_id)
        return {"resultType": "complete"}

    async def list(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner = self._identity.owner_of(ctx)
        if owner.is_anonymous:  # all such callers are one owner
            raise MCPError(METHOD_NOT_FOUND, "Method not found", "tasks/list")
        cursor = wire.decode(ctx.params, wire.ListParams).cursor
        page = await self.runtime.store.list(owner, cursor=cursor, newest_first=True)
        for error in page.not_readable:
            log.warning("a task was left out of tasks/list: %s", error)
        now = self.runtime.store.clock()
        answer: JsonObject = {"tasks": [wire.task_2025(snapshot.task, now) for snapshot in page.tasks]}
        if page.next_cursor is not None:
            answer["nextCursor"] = page.next_cursor
        return answer

    async def result(self, ctx: RequestContext, _: RequestParams) -> HandlerResult:
        owner, task_id = await self._task_named_by(ctx)
        task = await TaskStream(ctx, owner, self.streams).wait(task_id)
        return wire.result_2025(task, wire.result_or_raise(task))

    async def _task_named_by(self, ctx: RequestContext) -> tuple[Owner, str]:
        """Return the caller and the id of the task that a request names.

        A client of 2026-07-28 must declare the tasks extension. For a task that was created at 2025-11-25, it
        can instead declare the tasks capability of that version.
        """
        owner = self._identity.owner_of(ctx)
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
            return wire.protocol_of((await self.runtime.get(owner, task_id)).task.meta) == PROTOCOL_2025
        return False

    # Middleware

    async def middleware(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Handle requests that the SDK offers no other way to intercept, and pass on all others."""
        if ctx.request_id is None:  # a notification
            return await call_next(ctx)
        try:
            return await self._serve(ctx, call_next)
        finally:
            self._identity.forget(ctx)

    async def _serve(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        if ctx.method in self._methods and ctx.protocol_version not in self._methods[ctx.method][1]:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if self._identity.may_refuse:
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
            self._identity.owner_of(ctx)
        elif ctx.method == "tools/call":
            name, adapter = (ctx.params or {}).get("name"), self.adapter
            if adapter is None or not isinstance(name, str):
                return
            if await adapter.find(name, wire.meta_of(ctx)) is not None:
                self._identity.owner_of(ctx)

    @raises_mcp_errors
    async def _listen(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        notifications = as_object((ctx.params or {}).get("notifications"))
        streams = self.streams
        if "taskIds" not in notifications:
            with streams.open():
                return await call_next(ctx)
            return self._stamp(subscription_result(ctx))
        owner = self._identity.owner_of(ctx)
        if not wire.declares_tasks(ctx.params):
            raise missing_capability()
        task_ids = wire.decode(notifications, wire.ListenParams, "$.notifications").task_ids
        has_others = any(value for kind, value in notifications.items() if kind != "taskIds")
        result = await Subscription(ctx, owner, task_ids, streams).serve(call_next, has_others=has_others)
        return self._stamp(wire.dump_result(result))

    def _stamp(self, result: JsonObject) -> JsonObject:
        """Add the name of the server to a result of 2026-07-28 that the SDK does not send."""
        adapter = self.adapter
        stamp = {} if adapter is None else {SERVER_INFO_META_KEY: wire.dump_result(adapter.info)}
        return {**result, "_meta": {**as_object(result.get("_meta")), **stamp}}

    def _add_capability(self, ctx: RequestContext, result: HandlerResult) -> HandlerResult:
        """Advertise tasks at 2025-11-25, which has no extensions."""
        answer = wire.dump_result(result)
        if answer.get("protocolVersion") != PROTOCOL_2025 or not self.tools:
            return result
        tasks: JsonObject = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        if self._identity.may_list_tasks(ctx):
            tasks["list"] = {}
        return {**answer, "capabilities": {**as_object(answer.get("capabilities")), "tasks": tasks}}

    async def _list_tools(self, ctx: RequestContext, result: HandlerResult) -> HandlerResult:
        """Mark the tools that can be tasks (at 2025-11-25). Show clients without tasks the added tools."""
        answer, adapter = wire.dump_result(result), self.adapter
        is_2025, hands_over = ctx.protocol_version == PROTOCOL_2025, self.hand_over_after is not None
        if not answer or adapter is None or not (is_2025 or hands_over):
            return result
        durable = {name: tool for name, tool in (await adapter.tools()).items() if tool is not None}
        if is_2025:
            answer = _with_task_support(answer, durable)
        if not hands_over:
            return answer
        if answer.get("cacheScope") == "public":  # the list depends on the client
            answer["cacheScope"] = "private"
        return hand_over.list_tools(answer, durable) if wire.is_without_tasks(ctx) else answer

    # Calls that became tasks

    def remember_created(self, ctx: RequestContext, snapshot: Snapshot) -> None:
        """Record that a call has created a task, which the answer to the call must name."""
        self._created[request_key(ctx)].append(snapshot)

    async def _answer_call(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Check that the answer names the task that the call created. If not, cancel the unknown task."""
        # without durable tools, tasks are not advertised, and a request for one must be ignored
        requested = wire.requested_task(ctx) if self.tools else None  # raises -32602 if it is invalid
        streams = self.running  # if the server stops, the call ends with these streams
        named = None
        created = self._created[request_key(ctx)] = list[Snapshot]()
        try:
            result = await call_next(ctx)
            answer = wire.dump_result(result) if created or requested is not None else {}
            task = wire.created_task(answer) if ctx.protocol_version == PROTOCOL_2025 else answer
            for each in created:
                named = each if each.task.task_id == task.get("taskId") else named
        finally:
            del self._created[request_key(ctx)]
            # tasks whose call other middleware has replaced or repeated, or all tasks if the call failed
            abandoned = [each for each in created if each is not named]
            if streams is not None and abandoned and wire.idempotency_key_of(wire.meta_of(ctx)) is None:
                for each in abandoned:  # with a key, the client can repeat the call
                    await cancel_abandoned(streams.runtime, each.task.owner, each.task.task_id)
        if streams is not None and named is not None:
            self._promise_poll(named, streams.runtime)
            if ctx.protocol_version == PROTOCOL_2025:
                follow_in_session(ctx, named.task, streams, wire.meta_of(ctx).get("progressToken"))
        # the first durable tool may have been added during the call
        is_requested = requested is not None or (named and ctx.protocol_version == PROTOCOL_2025)
        if is_requested and task:
            return {"task": task}
        if is_requested and not created:
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
    """Raise the error that a result reports, because a client that requested a task cannot read a result."""
    text = wire.error_text(result)
    if text is not None:
        raise MCPError(INVALID_PARAMS, text)


def _check_name_header(ctx: RequestContext, task_id: str) -> None:
    """Raise if the header names another task than the body. A missing header is tolerated."""
    header = headers_of(ctx).get(NAME_HEADER) if ctx.protocol_version == PROTOCOL_2026 else None
    if header is not None and decode_header_value(header) != task_id:
        problem = "Mcp-Name header does not match the request body's 'taskId' parameter"
        raise MCPError(HEADER_MISMATCH, problem)
