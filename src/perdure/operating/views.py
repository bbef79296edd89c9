"""A task as a line of a list: what an operator needs to know of it, and nothing of whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec import UnsetType

from ..runtime import lease as leases
from ..storage import Micros, Record, Tag
from ..storage.errors import NewerFormat
from ..tasks import (
    Attempt,
    Failure,
    InputKind,
    Json,
    Outcome,
    Progress,
    Snapshot,
    Status,
    Success,
    TaskRecord,
)
from ..tasks.inputs import Input
from ..tasks.owner import OwnerKind
from ..tasks.record import headline
from ..tasks.snapshot import COMPLETED_WITH_ERROR

TAGS: dict[Status, tuple[Tag, ...]] = {
    **{status: (status.value,) for status in Status},
    Status.FAILED: (Status.FAILED.value, COMPLETED_WITH_ERROR),
}
"""The tags of the tasks that operators see in each status: a result that reports an error is a failure."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One task. Times are microseconds since 1970."""

    task_id: str
    handle: str
    """With the id, where to find it again: `Operator.get(row.handle, row.task_id)`. Tells nothing else."""
    owner: str
    """A digest, the same as in the logs."""
    owner_kind: OwnerKind
    status: Status
    """As operators see it: `failed` also if the task completed with a result that reports an error."""
    name: str
    """Of the function that workers run, else of the tool, else the method."""
    created_at: Micros
    updated_at: Micros
    finished_at: Micros | None
    age: Micros
    """From its creation to its end, or until now."""
    progress: Progress | None
    attempts: int
    is_held: bool
    """Whether a worker has it."""
    is_cancelling: bool
    """Somebody asked for its end, which has not come yet."""
    has_error: bool
    """It failed with a result that reports an error (`isError`), not with an error of the protocol."""
    open_questions: int
    message: str | None
    """What the task reported last; of one that failed, the first line of its error or of the exception."""
    version: int

    @property
    def share(self) -> float | None:
        """How much of it is done, 0 to 1, where it says so."""
        if self.progress is None or not self.progress.total or self.progress.total < 0:
            return None
        return min(1.0, max(0.0, self.progress.done / self.progress.total))

    @property
    def state(self) -> str:
        """The status in the words of people, and whether a worker has it."""
        if self.is_cancelling:
            return "cancelling"
        if self.status is not Status.WORKING:
            return self.status.value.replace("_", " ")
        return "working" if self.is_held else "waiting"


class NewerTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a newer version of perdure wrote: what its record says, without its body."""

    task_id: str
    handle: str
    status: str
    """The tag of its record, which this version may not know as a status."""
    created_at: Micros
    age: Micros
    """From its creation until now."""

    @property
    def state(self) -> str:
        return "written by a newer version"


def newer_task_of(record: Record, *, now: Micros, handle_of: Callable[[str], str]) -> NewerTask:
    return NewerTask(
        task_id=record.key,
        handle=handle_of(record.partition),
        status=record.tag,
        created_at=record.order,
        age=max(0, now - record.order),
    )


def row_of(snapshot: Snapshot, *, now: Micros, handle_of: Callable[[str], str]) -> Row:
    task = snapshot.task
    return Row(
        task_id=task.task_id,
        handle=handle_of(snapshot.record.partition),
        owner=task.owner.digest,
        owner_kind=task.owner.kind,
        status=task.effective_status,
        name=name_of(task),
        created_at=task.created_at,
        updated_at=task.last_updated_at,
        finished_at=task.finished_at,
        age=max(0, (task.finished_at or now) - task.created_at),
        progress=task.progress,
        attempts=task.attempts,
        is_held=task.is_claimed,
        is_cancelling=task.cancel_requested_at is not None and not task.is_terminal,
        has_error=task.is_error,
        open_questions=0 if task.is_terminal else len(task.outstanding),
        message=_message(task),
        version=snapshot.version,
    )


def _message(task: TaskRecord) -> str | None:
    if task.effective_status is not Status.FAILED:
        return task.status_message
    cause = task.outcome.cause if isinstance(task.outcome, Success) else None
    return headline(cause or task.status_message or "")


class _Named(msgspec.Struct):
    name: str | None = None


_named = msgspec.json.Decoder(_Named)


def name_of(task: TaskRecord) -> str:
    return task.function or tool_of(task) or task.original_method


def tool_of(task: TaskRecord) -> str | None:
    """The tool that was called, where it was one."""
    if isinstance(task.params_json, UnsetType):
        return None
    try:
        return _named.decode(task.params_json).name
    except msgspec.MsgspecError:
        return None


def is_named(task: TaskRecord, name: str) -> bool:
    """Whether its function, its tool or its method is called this."""
    return name in (task.function, task.original_method) or name == tool_of(task)


Happening: TypeAlias = Literal[
    "created",
    "begun",
    "given back",
    "paused",
    "asked",
    "answered",
    "cancel requested",
    "finished",
    "next attempt",
    "expires",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the record tells the time of. The last two kinds are still to come."""

    at: Micros
    kind: Happening
    note: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the task waits to be told."""

    key: str
    kind: InputKind
    message: str
    schema: dict[str, Json] | None
    """Of the form that is to be filled in, where one was given."""
    params: Json
    """All that was asked, as the protocol has it."""
    asked_at: Micros


class Asked(msgspec.Struct, frozen=True):
    """One field of a form."""

    name: str
    schema: dict[str, Json]
    is_required: bool


def asked_in(schema: Json) -> tuple[Asked, ...]:
    """The fields of a form: the required ones as they are listed there, then the others.

    What is stored has its names in the order of the alphabet; only lists keep the order of who wrote them.
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        return ()
    listed = schema.get("required")
    required = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    names = dict.fromkeys([*(name for name in required if name in properties), *properties])
    return tuple(
        Asked(name, each if isinstance(each := properties[name], dict) else {}, name in required)
        for name in names
    )


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that somebody holds."""

    task_id: str
    handle: str
    holder: str
    until: Micros

    @property
    def worker(self) -> str:
        """The worker whose claim it is."""
        return self.holder.rpartition("#")[0] or self.holder


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """A task, as far as it is an operator's business. What people answered is not."""

    row: Row
    method: str
    arguments: Json
    """Of a tool its arguments; of anything else all its parameters."""
    variables: dict[str, Json]
    checkpoint: dict[str, Json]
    last_failure: str | None
    history: tuple[Attempt, ...]
    """The newest attempts: when each was begun, and when and why it was given back unfinished."""
    ttl: int | None
    """Milliseconds from creation, as the client asked; None: for ever."""
    expires_at: Micros | None
    timeline: tuple[Event, ...]
    """By time; what is still to come is at its end."""
    questions: tuple[Question, ...]
    """Those that are open."""
    outcome: Outcome | None
    """A `Success` with its `value`, or a `Failure` with `code`, `message` and `data`."""
    lease: Held | None


def detail_of(snapshot: Snapshot, row: Row, lease: Record | None) -> Detail:
    task, record = snapshot.task, snapshot.record
    return Detail(
        row=row,
        method=task.original_method,
        arguments=_arguments(task),
        variables=dict(task.variables),
        checkpoint=dict(task.checkpoint),
        last_failure=task.last_failure,
        history=task.attempt_history,
        ttl=task.ttl_ms,
        expires_at=record.expires_at,
        timeline=tuple(sorted(_events(task, record), key=lambda event: event.at)),
        questions=tuple(_question(key, asked) for key, asked in _open(task).items()),
        outcome=task.outcome,
        lease=None if lease is None else held_of(lease, row.handle),
    )


def held_of(lease: Record, handle: str) -> Held | None:
    """What a lease says; none where nobody holds it, or a newer version wrote it."""
    if lease.tag != leases.HELD:
        return None
    try:
        told = leases.read(lease)
    except NewerFormat:
        return None
    if told.holder is None or told.until is None:
        return None
    return Held(task_id=lease.key, handle=handle, holder=told.holder, until=told.until)


def _arguments(task: TaskRecord) -> Json:
    params = task.original_params
    if task.original_method == "tools/call" and isinstance(params, dict):
        return params.get("arguments")
    return params


def _events(task: TaskRecord, record: Record) -> Iterator[Event]:
    yield Event(at=task.created_at, kind="created")
    yield from _attempts(task)
    for key, asked in task.inputs.items():
        yield Event(at=asked.asked_at, kind="asked", note=key)
        if asked.answered_at is not None:
            yield Event(at=asked.answered_at, kind="answered", note=key)
    if task.cancel_requested_at is not None:
        yield Event(at=task.cancel_requested_at, kind="cancel requested")
    if task.finished_at is not None:
        yield Event(at=task.finished_at, kind="finished", note=task.effective_status.value)
    if task.run_at is not None and not task.is_terminal:
        yield Event(at=task.run_at, kind="next attempt", note=task.last_failure or "")
    if record.expires_at is not None:
        yield Event(at=record.expires_at, kind="expires")


def _attempts(task: TaskRecord) -> Iterator[Event]:
    for attempt in task.attempt_history:
        yield Event(at=attempt.started_at, kind="begun")
        if attempt.ended_at is not None:
            kind = "paused" if attempt.reason is None else "given back"
            yield Event(at=attempt.ended_at, kind=kind, note=attempt.reason or "")


def _open(task: TaskRecord) -> dict[str, Input]:
    return {} if task.is_terminal else task.outstanding


def _question(key: str, asked: Input) -> Question:
    params = asked.params
    fields = params if isinstance(params, dict) else {}
    message, schema = fields.get("message"), fields.get("requestedSchema")
    return Question(
        key=key,
        kind=asked.kind,
        message=message if isinstance(message, str) else "",
        schema=schema if isinstance(schema, dict) else None,
        params=params,
        asked_at=asked.asked_at,
    )


def outcome_of(outcome: Outcome | None) -> dict[str, Json] | None:
    """An outcome as JSON: `{"result": ...}` or `{"error": {"code", "message", "data"}}`."""
    match outcome:
        case Success():
            return {"result": outcome.value}
        case Failure():
            error: dict[str, Json] = {"code": outcome.code, "message": outcome.message, "data": outcome.data}
            return {"error": error}
        case None:
            return None
