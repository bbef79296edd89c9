"""An attempt is over: which edit of the task follows. Pure; both the run itself and recovery decide here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ..storage import Micros
from ..tasks import Failure, InputRequest, StoreConfig, TaskRecord, edits
from ..tasks.store import Edit
from .errors import Pause
from .function import Function

INTERNAL_ERROR = -32603


class Stop(StrEnum):
    """Why a run is told to end before its function has."""

    CANCELLED = "cancelled"
    """Somebody asked for it."""
    TIMED_OUT = "timed out"
    """It took longer than its function allows."""
    SHUT_DOWN = "shut down"
    """The worker stops, and had waited as long as it may."""
    LEASE_LOST = "lease lost"
    """Another holds the task, or nobody can any more. Nothing that this run does counts."""


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that did not end its task, and why."""

    reason: str
    after: float | None = None
    """Seconds after which to try again; None: the function's own backoff."""
    counted: bool = True
    """Whether it was one of the function's attempts: not where only the worker had to stop."""


def run_again_or_end(function: Function | None, attempt: Unfinished) -> Edit:
    """What becomes of a task after an attempt that did not end it.

    Without the function, which only another worker may know, the task goes back to the queue, and the worker
    that takes it decides.
    """

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        if task.cancel_requested_at is not None:
            return edits.cancel(task, now=now, config=config)
        if function is None or may_run_again(function, task, attempt):
            return edits.release(
                task,
                reason=attempt.reason,
                run_at=_next_run(function, task, attempt, now),
                uncounted=not attempt.counted,
                now=now,
                config=config,
            )
        return end_exhausted(function, task, attempt.reason, now, config)

    return edit


def pause_until_answered(pause: Pause) -> Edit:
    """Ask and let go: the answers put the task back into its queue."""

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        if task.cancel_requested_at is not None:
            return edits.cancel(task, now=now, config=config)
        if pause.variables:
            task = edits.set_variables(task, pause.variables, now=now, config=config)
        asked = ask_new(task, pause.requests, now, config)
        return edits.release(asked, uncounted=True, now=now, config=config)

    return edit


def ask_new(
    task: TaskRecord, requests: Mapping[str, InputRequest], now: Micros, config: StoreConfig
) -> TaskRecord:
    """Ask what of this the task never asked before."""
    new = {key: request for key, request in requests.items() if key not in task.inputs}
    return edits.ask(task, new, now=now, config=config) if new else task


def may_run_again(function: Function, task: TaskRecord, attempt: Unfinished) -> bool:
    """A function of one attempt is begun once, whatever happens; others again, while attempts are left."""
    if not attempt.counted:
        return function.attempts > 1
    return task.attempts < function.attempts


def end_exhausted(
    function: Function, task: TaskRecord, reason: str, now: Micros, config: StoreConfig
) -> TaskRecord:
    """The task has had its attempts."""
    tried = "" if function.attempts == 1 else f" (attempt {task.attempts} of {function.attempts})"
    message = f"{reason}{tried}"[: config.max_message_length]
    failed = msgspec.structs.replace(task, last_failure=reason[: config.max_message_length])
    return edits.finish(failed, Failure.of(INTERNAL_ERROR, message), now=now, config=config)


def _next_run(function: Function | None, task: TaskRecord, attempt: Unfinished, now: Micros) -> Micros:
    if function is None or not attempt.counted:
        return now
    pause = function.pause_after(task.attempts) if attempt.after is None else attempt.after
    return now + round(pause * 1_000_000)
