"""An attempt is over: which edit of the task follows. A run decides here, and so does recovery.

A function ends with a result, an error, or an exception by which it asks for something else; or it is
stopped. Each becomes one edit, and the edit one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ..storage import Micros
from ..storage.errors import PerdureError
from ..tasks import Failure, InputRequest, Outcome, StoreConfig, Success, TaskRecord, edits, inputs
from ..tasks.errors import InvalidValue
from ..tasks.store import Edit
from .errors import INTERNAL_ERROR, Again, Failed, Pause, TaskCancelled
from .function import Function, Result

INVALID_PARAMS = -32602


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


def ending_of(call: asyncio.Task[Result], stop: Stop | None, function: Function) -> Edit | None:
    """What follows from a call that has ended, or was stopped and given up; None: the task is not ours."""
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
            return finish(Failure.of(INTERNAL_ERROR, "the function was cancelled from within"))
        case Stop.TIMED_OUT:
            reason = f"the function took longer than {function.timeout:g} seconds"
            return run_again_or_end(function, Unfinished(reason=reason))
        case Stop.SHUT_DOWN:
            reason = "the worker was shut down before the task ended"
            return run_again_or_end(function, Unfinished(reason=reason, counted=False))
        case _:
            return lambda task, now, config: edits.cancel(task, now=now, config=config)


def _raised(error: BaseException, function: Function) -> Edit:
    match error:
        case Again(reason=reason, after=after):
            return run_again_or_end(function, Unfinished(reason=_storable(reason), after=after))
        case Pause():
            return pause_until_answered(error)
        case Failed(failure=failure):
            return finish(failure)
        case PerdureError(retryable=True):
            return run_again_or_end(function, Unfinished(reason=said_by(error)))
        case InvalidValue(field="arguments"):
            return finish(Failure.of(INVALID_PARAMS, str(error)))
        case _:
            return finish(Failure.of(INTERNAL_ERROR, said_by(error)))


def finish(outcome: Outcome) -> Edit:
    """End the task. A success keeps what the function said last as its message; an error says why."""

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        is_well = isinstance(outcome, Success) and outcome.error is None
        message = task.status_message if is_well else None
        return edits.finish(task, outcome, message=message, now=now, config=config)

    return edit


def _outcome_of(result: Result) -> Outcome:
    if isinstance(result, (Success, Failure)):
        return result
    try:
        return Success.of(result)
    except InvalidValue as error:
        return Failure.of(INTERNAL_ERROR, f"the function returned what JSON cannot express: {error}")


def said_by(error: BaseException) -> str:
    """An exception in a few words, even where it cannot say them itself."""
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        text = type(error).__name__
    return _storable(text)


def _storable(text: str) -> str:
    return text.encode(errors="replace").decode()[:4000]


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


_POINTLESS = Failure.of(INTERNAL_ERROR, "the function paused for what is answered already")


def pause_until_answered(pause: Pause) -> Edit:
    """Ask and let go: the answers put the task back into its queue."""

    def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        if task.cancel_requested_at is not None:
            return edits.cancel(task, now=now, config=config)
        if pause.variables:
            task = edits.set_variables(task, pause.variables, now=now, config=config)
        if pause.checkpoint:
            task = edits.save_checkpoint(task, pause.checkpoint, now=now, config=config)
        asked = ask_new(task, pause.requests, now, config)
        if not any(key in asked.outstanding for key in pause.requests):
            return edits.finish(asked, _POINTLESS, now=now, config=config)
        return edits.release(asked, uncounted=True, now=now, config=config)

    return edit


def ask_new(
    task: TaskRecord, requests: Mapping[str, InputRequest], now: Micros, config: StoreConfig
) -> TaskRecord:
    """Ask what of this the task never asked before."""
    inputs.check_repeated(task.inputs, requests)
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


def _next_run(function: Function | None, task: TaskRecord, attempt: Unfinished, now: Micros) -> Micros | None:
    """None: at once, by whoever's clock."""
    if function is None or not attempt.counted:
        return None
    pause = function.pause_after(task.attempts) if attempt.after is None else attempt.after
    return now + round(pause * 1_000_000)
