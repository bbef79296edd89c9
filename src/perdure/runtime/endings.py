"""Decides how a task is changed when an attempt to run it has ended. Runs and recovery use this module.

A function returns a result, raises an error, raises an exception that requests something else (such as
`Retry` or `Pause`), or is stopped. For each of these, there is one edit, which is stored in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ..storage import Micros
from ..storage.errors import PerdureError
from ..storage.exception_text import storable_text, type_and_text_of
from ..tasks import (
    Failure,
    InputRequest,
    Outcome,
    StoreConfig,
    Success,
    TaskRecord,
    edits,
    expiry_and_deadlines,
    inputs,
)
from ..tasks.edits import AttemptEnd
from ..tasks.errors import InvalidValue
from ..tasks.store import Edit
from .errors import INTERNAL_ERROR, OUTAGES, ClientCannotAnswer, Pause, Retry, TaskCancelled, TaskFailed
from .function import Function, Result

INVALID_PARAMS = -32602

OUTAGE_PAUSE = 1.0
"""Seconds until the next run after a storage failure interrupted a run. Each interruption doubles them."""

MAX_INTERRUPTIONS = 5
"""Maximum number of times that an interrupted task is run again if it makes no progress."""


class Reason(StrEnum):
    """Why perdure itself failed a task. The value is stored as `data.reason` of the task's error."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    """The function failed, and has no retries left."""
    INTERRUPTED = "interrupted"
    """The worker of the task was lost or stopped, and the function must not run twice."""
    INTERRUPTED_TOO_OFTEN = "interrupted_too_often"
    """The task was interrupted again and again without making progress."""
    INPUT_DEADLINE = "input_deadline"
    """A question of the task was not answered in time."""
    EXPIRED = "expired"
    """No worker started the task again for 30 days."""

    def failure(self, message: str) -> Failure:
        return Failure.of(INTERNAL_ERROR, message, {"reason": self.value})


class Stop(StrEnum):
    """The reason for stopping a run before its function has returned."""

    CANCELLED = "cancelled"
    """The task was cancelled."""
    TIMED_OUT = "timed out"
    """The attempt took longer than the timeout of its function."""
    SHUT_DOWN = "shut down"
    """The worker is stopping."""
    UNANSWERED = "unanswered"
    """A question of the run was not answered in time."""
    SUSPENDED = "suspended"
    """Too many runs of this process wait for answers. The task runs again after its question is answered."""
    LEASE_LOST = "lease lost"
    """The claim was lost: another worker can claim the task, or the task has ended. The run cannot write."""


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that did not end its task, and why."""

    reason: str
    end: AttemptEnd = AttemptEnd.FAILED
    after: float | None = None
    """Seconds until the next run. None means the function's backoff or, after an interruption, no delay."""
    is_outage: bool = False
    """Whether the storage failed. If so, the next run is delayed, longer after each interruption."""


def ending_of(call: asyncio.Task[Result], stop: Stop | None, function: Function) -> Edit | None:
    """Return the edit for a call that has ended or was abandoned, or None if the claim was lost."""
    if stop is Stop.LEASE_LOST:
        return None
    if not call.done() or call.cancelled():
        return _stopped(stop, function)
    error = call.exception()
    if error is None:
        return finish(_outcome_of(call.result()))
    if stop is not None or isinstance(error, TaskCancelled):
        return _stopped(stop, function)
    return _raised(error, function)


def _stopped(stop: Stop | None, function: Function) -> Edit:
    match stop:
        case None:
            return finish(
                Failure.of(
                    INTERNAL_ERROR, "the function raised CancelledError, although the task was not cancelled"
                )
            )
        case Stop.TIMED_OUT:
            reason = f"the function took longer than {function.timeout:g} seconds"
            return run_again_or_end(function, Unfinished(reason=reason))
        case Stop.SHUT_DOWN:
            reason = "the worker was shut down before the task ended"
            return run_again_or_end(function, Unfinished(reason=reason, end=AttemptEnd.INTERRUPTED))
        case Stop.UNANSWERED:
            return unless_cancelled(_end_unanswered_run(function))
        case Stop.SUSPENDED:
            return unless_cancelled(lambda task, now, config: edits.release(task, now=now, config=config))
        case _:
            return lambda task, now, config: edits.cancel(task, now=now, config=config)


def _raised(error: BaseException, function: Function) -> Edit:
    match error:
        case Retry(reason=reason, after=after):
            return run_again_or_end(function, Unfinished(reason=storable_text(reason), after=after))
        case Pause():
            return pause_until_answered(error, function)
        case TaskFailed(failure=failure):
            return finish(failure)
        case _ if isinstance(error, OUTAGES):
            outage = Unfinished(reason=type_and_text_of(error), end=AttemptEnd.INTERRUPTED, is_outage=True)
            return run_again_or_end(function, outage)
        case PerdureError(retryable=True):
            return run_again_or_end(function, Unfinished(reason=type_and_text_of(error)))
        case _ if isinstance(error, function.retry_on):
            return run_again_or_end(function, Unfinished(reason=type_and_text_of(error)))
        case InvalidValue(field="arguments"):
            return finish(Failure.of(INVALID_PARAMS, str(error)))
        case _:
            return finish(Failure.of(INTERNAL_ERROR, type_and_text_of(error)))


def finish(outcome: Outcome) -> Edit:
    """Return an edit that ends the task. The edit also removes the function's last message as outdated."""

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        return edits.finish(task, outcome, now=now, config=config)

    return edit


def _outcome_of(result: Result) -> Outcome:
    if isinstance(result, (Success, Failure)):
        return result
    try:
        return Success.of(result)
    except InvalidValue as error:
        return Failure.of(
            INTERNAL_ERROR, f"the function returned a value that cannot be stored as JSON: {error}"
        )


def run_again_or_end(function: Function | None, attempt: Unfinished) -> Edit:
    """Return an edit that releases the task to be run again, or ends it if it must not run again.

    If this worker does not have the function, the task is released, and the worker that claims it decides.
    """

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        released = edits.release(
            task,
            reason=attempt.reason,
            run_at=_next_run(function, task, attempt, now),
            end=attempt.end,
            now=now,
            config=config,
        )
        refusal = None if function is None else refusal_to_start(function, released, now)
        if refusal is None:
            return released
        failed = msgspec.structs.replace(
            task,
            last_failure=released.last_failure,
            failures=released.failures,
            interruptions=released.interruptions,
        )
        return end_task(failed, refusal, now, config)

    return unless_cancelled(edit)


def unless_cancelled(edit: Edit) -> Edit:
    """Return an edit that cancels the task if that was requested, or otherwise applies `edit`."""

    def cancel_or_edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        if task.cancel_requested_at is not None:
            return edits.cancel(task, now=now, config=config)
        return edit(task, now, config)

    return cancel_or_edit


def refusal_to_start(function: Function, task: TaskRecord, now: Micros) -> Failure | None:
    """Return the failure of a released task that must not be started again, or None if it may be started."""
    why = task.last_failure or "the last attempt failed"
    if task.failures > function.retries:
        tried = f" (attempt {task.failures} of {function.retries + 1})" if function.retries else ""
        return Reason.RETRIES_EXHAUSTED.failure(f"{why}{tried}")
    if not function.restart and task.attempts > task.failures:
        return Reason.INTERRUPTED.failure(f"{why}, and the function must not run twice (restart=False)")
    if task.interruptions > MAX_INTERRUPTIONS:
        times = f"{task.interruptions} times without progress"
        return Reason.INTERRUPTED_TOO_OFTEN.failure(f"interrupted too often: {why} ({times})")
    return expiry_of(task, now)


def expiry_of(task: TaskRecord, now: Micros) -> Failure | None:
    """Return the failure of a released task that no worker has started again for too long, or None."""
    if not expiry_and_deadlines.is_abandoned(task, now):
        return None
    days = expiry_and_deadlines.ABANDONED_AFTER // 86_400_000_000
    return Reason.EXPIRED.failure(f"the task expired: no worker started it again for {days} days")


def end_unanswered(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
    """Fail a task that has a question past its deadline."""
    if not expiry_and_deadlines.is_past_deadline(task, now):
        return task
    return end_task(task, Reason.INPUT_DEADLINE.failure("a question was not answered in time"), now, config)


def _end_unanswered_run(function: Function) -> Edit:
    """Return an edit for a run that waited for an answer until the deadline of its question.

    The edit fails the task. If an answer has arrived just in time, it releases the task to be run again.
    """
    answered = Unfinished(
        reason="stopped at the deadline of a question, whose answer had just arrived",
        end=AttemptEnd.INTERRUPTED,
    )

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        ended = end_unanswered(task, now, config)
        return ended if ended.is_terminal else run_again_or_end(function, answered)(task, now, config)

    return edit


def end_task(task: TaskRecord, failure: Failure, now: Micros, config: StoreConfig) -> TaskRecord:
    """Fail a task with an error that perdure itself reports."""
    message = failure.message[: config.max_message_length]
    return edits.finish(task, msgspec.structs.replace(failure, message=message), now=now, config=config)


_POINTLESS = Failure.of(
    INTERNAL_ERROR,
    "the function raised Pause, but all its questions are already answered; use a new key for a new question",
)


def pause_until_answered(pause: Pause, function: Function) -> Edit:
    """Return an edit that asks the questions of `pause` and releases the task.

    When all of them are answered, the task returns to its queue.
    """

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        if pause.variables:
            task = edits.set_variables(task, pause.variables, now=now, config=config)
        if pause.checkpoint:
            task = edits.save_checkpoint(task, pause.checkpoint, now=now, config=config)
        asked = ask_new(task, function.with_deadlines(pause.requests), now, config)
        if not any(key in asked.outstanding for key in pause.requests):
            return edits.finish(asked, _POINTLESS, now=now, config=config)
        return edits.release(asked, now=now, config=config)

    return unless_cancelled(edit)


def check_askable(task: TaskRecord, requests: Mapping[str, InputRequest]) -> None:
    """Raise ClientCannotAnswer if neither the client of the task nor an operator can be asked a question."""
    for request in requests.values():
        capability = inputs.capability_of(request.kind, request.params)
        if not (task.operators_answer or task.can_ask(capability)):
            raise ClientCannotAnswer(request.kind, capability)


def ask_new(
    task: TaskRecord, requests: Mapping[str, InputRequest], now: Micros, config: StoreConfig
) -> TaskRecord:
    """Ask the questions that are new. Raise ClientCannotAnswer if the client cannot be asked one of them."""
    inputs.check_repeated(task.inputs, requests)
    new = {key: request for key, request in requests.items() if key not in task.inputs}
    check_askable(task, new)
    return edits.ask(task, new, now=now, config=config) if new else task


def _next_run(function: Function | None, task: TaskRecord, attempt: Unfinished, now: Micros) -> Micros | None:
    """Return the time at which the task is due again. None means at once, whatever the clocks show."""
    after = attempt.after
    if attempt.is_outage:
        after = OUTAGE_PAUSE * 2**task.interruptions
    elif after is None:
        if function is None or attempt.end is AttemptEnd.INTERRUPTED:
            return None
        after = function.pause_after(task.failures + 1)
    return now + round(after * 1_000_000)
