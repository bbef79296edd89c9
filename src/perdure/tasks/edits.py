"""Edits: pure functions that take a task and return a changed copy.

An edit raises an error if the lifecycle or a limit does not allow the change. If there is nothing to change,
for example on a second request to cancel, an edit returns the same object, and the store writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ..storage.limits import MAX_LANE_BYTES
from ..storage.records_and_changes import Micros
from . import attempt_history, canonical_json, expiry_and_deadlines, inputs, task_log
from .application_name import MAX_APPLICATION_BYTES, escape_application
from .canonical_json import JsonLike, check_integer, check_name, check_size, check_text
from .config import MAX_TTL_MS, StoreConfig, check_poll_interval
from .errors import InvalidValue, LimitExceeded
from .inputs import Capability, Input, InputError, InputRequest
from .lifecycle import Status, check_active, check_transition
from .owner import Owner
from .secret_contents import SecretContents
from .task_log import MAX_LOG_ENTRIES, MAX_REPORTS_BYTES, MAX_REPORTS_KEPT, LogEntry, Report
from .task_record import (
    Failure,
    OptionalJson,
    Outcome,
    Progress,
    Success,
    TaskId,
    TaskRecord,
    check_outcome,
    is_task_id,
)
from .variables_and_checkpoint import Variables, merge

MAX_FUNCTION_NAME_BYTES = MAX_LANE_BYTES - len("run//") - MAX_APPLICATION_BYTES

CANCELLED_OUTCOME = Failure.of(-32800, "The task was cancelled")
"""The outcome of every cancelled task."""


class AttemptEnd(Enum):
    """How an attempt can end without finishing the task. Each way has its own counter in the task."""

    FAILED = auto()
    """The function raised a retryable error, or exceeded its timeout."""
    INTERRUPTED = auto()
    """The attempt ended for a reason outside the function: for example, its worker was lost or stopped."""


class NewTask(SecretContents, frozen=True, kw_only=True):
    """The data from which a new task is created."""

    shown_in_repr = ("method", "function")

    method: str
    """The method of the request that creates the task, for example `tools/call`."""
    params: JsonLike | UnsetType = UNSET
    meta: JsonLike | UnsetType = UNSET
    ttl_ms: int | UnsetType | None = UNSET
    """The ttl (time to live). None means that the task never expires; UNSET means the default ttl."""
    is_ttl_requested: bool = False
    """Whether the client requested this ttl. If so, a ttl below the configured retention replaces the
    retention."""
    poll_interval_ms: int | None = None
    session_id: str | None = None
    variables: Mapping[str, JsonLike] = {}
    client_can: tuple[Capability, ...] | None = None
    """The capabilities that the client declared. None if no client creates the task."""
    operators_answer: bool = False
    """Whether operators answer questions. If so, the task can ask questions that its client cannot answer."""
    task_id: TaskId | None = None
    """The id of the task. If None, the store creates one. A caller that must know the id before the task is
    stored can create it with `TaskStore.new_id`."""
    function: str | None = None
    """The name of the function that a worker runs. None if the creator finishes the task without a worker."""
    idempotency_key: str | None = None
    """A key chosen by the client. A second call with the same key returns the task of the first call."""
    credentials: JsonLike | UnsetType = UNSET
    """The credentials of the caller. They are stored only if there is a key to encrypt them with."""
    attended_by: str | None = None
    """The process that is waiting for the task. If that process is lost or stops, the task is cancelled. None
    if the task does not depend on a process."""


def create(
    new: NewTask,
    *,
    application: str,
    owner: Owner,
    task_id: TaskId,
    now: Micros,
    config: StoreConfig,
    can_encrypt: bool = False,
) -> TaskRecord:
    """Return a new task.

    If `can_encrypt` is false, leave out the credentials, as there is no encryption key.
    """
    if not is_task_id(task_id):
        raise InvalidValue("task_id", "must consist of 1 to 128 ASCII letters or digits")
    check_name("method", new.method, config.max_name_length)
    if new.session_id is not None:
        check_name("session_id", new.session_id, config.max_name_length)
    if new.function is not None:
        check_name("function", new.function, min(config.max_name_length, MAX_FUNCTION_NAME_BYTES))
    if new.poll_interval_ms is not None:
        check_poll_interval("poll_interval_ms", new.poll_interval_ms)
    ttl = resolve_ttl(new.ttl_ms, config)
    return TaskRecord(
        task_id=task_id,
        owner=owner,
        application=application,
        session_id=new.session_id,
        status=Status.WORKING,
        created_at=now,
        last_updated_at=now,
        ttl_ms=ttl,
        retention_ms=_resolve_retention(ttl if new.is_ttl_requested else None, config),
        poll_interval_ms=new.poll_interval_ms or config.poll_interval_ms,
        original_method=new.method,
        params_json=_encode_optional("params", new.params, config.max_params_size_bytes),
        meta_json=_encode_optional("meta", new.meta, config.max_meta_size_bytes),
        variables_json=merge(Variables({}), new.variables, config) if new.variables else UNSET,
        client_can=None if new.client_can is None else tuple(sorted(new.client_can)),
        operators_answer=new.operators_answer,
        function=new.function,
        idempotency_key=new.idempotency_key,
        credentials_json=_encode_optional("credentials", new.credentials, config.max_meta_size_bytes)
        if can_encrypt
        else UNSET,
        credentials_not_stored=not (can_encrypt or isinstance(new.credentials, UnsetType)),
        is_encrypted=config.encrypt == "everything",
        attended_by=new.attended_by,
    )


def report(
    task: TaskRecord,
    *,
    message: str | None = None,
    progress: Progress | None = None,
    reports: Sequence[Report] = (),
    now: Micros,
    config: StoreConfig,
) -> TaskRecord:
    """Set the status message, the progress, or both. Add `reports` to the stored progress reports.

    If `message` or `progress` is `None`, keep the current value.
    """
    check_active(task.status)
    if message is not None:
        check_text("status_message", message, config.max_message_length)
    reported = _updated(
        task,
        now,
        status_message=task.status_message if message is None else message,
        progress=task.progress if progress is None else progress,
        reports_json=task_log.append(
            task.reports_json, reports, max_entries=MAX_REPORTS_KEPT, max_bytes=MAX_REPORTS_BYTES
        ),
    )
    is_new = (reported.status_message, reported.progress) != (task.status_message, task.progress)
    return _progressed(reported) if is_new else reported


def log(
    task: TaskRecord, entries: Sequence[LogEntry], *, skipped: int = 0, config: StoreConfig
) -> TaskRecord:
    """Add entries to the log. `skipped` is the number of earlier entries that the caller left out.

    The log is not part of the task that clients read, so `last_updated_at` does not change.
    """
    check_active(task.status)
    added = task_log.append(
        task.log_json,
        entries,
        skipped=skipped,
        max_entries=MAX_LOG_ENTRIES,
        max_bytes=config.max_log_size_bytes,
    )
    return task if added is task.log_json else replace(task, log_json=added)


def set_variables(
    task: TaskRecord, changes: Mapping[str, JsonLike], *, now: Micros, config: StoreConfig
) -> TaskRecord:
    """Set variables by name. The value None removes a variable."""
    check_active(task.status)
    return _updated(task, now, variables_json=merge(task.variables, changes, config))


def save_checkpoint(
    task: TaskRecord, changes: Mapping[str, JsonLike], *, now: Micros, config: StoreConfig
) -> TaskRecord:
    """Set named values in the checkpoint. A value of None removes the name."""
    check_active(task.status)
    merged = merge(task.checkpoint, changes, config, "checkpoint")
    saved = _updated(task, now, checkpoint_json=merged)
    before = task.checkpoint_json
    is_new = isinstance(before, UnsetType) or bytes(merged) != bytes(before)
    return _progressed(saved) if is_new else saved


def finish(
    task: TaskRecord, outcome: Outcome, *, message: str | None = None, now: Micros, config: StoreConfig
) -> TaskRecord:
    """Finish the task, with the status `completed` for a Success and `failed` for a Failure.

    `message` becomes the status message. If it is None, the error of the outcome, if any, is used instead.
    """
    check_outcome(outcome)
    error = outcome.error if isinstance(outcome, Success) else outcome.message
    if message is None and error is not None:
        message = error[: config.max_message_length]
    if isinstance(outcome, Success):
        check_size("result", outcome.result, config.max_result_size_bytes)
        return _finish_as(task, Status.COMPLETED, outcome, message, now, config)
    check_size("error", canonical_json.encode(outcome), config.max_error_size_bytes)
    return _finish_as(task, Status.FAILED, outcome, message, now, config)


def cancel(task: TaskRecord, *, message: str | None = None, now: Micros, config: StoreConfig) -> TaskRecord:
    """Finish the task as cancelled."""
    return _finish_as(
        task, Status.CANCELLED, CANCELLED_OUTCOME, message or CANCELLED_OUTCOME.message, now, config
    )


def _finish_as(
    task: TaskRecord,
    status: Status,
    outcome: Outcome,
    message: str | None,
    now: Micros,
    config: StoreConfig,
) -> TaskRecord:
    check_transition(task.status, status)
    if message is not None:
        check_text("status_message", message, config.max_message_length)
    at = _edit_time(task, now)
    return replace(
        task,
        status=status,
        outcome=outcome,
        status_message=message,
        finished_at=at,
        last_updated_at=at,
        is_claimed=False,
        credentials_json=UNSET,
    )


def request_cancel(task: TaskRecord, *, now: Micros) -> TaskRecord:
    """Record that a cancellation was requested. A second request changes nothing."""
    check_transition(task.status, Status.CANCELLED)
    if task.cancel_requested_at is not None:
        return task
    return _updated(task, now, cancel_requested_at=now)


def attend(task: TaskRecord, process: str | None, *, now: Micros) -> TaskRecord:
    """Set the process that waits for the task on behalf of a client (see `TaskRecord.attended_by`).

    If that process is lost, the task is cancelled. None means that no process waits for the task.
    """
    check_active(task.status)
    return task if task.attended_by == process else _updated(task, now, attended_by=process)


def limit_questions(task: TaskRecord, keys: Iterable[str], deadline_at: Micros, *, now: Micros) -> TaskRecord:
    """Set the deadline of the questions with these keys, unless they are answered or have an earlier one."""
    check_active(task.status)
    limited = {
        key: replace(asked, deadline_at=deadline_at)
        for key in keys
        if (asked := task.outstanding.get(key)) is not None
        and (asked.deadline_at is None or asked.deadline_at > deadline_at)
    }
    return _updated(task, now, inputs={**task.inputs, **limited}) if limited else task


def ask(
    task: TaskRecord, requests: Mapping[str, InputRequest], *, now: Micros, config: StoreConfig
) -> TaskRecord:
    """Add questions for the client. Earlier questions may still be open.

    Raise QuestionChanged if the task has already used the key of a question.
    """
    check_active(task.status)
    if task.status is not Status.INPUT_REQUIRED:
        check_transition(task.status, Status.INPUT_REQUIRED)
    asked = inputs.ask(task.inputs, requests, ttl_ms=task.ttl_ms, now=now, config=config)
    return _updated(task, now, status=Status.INPUT_REQUIRED, inputs=asked)


def answer(
    task: TaskRecord, answers: Mapping[str, JsonLike], *, now: Micros, config: StoreConfig
) -> TaskRecord:
    """Store answers to open questions. When all questions are answered, the task can resume.

    Raise MalformedAnswer if an answer does not fit its question.
    """
    from .form_validation import check_form  # noqa: PLC0415 (jsonschema is slow to import, and answers are rare)

    check_active(task.status)
    new_answers = inputs.answer(task.inputs, answers, now=now, config=config)  # checks the limits first
    for key in new_answers:
        check_form(key, task.inputs[key], answers[key])
    return _answered(task, new_answers, now)


def fail_question(
    task: TaskRecord, key: str, error: InputError, *, now: Micros, config: StoreConfig
) -> TaskRecord:
    """Store a JSON-RPC error as the answer to an open question. A long error message is truncated."""
    check_active(task.status)
    check_integer("error.code", error.code)
    cut = replace(error, message=error.message[: config.max_message_length])
    return _answered(task, inputs.fail(task.inputs, key, cut, now=now), now)


def _answered(task: TaskRecord, new_answers: Mapping[str, Input], now: Micros) -> TaskRecord:
    if not new_answers:
        return task
    answered = _updated(task, now, inputs={**task.inputs, **new_answers})
    if answered.outstanding:
        return answered
    check_transition(task.status, Status.WORKING)
    return replace(answered, status=Status.WORKING)


def claim(task: TaskRecord, *, worker: str | None = None, now: Micros) -> TaskRecord:
    """Claim the task for a new attempt. Once a task has been claimed, it cannot expire before it finishes."""
    check_active(task.status)
    at = _edit_time(task, now)
    return _updated(
        task,
        at,
        is_claimed=True,
        run_at=None,
        attempts=task.attempts + 1,
        attempt_history_json=attempt_history.start_attempt(task.attempt_history_json, at, worker),
    )


def release(
    task: TaskRecord,
    *,
    reason: str | None = None,
    run_at: Micros | None = None,
    end: AttemptEnd | None = None,
    now: Micros,
    config: StoreConfig,
) -> TaskRecord:
    """Release an unfinished task, so that another worker can claim it.

    If `end` is None, the attempt is not counted, because the task is waiting for answers or its function was
    not started. `run_at` is the earliest time of the next attempt; None allows it at once.
    """
    check_active(task.status)
    at = _edit_time(task, now)
    is_waiting = task.status is Status.INPUT_REQUIRED  # while a task waits, no work can be interrupted
    return _updated(
        task,
        at,
        is_claimed=False,
        run_at=run_at,
        released_at=at,
        attempts=max(0, task.attempts - (end is None)),
        failures=task.failures + (end is AttemptEnd.FAILED),
        interruptions=task.interruptions + (end is AttemptEnd.INTERRUPTED and not is_waiting),
        last_failure=task.last_failure if reason is None else reason[: config.max_message_length],
        attempt_history_json=attempt_history.end_attempt(task.attempt_history_json, at, reason)
        if task.is_claimed
        else task.attempt_history_json,
    )


def timer(task: TaskRecord) -> tuple[str, Micros] | tuple[None, None]:
    """Return the lane (timer queue) of the task and its due time, or (None, None) if the task has no timer.

    Each function of an application has its own lane, so a worker reads only tasks that it can run. A task
    that is waiting for answers is in the deadline lane of its application, if one of its questions has a
    deadline.
    """
    if task.is_claimed or task.is_terminal:
        return None, None
    if task.status is Status.INPUT_REQUIRED:
        deadline = expiry_and_deadlines.question_deadline(task)
        return (None, None) if deadline is None else (deadline_lane(task.application), deadline)
    if task.function is None:
        return None, None
    return run_lane(task.application, task.function), task.created_at if task.run_at is None else task.run_at


def run_lane(application: str, function: str) -> str:
    """Return the lane of the queued tasks of this function."""
    return f"run/{escape_application(application)}/{function}"


def deadline_lane(application: str) -> str:
    """Return the lane of the unclaimed tasks whose questions must be answered before a deadline."""
    return f"deadline/{escape_application(application)}"


def _updated(task: TaskRecord, now: Micros, **changes: object) -> TaskRecord:
    """Return a copy of the task with these changes and a new `last_updated_at`."""
    return replace(task, **changes, last_updated_at=_edit_time(task, now))


def _progressed(task: TaskRecord) -> TaskRecord:
    return replace(task, interruptions=0) if task.interruptions else task


def _edit_time(task: TaskRecord, now: Micros) -> Micros:
    """Return `now`, or the time of the previous edit if that is later: another clock may be ahead."""
    return max(now, task.last_updated_at)


def resolve_ttl(ttl: int | UnsetType | None, config: StoreConfig) -> int | None:
    """Return `ttl` in milliseconds, or the default ttl if it is UNSET.

    Raise InvalidValue if `ttl` is not allowed: for example, if it exceeds the maximum.
    """
    if isinstance(ttl, UnsetType):
        return config.ttl_ms
    if ttl is None:
        if config.max_ttl_ms is not None:
            raise InvalidValue("ttl", f"null (no expiry) is not allowed; use at most {config.max_ttl_ms} ms")
        return None
    check_integer("ttl", ttl)
    if ttl < 1:
        raise InvalidValue("ttl", f"must be at least 1 ms, not {ttl}")
    maximum = MAX_TTL_MS if config.max_ttl_ms is None else config.max_ttl_ms
    if ttl > maximum:
        raise LimitExceeded("ttl", maximum, ttl, "ms")
    return ttl


def _resolve_retention(requested_ttl: int | None, config: StoreConfig) -> int | None:
    limits = [each for each in (config.retention_ms, requested_ttl) if each is not None]
    return min(limits, default=None)


def _encode_optional(field: str, value: JsonLike | UnsetType, max_bytes: int) -> OptionalJson:
    return (
        UNSET
        if isinstance(value, UnsetType)
        else canonical_json.encode_checked(field, value, max_bytes=max_bytes)
    )
