"""Views of a task: a summary for lists, and a detail with timeline, questions and outcome.

Neither contains what users answered, or the name of the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UnsetType

from ..runtime import lease as leases
from ..storage import Micros, Record, Tag
from ..storage.errors import NewerFormat
from ..storage.time_units import Interval, Timestamp
from ..tasks import (
    Attempt,
    Failure,
    InputKind,
    Json,
    LogEntry,
    Outcome,
    Progress,
    Snapshot,
    Status,
    Success,
    TaskRecord,
)
from ..tasks.inputs import Input
from ..tasks.owner import OwnerKind
from ..tasks.task_record import headline
from ..tasks.task_snapshot import COMPLETED_WITH_ERROR

TAGS: dict[Status, tuple[Tag, ...]] = {
    **{status: (status.value,) for status in Status},
    Status.FAILED: (Status.FAILED.value, COMPLETED_WITH_ERROR),
}
"""The tags of records by status. For operators, a task whose result reports an error has failed."""


Locator: TypeAlias = Annotated[str, msgspec.Meta(extra={"json": "omit"})]
"""A sealed partition. Commands do not print it: they find a task by its id."""


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a task, as lists show it."""

    task_id: str
    locator: Locator
    """An opaque text for finding the task again: `Operator.get(summary.locator, summary.task_id)`."""
    owner: str
    """A digest of the owner, the same as in the logs."""
    owner_kind: OwnerKind
    status: Status
    """The effective status. It is `failed` also if the result reports an error."""
    name: str
    """The name of the function, of the tool, or of the method, in this order of preference."""
    created_at: Timestamp
    updated_at: Timestamp
    finished_at: Timestamp | None
    age: Interval
    """Time from the creation until the task finished, or until now."""
    progress: Progress | None
    attempts: int
    is_claimed: bool = msgspec.field(name="claimed")
    """Whether a worker has a claim on the task."""
    is_cancelling: bool = msgspec.field(name="cancelling")
    """Whether a cancellation was requested and the task has not finished yet."""
    has_error: bool
    """Whether it failed with a result that reports an error (`isError`), not with a protocol error."""
    open_questions: int
    message: str | None
    """The latest status message; for a failed task, the first line of its error or exception."""
    version: int

    @property
    def progress_fraction(self) -> float | None:
        """The fraction that is done, from 0 to 1. None if the task does not report a total."""
        if self.progress is None or not self.progress.total or self.progress.total < 0:
            return None
        return min(1.0, max(0.0, self.progress.done / self.progress.total))

    @property
    def display_status(self) -> str:
        """The status in words, which also shows whether a worker has claimed the task."""
        if self.is_cancelling:
            return "cancelling"
        if self.status is not Status.WORKING:
            return self.status.value.replace("_", " ")
        return "working" if self.is_claimed else "queued"


class NewerTask(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a task that a newer version of perdure wrote. Its body cannot be read."""

    task_id: str
    locator: Locator
    status: str
    """The tag of its record, which may be a status that this version does not know."""
    created_at: Timestamp
    age: Interval
    """Time since the creation."""

    @property
    def display_status(self) -> str:
        return "written by a newer version"


def summarize_newer(record: Record, *, now: Micros, locate: Callable[[str], str]) -> NewerTask:
    return NewerTask(
        task_id=record.key,
        locator=locate(record.partition),
        status=record.tag,
        created_at=record.order,
        age=max(0, now - record.order),
    )


def summarize_task(snapshot: Snapshot, *, now: Micros, locate: Callable[[str], str]) -> TaskSummary:
    task = snapshot.task
    return TaskSummary(
        task_id=task.task_id,
        locator=locate(snapshot.record.partition),
        owner=task.owner.digest,
        owner_kind=task.owner.kind,
        status=task.effective_status,
        name=task_name(task),
        created_at=task.created_at,
        updated_at=task.last_updated_at,
        finished_at=task.finished_at,
        age=max(0, (task.finished_at or now) - task.created_at),
        progress=task.progress,
        attempts=task.attempts,
        is_claimed=task.is_claimed,
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


class _ToolName(msgspec.Struct):
    name: str | None = None


_name_decoder = msgspec.json.Decoder(_ToolName)


def task_name(task: TaskRecord) -> str:
    return task.function or tool_name(task) or task.original_method


def tool_name(task: TaskRecord) -> str | None:
    """Return the tool that was called, or None if the task is not a tool call."""
    if isinstance(task.params_json, UnsetType):
        return None
    try:
        return _name_decoder.decode(task.params_json).name
    except msgspec.MsgspecError:
        return None


def matches_name(task: TaskRecord, name: str) -> bool:
    """Return whether the function, the tool or the method of a task has this name."""
    return name in (task.function, task.original_method) or name == tool_name(task)


EventKind: TypeAlias = Literal[
    "created",
    "started",
    "released",
    "paused",
    "asked",
    "answered",
    "cancel requested",
    "finished",
    "next attempt",
    "expires",
]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a timeline. Events of the kinds `next attempt` and `expires` have not happened yet."""

    at: Timestamp
    kind: EventKind = msgspec.field(name="event")
    note: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """An open question of a task."""

    key: str
    kind: InputKind
    message: str
    schema: dict[str, Json] | None
    """The JSON schema of the form. None if the question has none."""
    params: Json
    """The complete request, as defined by the protocol."""
    asked_at: Timestamp

    @property
    def external_url(self) -> str | None:
        """The URL at which the user completes the step. None if the question is answered with a form."""
        params = self.params if isinstance(self.params, dict) else {}
        url = params.get("url")
        return url if params.get("mode") == "url" and isinstance(url, str) else None


class ClaimSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A claim of a worker on a task."""

    task_id: str
    locator: Locator
    claim_id: str
    lease_until: Timestamp

    @property
    def worker(self) -> str:
        """The id of the worker, without the number of the claim."""
        return self.claim_id.rpartition("#")[0] or self.claim_id


class TaskDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A task in full, except for the answers of users."""

    summary: TaskSummary
    method: str
    arguments: Json
    """The arguments of a tool call, or all parameters of another method."""
    variables: dict[str, Json]
    checkpoint: dict[str, Json]
    last_failure: str | None
    history: tuple[Attempt, ...]
    """The newest attempts: when each started, and when and why it was released unfinished."""
    log: tuple[LogEntry, ...]
    """The newest log entries of the function."""
    removed_log_entries: int
    """Number of older log entries that were removed."""
    ttl: int | None = msgspec.field(name="ttl_ms")
    """Milliseconds from the creation within which the task must be started. None means no limit."""
    expires_at: Timestamp | None
    timeline: tuple[Event, ...]
    """Events in order of time."""
    questions: tuple[Question, ...]
    """Open questions."""
    outcome: Outcome | None
    """A `Success` with a `value`, or a `Failure` with `code`, `message` and `data`."""
    claim: ClaimSummary | None


def describe_task(snapshot: Snapshot, summary: TaskSummary, lease: Record | None) -> TaskDetail:
    task, record = snapshot.task, snapshot.record
    return TaskDetail(
        summary=summary,
        method=task.original_method,
        arguments=_arguments(task),
        variables=dict(task.variables),
        checkpoint=dict(task.checkpoint),
        last_failure=task.last_failure,
        history=task.attempt_history,
        log=task.log.entries,
        removed_log_entries=task.log.removed,
        ttl=task.ttl_ms,
        expires_at=record.expires_at,
        timeline=tuple(sorted(_events(task, record), key=lambda event: event.at)),
        questions=tuple(_question(key, asked) for key, asked in _open(task).items()),
        outcome=task.outcome,
        claim=None if lease is None else parse_claim(lease, summary.locator),
    )


def parse_claim(lease: Record, locator: str) -> ClaimSummary | None:
    """Return the claim in a lease record. None if there is no claim, or if a newer version wrote it."""
    if lease.tag != leases.HELD:
        return None
    try:
        state = leases.read(lease)
    except NewerFormat:
        return None
    if state.holder is None or state.until is None:
        return None
    return ClaimSummary(task_id=lease.key, locator=locator, claim_id=state.holder, lease_until=state.until)


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
        yield Event(at=attempt.started_at, kind="started")
        if attempt.ended_at is not None:
            kind = "paused" if attempt.reason is None else "released"
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


def outcome_json(outcome: Outcome | None) -> dict[str, Json] | None:
    """Return an outcome as JSON: `{"result": ...}` or `{"error": {"code", "message", "data"}}`."""
    match outcome:
        case Success():
            return {"result": outcome.value}
        case Failure():
            error: dict[str, Json] = {"code": outcome.code, "message": outcome.message, "data": outcome.data}
            return {"error": error}
        case None:
            return None
