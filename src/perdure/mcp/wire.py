"""The messages of both task protocols: their versions and keys, parameters, tasks, and capabilities.

2026-07-28 has tasks as an extension, 2025-11-25 in its core. A `ttl` of null is always sent: it means that
the task never expires. The functions in this module are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, RootModel

from ..runtime import telemetry
from ..storage import Micros
from ..tasks import Failure, LogEntry, Status, Success, TaskRecord, expiry_and_deadlines
from ..tasks.config import MIN_POLL_INTERVAL_MS
from ..tasks.inputs import Capability, Input
from ..tasks.secret_contents import SecretContents
from ..tasks.task_log import Report

T = TypeVar("T")

JsonObject: TypeAlias = dict[str, Any]
RequestContext: TypeAlias = ServerRequestContext[Any, Any]

PROTOCOL_2026 = "2026-07-28"
PROTOCOL_2025 = "2025-11-25"
"""The only version with tasks in its core."""

EXTENSION = "io.modelcontextprotocol/tasks"
"""The identifier of the tasks extension, which clients of 2026-07-28 declare with every request."""
RELATED_TASK = "io.modelcontextprotocol/related-task"

IDEMPOTENCY_KEY = "perdure/idempotencyKey"
"""In `_meta` of a call: a repeated call with the same key returns the same task."""
VARIABLES = "perdure/variables"
"""In `_meta` of a task: its variables."""
PROGRESS = "perdure/progress"
"""In `_meta` of a task: its progress."""
CREATED_TASK = "perdure/task"
"""In `_meta` of a result at 2025-11-25: the task of the call. Middleware of perdure moves it."""
REQUEST_ID = "perdure/requestId"
"""In the stored `_meta` of a call: the id of the request."""

WAITING_STATE_PREFIX = "perdure/task:"
"""The start of the `requestState` of a call that waits for a task which its client does not know."""

REQUEST_META_KEYS = frozenset(
    {types.CLIENT_CAPABILITIES_META_KEY, types.PROTOCOL_VERSION_META_KEY, "progressToken"}
)
"""The keys of `_meta` that belong to one request, and not to the task that it becomes."""

POLLS_PER_AGE = 6
"""The advised poll interval is the age of the task divided by this number, within limits."""


# Parameters


class TaskParams(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of `tasks/get`, `tasks/cancel` and `tasks/result`."""

    task_id: str


class UpdateMeta(msgspec.Struct, frozen=True):
    """The `_meta` of `tasks/update`, as far as it concerns tasks."""

    variables: dict[str, Any] | None = msgspec.field(default=None, name=VARIABLES)


class UpdateParams(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of `tasks/update`."""

    task_id: str
    input_responses: dict[str, Any]
    meta: UpdateMeta = msgspec.field(default=UpdateMeta(), name="_meta")


class CallMeta(msgspec.Struct, frozen=True):
    """The `_meta` of `tools/call`, as far as it concerns tasks."""

    idempotency_key: str | None = msgspec.field(default=None, name=IDEMPOTENCY_KEY)


class ListParams(msgspec.Struct, frozen=True):
    """The parameters of `tasks/list`."""

    cursor: str | None = None


class TaskRequest(msgspec.Struct, frozen=True):
    """`params.task` of a call at 2025-11-25: the client requests a task."""

    ttl: float | UnsetType | None = UNSET

    @property
    def ttl_ms(self) -> int | UnsetType | None:
        if not isinstance(self.ttl, float):
            return self.ttl
        if not self.ttl.is_integer():
            raise MCPError(
                types.INVALID_PARAMS, "Expected an integer number of milliseconds - at `$.task.ttl`"
            )
        return int(self.ttl)


class ListenParams(msgspec.Struct, frozen=True, rename="camel"):
    """The `notifications` of `subscriptions/listen`, as far as they concern tasks."""

    task_ids: list[str] = []


def decode(params: object, type_: type[T], at: str = "$") -> T:
    """Decode parameters of this type. Raise MCPError with the code -32602 if a field is invalid."""
    is_object = params is None or isinstance(params, dict)
    if not is_object:
        raise MCPError(types.INVALID_PARAMS, f"Expected `object` - at `{at}`")
    try:
        return msgspec.convert(params or {}, type_)
    except msgspec.ValidationError as error:
        raise MCPError(types.INVALID_PARAMS, str(error).replace("`$", f"`{at}", 1)) from error
    except UnicodeEncodeError as error:
        raise MCPError(types.INVALID_PARAMS, f"Expected names that are valid Unicode - at `{at}`") from error
    except RecursionError as error:
        raise MCPError(types.INVALID_PARAMS, f"Nested too deeply - at `{at}`") from error


def declares_tasks(params: Mapping[str, Any] | None) -> bool:
    """Return whether the client of 2026-07-28 declares, with this request, that it understands tasks."""
    return isinstance(as_object(_declared(params).get("extensions")).get(EXTENSION), dict)


def declares_tasks_of_2025(params: Mapping[str, Any] | None) -> bool:
    """Return whether the client of 2026-07-28 declares the capability that 2025-11-25 has for tasks."""
    return isinstance(_declared(params).get("tasks"), dict)


def is_without_tasks(ctx: RequestContext) -> bool:
    """Return whether the client of a request declares no tasks, and does not request one.

    A client of 2025-11-25 declares them in `initialize`, and one of an earlier version never does.
    """
    if ctx.protocol_version == PROTOCOL_2026:
        return not declares_tasks(ctx.params)
    declared = ctx.session.client_capabilities if ctx.protocol_version == PROTOCOL_2025 else None
    return (declared is None or declared.tasks is None) and requested_task(ctx) is None


def _declared(params: Mapping[str, Any] | None) -> JsonObject:
    return as_object(as_object((params or {}).get("_meta")).get(types.CLIENT_CAPABILITIES_META_KEY))


def requested_task(ctx: RequestContext) -> TaskRequest | None:
    """Return what the client requests for its task, or None if it does not request one.

    Only clients of 2025-11-25 request tasks.
    """
    task = (ctx.params or {}).get("task") if ctx.protocol_version == PROTOCOL_2025 else None
    return None if task is None else decode(task, TaskRequest, "$.task")


def meta_of(ctx: RequestContext) -> JsonObject:
    return as_object((ctx.params or {}).get("_meta"))


def idempotency_key_of(meta: Mapping[str, Any]) -> str | None:
    return decode(meta, CallMeta, "$._meta").idempotency_key


def as_object(value: object) -> JsonObject:
    """Return a JSON object as a new dict. Return an empty dict for any other value."""
    return {**value} if isinstance(value, dict) else {}


# What is stored of a call


class StoredCall(SecretContents, frozen=True, rename="camel", omit_defaults=True):
    """A call as it is stored, so that a worker can make it again."""

    shown_in_repr = ("name",)

    name: str
    arguments: dict[str, Any] | None = None
    input_responses: dict[str, Any] | None = None
    request_state: str | None = None

    @classmethod
    def of(
        cls, params: types.CallToolRequestParams, ctx: RequestContext, arguments: dict[str, Any] | None
    ) -> StoredCall:
        """Return the call of a client with `arguments`, which middleware may have changed."""
        responses = (ctx.params or {}).get("inputResponses")
        return cls(params.name, arguments, responses, params.request_state)


def stored_meta(ctx: RequestContext, meta: JsonObject) -> JsonObject:
    """Return what the task keeps of the `_meta` of its call, with the version and the id of the request."""
    kept = {name: value for name, value in meta.items() if name not in REQUEST_META_KEYS}
    if ctx.session.client_params is not None:  # at 2025-11-25, the client sent it in `initialize`
        info = dump_result(ctx.session.client_params.client_info)
        info.pop("icons", None)  # which may be large
        kept[types.CLIENT_INFO_META_KEY] = info
    return {**kept, types.PROTOCOL_VERSION_META_KEY: ctx.protocol_version, REQUEST_ID: ctx.request_id}


def protocol_of(meta: object) -> str:
    """Return the version of the call that became a task, from its stored `_meta`."""
    version = as_object(meta).get(types.PROTOCOL_VERSION_META_KEY)
    return version if isinstance(version, str) else PROTOCOL_2026


# Capabilities: what a client can be asked

_DECLARATIONS: dict[Capability, JsonObject] = {
    Capability.FORM: {"elicitation": {"form": {}}},
    Capability.URL: {"elicitation": {"url": {}}},
    Capability.SAMPLING: {"sampling": {}},
    Capability.SAMPLING_TOOLS: {"sampling": {"tools": {}}},
    Capability.ROOTS: {"roots": {}},
}
"""How a client declares each capability."""


def capabilities_of(ctx: RequestContext) -> tuple[Capability, ...]:
    """Return what the client of a request can be asked."""
    declared = dump_result(ctx.session.client_capabilities)
    modes = declared.get("elicitation")
    if modes is not None and "url" not in modes:  # older clients declare no modes
        modes["form"] = {}
    return tuple(
        capability
        for capability, wanted in _DECLARATIONS.items()
        if all(name in declared and wanted[name].keys() <= declared[name].keys() for name in wanted)
    )


def client_capabilities(capabilities: Iterable[str]) -> JsonObject:
    """Return these capabilities as a client declares them."""
    declared: JsonObject = {}
    for capability in capabilities:
        for name, value in _DECLARATIONS[Capability(capability)].items():
            declared[name] = {**declared.get(name, {}), **value}
    return declared


# Tasks of 2026-07-28


def create_task_result(task: TaskRecord, now: Micros) -> JsonObject:
    """Return the answer to a call that became a task."""
    return {"resultType": "task", **_fields_2026(task, now)}


def task_2026(task: TaskRecord, now: Micros) -> JsonObject:
    """Return a task as `tasks/get` and `notifications/tasks` send it, with its questions, result or error."""
    shape = {**_fields_2026(task, now), **_meta(task)}
    if shape["status"] == Status.INPUT_REQUIRED:
        shape["inputRequests"] = {key: input_request(asked) for key, asked in task.questions.items()}
    match task.outcome:
        case Success() as success if task.status is Status.COMPLETED:
            shape["result"] = result_2026(success)
        case Failure() as failure if task.status is Status.FAILED:
            shape["error"] = json_rpc_error(failure)
        case _:
            pass
    return shape


def _fields_2026(task: TaskRecord, now: Micros) -> JsonObject:
    return {
        **_fields(task),
        "ttlMs": expiry_and_deadlines.client_ttl_ms(task, now),
        "pollIntervalMs": poll_interval_ms(task, now),
    }


def input_request(asked: Input) -> JsonObject:
    """Return a question as the request that a server sends."""
    shape: JsonObject = {"method": asked.kind.value}
    if asked.params is not None:
        shape["params"] = asked.params
    return shape


def input_required(task: TaskRecord, asked: Mapping[str, Input]) -> JsonObject:
    """Return the questions of a round of a call that waits for a task which its client does not know."""
    return {
        "resultType": "input_required",
        "inputRequests": {key: input_request(each) for key, each in asked.items()},
        "requestState": f"{WAITING_STATE_PREFIX}{task.task_id}/{task.log.total}",
    }


def waiting_task(request_state: str | None) -> str | None:
    """Return the id of the task for which a call waits, from the `requestState` of its last round."""
    state = request_state or ""
    if not state.startswith(WAITING_STATE_PREFIX):
        return None
    return state.removeprefix(WAITING_STATE_PREFIX).partition("/")[0]


def received_log_entries(ctx: RequestContext) -> int:
    """Return how many log entries of the task the earlier rounds of a waiting call have received."""
    state = (ctx.params or {}).get("requestState")
    if not isinstance(state, str) or waiting_task(state) is None:
        return 0
    try:
        return int(state.rpartition("/")[2])
    except ValueError:  # low-level servers do not seal the state, so a client may have changed it
        return 0


def result_2026(success: Success) -> JsonObject:
    """Return the result of a call as a response of 2026-07-28."""
    return {"resultType": "complete", **as_object(success.value)}


def json_rpc_error(failure: Failure) -> JsonObject:
    shape: JsonObject = {"code": failure.code, "message": failure.message}
    if not isinstance(failure.data_json, UnsetType):
        shape["data"] = failure.data
    return shape


# Tasks of 2025-11-25


def task_2025(task: TaskRecord, now: Micros) -> JsonObject:
    """Return a task of 2025-11-25, where a call whose result reports an error has failed."""
    ttl = expiry_and_deadlines.client_ttl_ms(task, now)
    shape = {**_fields(task), "ttl": ttl, "pollInterval": poll_interval_ms(task, now), **_meta(task)}
    if task.is_error:
        shape["status"] = Status.FAILED.value
    return shape


def result_2025(task: TaskRecord, success: Success) -> JsonObject:
    """Return what the call would have returned, with the id of its task."""
    shape = as_object(success.value)
    return {**shape, "_meta": {**as_object(shape.get("_meta")), **related_task(task)}}


def related_task(task: TaskRecord) -> JsonObject:
    """Return the metadata that names the task to which a message belongs."""
    return {RELATED_TASK: {"taskId": task.task_id}}


def created_result(task: TaskRecord, now: Micros) -> types.CallToolResult:
    """Return an ordinary result that contains the task of a call. Middleware of perdure converts it."""
    return types.CallToolResult(content=[], _meta={CREATED_TASK: task_2025(task, now)})


def created_task(result: JsonObject) -> JsonObject:
    """Return the task that a result contains, or an empty object if it contains none."""
    return as_object(as_object(result.get("_meta")).get(CREATED_TASK))


# Both


def _fields(task: TaskRecord) -> JsonObject:
    shape: JsonObject = {"taskId": task.task_id, "status": task.status.value}
    if task.status_message is not None:
        shape["statusMessage"] = task.status_message
    if task.status is Status.INPUT_REQUIRED and not task.questions:
        shape |= {"status": Status.WORKING.value, "statusMessage": "an operator has been asked"}
    shape["createdAt"] = timestamp(task.created_at)
    shape["lastUpdatedAt"] = timestamp(task.last_updated_at)
    return shape


def _meta(task: TaskRecord) -> JsonObject:
    """Return the `_meta` of a task, if it has any."""
    meta: JsonObject = {}
    if task.variables:
        meta[VARIABLES] = dict(task.variables)
    if task.progress is not None:
        meta[PROGRESS] = msgspec.to_builtins(task.progress)
    return {"_meta": meta} if meta else {}


def progress_params(token: str | int, report: Report) -> JsonObject:
    """Return the parameters of `notifications/progress`."""
    values = {"progress": report.done, "total": report.total, "message": report.message}
    return {"progressToken": token, **{name: value for name, value in values.items() if value is not None}}


def log_message(entry: LogEntry) -> JsonObject:
    """Return the parameters of `notifications/message`."""
    shape: JsonObject = {"level": entry.level, "data": entry.message}
    return shape if entry.logger is None else {**shape, "logger": entry.logger}


def timestamp(at: Micros) -> str:
    """Return a time as text in ISO 8601, with microseconds."""
    return (
        datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def poll_interval_ms(task: TaskRecord, now: Micros) -> int:
    """Return the advised interval: short for a young task, then longer, and at most the task's own."""
    age = max(0, now - task.created_at) // 1000
    return max(MIN_POLL_INTERVAL_MS, min(age // POLLS_PER_AGE, task.poll_interval_ms))


def for_version(ctx: RequestContext, result: JsonObject) -> JsonObject:
    """Convert a result of 2026-07-28 to the protocol version of this request."""
    if ctx.protocol_version == PROTOCOL_2026:
        return result
    return {name: value for name, value in result.items() if name != "resultType"}


class RawResult(RootModel[JsonObject]):
    """A result as it was received."""


def dump_result(result: object) -> JsonObject:
    """Return a result of a handler as JSON."""
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return as_object(result)


def error_text(result: JsonObject) -> str | None:
    """Return the text of the error that a result reports, or None if it does not report one."""
    if result.get("isError") is not True:
        return None
    blocks: list[Mapping[str, Any]] = result.get("content") or []
    texts = (block.get("text") for block in blocks if block.get("type") == "text")
    return next(
        (text for text in texts if isinstance(text, str) and text.strip()), "the tool reported an error"
    )


class EncryptedError(MCPError):
    """The error of an encrypted task. Its contents reach the client, but no log and no span."""

    def __str__(self) -> str:
        return "the error of the task is not shown here, because the task is encrypted"

    __repr__ = __str__


def result_or_raise(task: TaskRecord) -> Success:
    """Return the result of a finished task, or raise its error."""
    match task.outcome:
        case Success() as success:
            return success
        case Failure() as outcome:
            if task.is_encrypted:
                telemetry.keep_error_out_of_span()
                raise EncryptedError(outcome.code, outcome.message, outcome.data)
            raise MCPError(outcome.code, outcome.message, outcome.data)
        case None:
            raise MCPError(types.INTERNAL_ERROR, "the task has no outcome")
