"""A task as each protocol spells it. Pure: from what was read, to what is sent.

A `ttl` of null is always present: it says that the task never expires.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import UnsetType

from ..storage import Micros
from ..tasks import Failure, Json, Status, Success, TaskRecord, expiry_and_deadlines
from ..tasks.inputs import Input
from .polling import advised_interval
from .protocol import PROGRESS, RELATED_TASK, VARIABLES, Wire

# 2026-07-28


def created(task: TaskRecord, now: Micros) -> Wire:
    """The answer to a call that became a task."""
    return {"resultType": "task", **_modern(task, now)}


def detailed(task: TaskRecord, now: Micros) -> Wire:
    """What `tasks/get` answers and `notifications/tasks` carries: with questions, result or error."""
    shape = _modern(task, now)
    if shape["status"] == Status.INPUT_REQUIRED:
        shape["inputRequests"] = {key: question(asked) for key, asked in task.questions.items()}
    match task.outcome:
        case Success() as success if task.status is Status.COMPLETED:
            shape["result"] = result_of(success)
        case Failure() as failure if task.status is Status.FAILED:
            shape["error"] = error_of(failure)
        case _:
            pass
    if meta := _meta(task):
        shape["_meta"] = meta
    return shape


def _modern(task: TaskRecord, now: Micros) -> Wire:
    return {
        **_common(task),
        "ttlMs": expiry_and_deadlines.client_ttl_ms(task, now),
        "pollIntervalMs": advised_interval(task, now),
    }


def question(asked: Input) -> Wire:
    """A question as the request that a server would send."""
    shape: Wire = {"method": asked.kind.value}
    if asked.params is not None:
        shape["params"] = asked.params
    return shape


def result_of(success: Success) -> Wire:
    """What the call returns, in the words of 2026-07-28."""
    return {"resultType": "complete", **_object(success.value)}


def error_of(failure: Failure) -> Wire:
    """A JSON-RPC error, to the letter."""
    shape: Wire = {"code": failure.code, "message": failure.message}
    if not isinstance(failure.data_json, UnsetType):
        shape["data"] = failure.data
    return shape


# 2025-11-25


def core(task: TaskRecord, now: Micros) -> Wire:
    """A task, as `tasks/get` and all others spell it.

    Here, and not in 2026-07-28, a call whose result reports an error has failed.
    """
    ttl = expiry_and_deadlines.client_ttl_ms(task, now)
    shape = {**_common(task), "ttl": ttl, "pollInterval": advised_interval(task, now)}
    if task.is_error:
        shape["status"] = Status.FAILED.value
    if meta := _meta(task):
        shape["_meta"] = meta
    return shape


def core_result(task: TaskRecord, success: Success) -> Wire:
    """What the call would have returned, and of which task it is the result."""
    shape = _object(success.value)
    shape.pop("resultType", None)
    return {**shape, "_meta": {**_object(shape.get("_meta")), **related(task)}}


def related(task: TaskRecord) -> Wire:
    """The metadata that says of which task something is part."""
    return {RELATED_TASK: {"taskId": task.task_id}}


# Both


def _common(task: TaskRecord) -> Wire:
    shape: Wire = {"taskId": task.task_id, "status": task.status.value}
    if task.status_message is not None:
        shape["statusMessage"] = task.status_message
    if task.status is Status.INPUT_REQUIRED and not task.questions:
        shape |= {"status": Status.WORKING.value, "statusMessage": "an operator has been asked"}
    shape["createdAt"] = timestamp(task.created_at)
    shape["lastUpdatedAt"] = timestamp(task.last_updated_at)
    return shape


def _meta(task: TaskRecord) -> Wire:
    meta: Wire = {}
    if task.variables:
        meta[VARIABLES] = dict(task.variables)
    if task.progress is not None:
        meta[PROGRESS] = msgspec.to_builtins(task.progress)
    return meta


def timestamp(at: Micros) -> str:
    """ISO 8601, to the microsecond."""
    return (
        datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def _object(value: Json) -> Wire:
    return dict(value) if isinstance(value, dict) else {}
