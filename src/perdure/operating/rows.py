"""A task as a line of a list: what an operator needs to know of it, and nothing of whose it is."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UnsetType

from ..storage import Micros, Record, Tag
from ..tasks import Progress, Snapshot, Status, Success, TaskRecord
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
