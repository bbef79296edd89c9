"""Presents tasks to operators: in lists as summaries, and one task with timeline, questions and outcome.

Neither view contains the answers of users or the name of the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UnsetType

from ..runtime import lease as leases
from ..storage import Micros, Record, Tag
from ..storage.errors import NewerFormat
from ..storage.time_types import Interval, Timestamp
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
from ..tasks.application_name import application_of
from ..tasks.inputs import Input
from ..tasks.owner import OwnerKind
from ..tasks.task_record import headline
from ..tasks.task_snapshot import COMPLETED_WITH_ERROR

TAGS: dict[Status, tuple[Tag, ...]] = {
    **{status: (status.value,) for status in Status},
    Status.FAILED: (Status.FAILED.value, COMPLETED_WITH_ERROR),
}
"""The storage tags of the tasks with each status. The storage lists and counts records by tag. `failed` has
two tags, because this API treats a task whose result reports an error as failed."""


Locator: TypeAlias = Annotated[str, msgspec.Meta(extra={"json": "omit"})]
"""The encrypted name of the storage partition that contains a task. Commands omit it from their output,
because they find tasks by id."""


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The information about a task that lists of tasks show."""

    task_id: str
    locator: Locator
    """An opaque string for reading the task again with `Operator.get(summary.locator, summary.task_id)`."""
    owner: str
    """A hash that identifies the owner. The logs contain the same hash."""
    owner_kind: OwnerKind
    application: str
    """The application to which the task belongs. By default, this is the name of its server."""
    status: Status
    """The status of the task. It is `failed` if the result reports an error."""
    name: str
    """The name of the task's function or, if it has none, of its tool or method."""
    created_at: Timestamp
    updated_at: Timestamp
    finished_at: Timestamp | None
    age: Interval
    """The time from creation until the task finished, or until now if it has not finished."""
    progress: Progress | None
    attempts: int
    is_claimed: bool = msgspec.field(name="claimed")
    """Whether a worker currently has a claim on the task."""
    is_cancelling: bool = msgspec.field(name="cancelling")
    """Whether a cancellation was requested and the task has not finished yet."""
    last_failure: str | None
    """The reason why the most recent failed or interrupted attempt ended. `None` if no attempt has failed or
    been interrupted."""
    next_attempt_at: Timestamp | None
    """The earliest time of the next attempt. `None` if the task is not waiting to be retried."""
    has_error: bool
    """Whether the task failed with a result that reports an error (`isError`), not with a JSON-RPC error."""
    open_questions: int
    message: str | None
    """The latest status message. For a failed task, the first line of the error or exception. `None` if
    there is no message."""
    is_encrypted: bool = msgspec.field(name="encrypted")
    """Whether arguments, progress, messages, questions and the result are encrypted. If so, they are not
    shown, except questions that operators may answer."""
    version: int

    @property
    def progress_fraction(self) -> float | None:
        """The fraction of the work that is done, from 0 to 1. `None` if the task reports no total."""
        if self.progress is None or not self.progress.total or self.progress.total < 0:
            return None
        return min(1.0, max(0.0, self.progress.done / self.progress.total))

    @property
    def display_status(self) -> str:
        """The status in words, such as "queued", "running" or "waiting to retry" for working tasks."""
        if self.is_cancelling:
            return "cancelling"
        if self.status is not Status.WORKING:
            return self.status.value.replace("_", " ")
        if self.is_claimed:
            return "running"
        return "queued" if self.next_attempt_at is None else "waiting to retry"


class NewerTask(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of a task that was written by a newer version of perdure and cannot be decoded."""

    task_id: str
    locator: Locator
    application: str
    status: str
    """The storage tag of the task. It may be a status that this version of perdure does not know."""
    created_at: Timestamp
    age: Interval
    """The time since the task was created."""

    @property
    def display_status(self) -> str:
        return "written by a newer version of perdure"


def summarize_newer(record: Record, *, now: Micros, locate: Callable[[str], str]) -> NewerTask:
    return NewerTask(
        task_id=record.key,
        locator=locate(record.partition),
        application=application_of(record.partition),
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
        application=task.application,
        status=_effective_status(snapshot),
        name=task_name(task),
        created_at=task.created_at,
        updated_at=task.last_updated_at,
        finished_at=task.finished_at,
        age=max(0, (task.finished_at or now) - task.created_at),
        progress=task.progress,
        attempts=task.attempts,
        is_claimed=task.is_claimed,
        is_cancelling=task.cancel_requested_at is not None and not task.is_terminal,
        last_failure=task.last_failure,
        next_attempt_at=_next_attempt_at(task, now),
        has_error=snapshot.record.tag == COMPLETED_WITH_ERROR,
        open_questions=0 if task.is_terminal else len(task.outstanding),
        message=_message(task),
        is_encrypted=task.is_encrypted,
        version=snapshot.version,
    )


def _next_attempt_at(task: TaskRecord, now: Micros) -> Micros | None:
    is_later = task.run_at is not None and task.run_at > now and not task.is_terminal
    return task.run_at if is_later else None


def _effective_status(snapshot: Snapshot) -> Status:
    """Return the status that operators see. It is known even if the outcome is encrypted."""
    return Status.FAILED if snapshot.record.tag == COMPLETED_WITH_ERROR else snapshot.task.status


def _message(task: TaskRecord) -> str | None:
    if task.is_encrypted or task.effective_status is not Status.FAILED:
        return task.status_message
    cause = task.outcome.cause if isinstance(task.outcome, Success) else None
    return headline(cause or task.status_message or "")


class _ToolName(msgspec.Struct):
    name: str | None = None


_name_decoder = msgspec.json.Decoder(_ToolName)


def task_name(task: TaskRecord) -> str:
    return task.function or tool_name(task) or task.original_method


def tool_name(task: TaskRecord) -> str | None:
    """Return the `name` parameter of the request. In a tool call, this is the name of the tool."""
    if isinstance(task.params_json, UnsetType):
        return None
    try:
        return _name_decoder.decode(task.params_json).name
    except msgspec.MsgspecError:
        return None


def matches_filter(task: TaskRecord, name: str | None, application: str | None) -> bool:
    """Return whether a task has this name and belongs to this application.

    `None` as the name or as the application matches every task.
    """
    return application in (None, task.application) and (name is None or matches_name(task, name))


def matches_name(task: TaskRecord, name: str) -> bool:
    """Return whether `name` is the name of the task's function, tool or method."""
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
    """An event in the timeline of a task. The events `next attempt` and `expires` have not happened yet."""

    at: Timestamp
    kind: EventKind = msgspec.field(name="event")
    note: str = ""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """An open question of a task."""

    key: str
    kind: InputKind
    message: str
    schema: dict[str, Json] | None
    """The JSON schema of the form. `None` if the question has no form."""
    params: Json
    """The parameters of the MCP request that asks the question."""
    asked_at: Timestamp

    @property
    def external_url(self) -> str | None:
        """The URL that the user must visit to answer the question. `None` if the question has no URL."""
        params = self.params if isinstance(self.params, dict) else {}
        url = params.get("url")
        return url if params.get("mode") == "url" and isinstance(url, str) else None


class ClaimSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's claim on a task."""

    task_id: str
    locator: Locator
    claim_id: str
    lease_until: Timestamp

    @property
    def worker(self) -> str:
        """The id of the worker: the claim id without the number at its end."""
        return self.claim_id.rpartition("#")[0] or self.claim_id


class TaskDetail(msgspec.Struct, frozen=True, kw_only=True):
    """All details of a task, except the answers of users."""

    summary: TaskSummary
    method: str
    arguments: Json
    """The arguments of a tool call, or all parameters if the method is not `tools/call`."""
    variables: dict[str, Json]
    checkpoint: dict[str, Json]
    history: tuple[Attempt, ...]
    """The most recent attempts to run the task, oldest first."""
    log: tuple[LogEntry, ...]
    """The newest log entries that the function of the task has written."""
    removed_log_entries: int
    """Number of older log entries that were removed to limit the size of the log."""
    ttl: int | None = msgspec.field(name="ttl_ms")
    """The task expires if it is not started within this many milliseconds of its creation. `None`
    means no limit."""
    expires_at: Timestamp | None
    timeline: tuple[Event, ...]
    """Past and expected events of the task, sorted by time."""
    questions: tuple[Question, ...]
    """The open questions of the task."""
    outcome: Outcome | None
    """A `Success` or a `Failure`. `None` if the task has not finished."""
    claim: ClaimSummary | None

    @property
    def worker(self) -> str | None:
        """The worker that is running the task, or that ran it most recently. `None` if it is unknown."""
        if self.claim is not None:
            return self.claim.worker
        return self.history[-1].worker if self.history else None


def describe_task(snapshot: Snapshot, summary: TaskSummary, lease: Record | None) -> TaskDetail:
    task, record = snapshot.task, snapshot.record
    return TaskDetail(
        summary=summary,
        method=task.original_method,
        arguments=_arguments(task),
        variables=dict(task.variables),
        checkpoint=dict(task.checkpoint),
        history=task.attempt_history,
        log=task.log.entries,
        removed_log_entries=task.log.removed,
        ttl=task.ttl_ms,
        expires_at=record.expires_at,
        timeline=tuple(sorted(_events(task, record, summary.status), key=lambda event: event.at)),
        questions=open_questions(task),
        outcome=task.outcome,
        claim=None if lease is None else parse_claim(lease, summary.locator),
    )


def parse_claim(lease: Record, locator: str) -> ClaimSummary | None:
    """Return the claim in a lease record.

    Return None if there is no claim, or if a newer version of perdure wrote the record.
    """
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


def _events(task: TaskRecord, record: Record, status: Status) -> Iterator[Event]:
    yield Event(at=task.created_at, kind="created")
    yield from _attempts(task)
    for key, asked in task.inputs.items():
        yield Event(at=asked.asked_at, kind="asked", note=key)
        if asked.answered_at is not None:
            yield Event(at=asked.answered_at, kind="answered", note=key)
    if task.cancel_requested_at is not None:
        yield Event(at=task.cancel_requested_at, kind="cancel requested")
    if task.finished_at is not None:
        yield Event(at=task.finished_at, kind="finished", note=status.value)
    if task.run_at is not None and not task.is_terminal:
        yield Event(at=task.run_at, kind="next attempt", note=task.last_failure or "")
    if record.expires_at is not None:
        yield Event(at=record.expires_at, kind="expires")


def _attempts(task: TaskRecord) -> Iterator[Event]:
    for attempt in task.attempt_history:
        note = "" if attempt.worker is None else f"by {attempt.worker}"
        yield Event(at=attempt.started_at, kind="started", note=note)
        if attempt.ended_at is not None:
            kind = "paused" if attempt.reason is None else "released"
            yield Event(at=attempt.ended_at, kind=kind, note=attempt.reason or "")


def open_questions(task: TaskRecord) -> tuple[Question, ...]:
    if task.is_terminal:
        return ()
    return tuple(_question(key, asked) for key, asked in task.outstanding.items())


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
    """Return an outcome as `{"result": ...}` or `{"error": {"code", "message", "data"}}`.

    Return None if there is no outcome.
    """
    match outcome:
        case Success():
            return {"result": outcome.value}
        case Failure():
            error: dict[str, Json] = {"code": outcome.code, "message": outcome.message, "data": outcome.data}
            return {"error": error}
        case None:
            return None
