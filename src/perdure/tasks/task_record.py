"""`TaskRecord`: a task as it is stored.

JSON values from callers (parameters, results, variables) are kept as encoded bytes and decoded only when they
are accessed, so most reads and writes of a task do not decode them.
"""

from __future__ import annotations

import secrets
from typing import NewType, TypeAlias, TypeGuard

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ..storage.body_format import FORMAT_FIELD, UNREADABLE, BodyFormat
from ..storage.errors import NewerFormat, StorageCorrupt
from ..storage.records_and_changes import Micros
from . import canonical_json
from .attempt_history import Attempt, decode_attempts
from .canonical_json import Json, JsonLike, check_encoded, check_integer, check_text
from .errors import CorruptRecord, InvalidValue
from .inputs import Capability, Input
from .lifecycle import Status
from .owner import Owner
from .secret_contents import SecretContents
from .task_log import LogEntry, NewestEntries, Report, decode_log, decode_reports
from .variables_and_checkpoint import Variables

TASK_FORMAT = 2
"""The version of the format of stored tasks. Increase it if a field is removed or its meaning changes."""

TaskId = NewType("TaskId", str)

OptionalJson: TypeAlias = Raw | UnsetType
"""Encoded JSON, or UNSET if there is no value. JSON null counts as a value."""

MAX_HEADLINE_LENGTH = 500
"""Maximum number of characters in the one-line summary of an error."""


def new_task_id() -> TaskId:
    """Return an id with 128 random bits.

    It must be unguessable, because it alone protects anonymous tasks.
    """
    return TaskId(secrets.token_hex(16))


def is_task_id(text: object) -> TypeGuard[TaskId]:
    """Return whether `text` has the form of a task id: 1 to 128 ASCII letters and digits."""
    return isinstance(text, str) and text.isascii() and text.isalnum() and len(text) <= 128


class Success(SecretContents, frozen=True, kw_only=True, omit_defaults=True, tag="success", tag_field="kind"):
    """The result of a completed task. It is the result of the original request, and may report an error."""

    result: Raw
    """The result as JSON. `Success.of` creates it from a plain value."""
    error: str | None = None
    """One-line summary of the error that the result reports, or None if it reports no error. Clients can read
    the summary."""
    cause: str | None = None
    """One-line summary of the exception that caused the error, if any. Only operators can read it."""

    @classmethod
    def of(cls, value: JsonLike, *, error: str | None = None, cause: str | None = None) -> Success:
        return cls(
            result=canonical_json.encode_checked("result", value),
            error=None if error is None else headline(error),
            cause=None if cause is None else headline(cause),
        )

    @property
    def value(self) -> Json:
        return canonical_json.decode(self.result)


class Failure(SecretContents, frozen=True, kw_only=True, omit_defaults=True, tag="error", tag_field="kind"):
    """The JSON-RPC error of a failed or cancelled task."""

    shown_in_repr = ("code",)

    code: int
    message: str
    data_json: OptionalJson = msgspec.field(default=UNSET, name="data")

    @classmethod
    def of(cls, code: int, message: str, data: JsonLike | UnsetType = UNSET) -> Failure:
        raw = UNSET if isinstance(data, UnsetType) else canonical_json.encode_checked("error.data", data)
        check_integer("error.code", code)
        return cls(code=code, message=check_text("error.message", message), data_json=raw)

    @property
    def data(self) -> Json:
        """The `data` of the JSON-RPC error, or None if there is none."""
        return canonical_json.decode(self.data_json)


Outcome: TypeAlias = Success | Failure


def headline(text: str) -> str:
    """Return the first line of `text` that is not blank, cut to `MAX_HEADLINE_LENGTH` characters."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "")[:MAX_HEADLINE_LENGTH]


def check_outcome(outcome: object) -> None:
    """Raise InvalidValue if `outcome` is invalid. An outcome that was created with `of` is always valid."""
    match outcome:
        case Success(result=result, error=error, cause=cause):
            check_encoded("result", result)
            for field, text in (("error", error), ("cause", cause)):
                if text is not None:
                    check_text(field, text, MAX_HEADLINE_LENGTH)
        case Failure(code=code, message=message, data_json=data):
            check_integer("error.code", code)
            check_text("error.message", message)
            if isinstance(data, Raw):
                check_encoded("error.data", data)
        case _:
            raise InvalidValue("outcome", f"must be a Success or a Failure, not {type(outcome).__name__}")


MAX_PROGRESS = 1e15


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of a task, in a unit that the worker chooses."""

    done: int | float
    total: int | float | None = None

    def __post_init__(self) -> None:
        for number in (self.done, self.total):
            if number is not None and (type(number) not in (int, float) or not abs(number) < MAX_PROGRESS):
                raise InvalidValue(
                    "progress",
                    f"must be a number with an absolute value below {MAX_PROGRESS:g}, not {number!r}",
                )


class TaskRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=TASK_FORMAT
):
    """A stored task. The functions in `edits` return changed copies of it."""

    task_id: TaskId
    owner: Owner
    """The owner of the task: the caller that created it. It never changes."""
    application: str
    """The application whose workers run the task. It never changes."""
    session_id: str | None = None
    """The session in which the task was created. Lists can be filtered by session, but access depends only on
    the owner."""
    status: Status
    status_message: str | None = None
    created_at: Micros
    last_updated_at: Micros
    """When the task was last changed, not counting log entries."""
    ttl_ms: int | None = msgspec.field(name="ttl")
    """Milliseconds after creation within which the task must be started. None means that it never expires."""
    retention_ms: int | None = msgspec.field(default=None, name="retention")
    """Minimum number of milliseconds for which the finished task is kept. None means forever."""
    poll_interval_ms: int = msgspec.field(name="poll_interval")
    """Milliseconds that clients should wait between two polls."""
    original_method: str
    params_json: OptionalJson = msgspec.field(default=UNSET, name="original_params")
    """The parameters of the request that created the task."""
    outcome: Outcome | None = None
    """The result or error of the task. `None` while the task is active. It never changes once it is set."""
    finished_at: Micros | None = None
    meta_json: OptionalJson = msgspec.field(default=UNSET, name="meta")
    """The `_meta` field of the request that created the task."""
    variables_json: OptionalJson = msgspec.field(default=UNSET, name="variables")
    """The variables of the task. Its worker and its client can read and set them."""
    checkpoint_json: OptionalJson = msgspec.field(default=UNSET, name="checkpoint")
    """The checkpoint: named values that the worker saves for later attempts. Clients cannot access them."""
    client_can: tuple[str, ...] | None = None
    """The capabilities that the client declared. None if no client created the task."""
    operators_answer: bool = False
    """Whether operators can answer the questions of this task. If so, the task can also ask what its
    client cannot answer."""
    inputs: dict[str, Input] = {}
    """All questions that the task has asked, by key, with the answers given so far."""
    progress: Progress | None = None
    reports_json: OptionalJson = msgspec.field(default=UNSET, name="reports")
    """The newest progress reports. They are stored because one write can add several reports, of which
    `progress` contains only the last."""
    log_json: OptionalJson = msgspec.field(default=UNSET, name="log")
    """The newest log entries of the function. They are removed if the task would otherwise be too large."""
    cancel_requested_at: Micros | None = None
    """When the worker that runs the task was asked to cancel it. None if there was no such request."""
    function: str | None = None
    """The name of the function that a worker runs. None if the creator finishes the task without a worker."""
    is_claimed: bool = msgspec.field(default=False, name="held")
    """Whether a worker currently has a claim on the task, which is the right to run it."""
    run_at: Micros | None = None
    """The earliest time of the next attempt. None if the task can be started at once."""
    released_at: Micros | None = None
    """When the unfinished task was last released, by its worker or because the worker was lost. None if it
    has never been released."""
    attempts: int = 0
    """Number of attempts. An attempt is counted when it starts, so that a crash cannot hide it. It is no
    longer counted if it ends because the task waits for answers, or before its function was started."""
    failures: int = 0
    """Number of attempts that failed with an error that can be retried, or timed out. When it exceeds the
    function's `retries` setting, the task fails."""
    interruptions: int = 0
    """Number of interruptions (worker lost or stopped, storage failed) since the task last made progress."""
    last_failure: str | None = None
    """The reason why the most recent unsuccessful attempt ended. None if no attempt failed or was
    interrupted."""
    attempt_history_json: OptionalJson = msgspec.field(default=UNSET, name="history")
    """The most recent attempts, for display only."""
    idempotency_key: str | None = None
    credentials_json: OptionalJson = msgspec.field(default=UNSET, name="credentials")
    """The credentials of the caller. They are always encrypted in the storage, and are removed when the task
    finishes."""
    credentials_not_stored: bool = msgspec.field(default=False, name="credentials_omitted")
    """Whether the caller had credentials that were not stored, because there was no key to encrypt them
    with."""
    is_encrypted: bool = msgspec.field(default=False, name="encrypted")
    """Whether all fields are encrypted, except those needed to list, schedule and expire the task."""
    ciphertexts: dict[str, str] = {}
    """The encrypted fields, if the task was read without decrypting them (see `Snapshot.head_of`)."""
    attended_by: str | None = None
    """The process that is waiting for the task on behalf of a client that does not support tasks. If that
    process is lost or stops, the task is cancelled. `None` if no process waits for it."""
    unknown_fields: OptionalJson = msgspec.field(default=UNSET, name="unknown")
    """Fields that a later version of perdure added. This version writes them back unchanged."""

    def __repr__(self) -> str:
        return f"TaskRecord({self.task_id}, {self.status.value})"  # other fields may be secret

    @property
    def is_terminal(self) -> bool:
        return self.status.is_terminal

    @property
    def is_error(self) -> bool:
        """Whether the task has completed with a result that reports an error."""
        return isinstance(self.outcome, Success) and self.outcome.error is not None

    @property
    def effective_status(self) -> Status:
        """The status that operators see: `failed` if the result reports an error, otherwise `status`."""
        return Status.FAILED if self.is_error else self.status

    @property
    def original_params(self) -> Json:
        return canonical_json.decode(self.params_json)

    @property
    def meta(self) -> Json:
        return canonical_json.decode(self.meta_json)

    @property
    def credentials(self) -> Json:
        return canonical_json.decode(self.credentials_json)

    @property
    def variables(self) -> Variables:
        return Variables.decode(self.variables_json)

    @property
    def checkpoint(self) -> Variables:
        return Variables.decode(self.checkpoint_json)

    @property
    def attempt_history(self) -> tuple[Attempt, ...]:
        return decode_attempts(self.attempt_history_json)

    @property
    def reports(self) -> NewestEntries[Report]:
        return decode_reports(self.reports_json)

    @property
    def log(self) -> NewestEntries[LogEntry]:
        return decode_log(self.log_json)

    def can_ask(self, capability: Capability) -> bool:
        """Return whether the task may ask questions of this kind.

        Its client must have declared the capability. A task that no client created may ask everything.
        """
        return self.client_can is None or capability.value in self.client_can

    @property
    def questions(self) -> dict[str, Input]:
        """The open questions that the client can answer.

        If no client created the task: all open questions.
        """
        if self.client_can is None:
            return self.outstanding
        return {key: asked for key, asked in self.outstanding.items() if self.can_ask(asked.capability)}

    @property
    def outstanding(self) -> dict[str, Input]:
        """The open questions: those that have not been answered yet."""
        return {key: asked for key, asked in self.inputs.items() if not asked.is_answered}


_format = BodyFormat(TaskRecord)
_decoder = msgspec.json.Decoder(TaskRecord)


def encode_task(task: TaskRecord) -> bytes:
    """Return a task as JSON, including fields that were written by a later version of perdure."""
    if isinstance(task.unknown_fields, UnsetType):
        return canonical_json.encode(task)
    known = canonical_json.decode(canonical_json.encode(msgspec.structs.replace(task, unknown_fields=UNSET)))
    return canonical_json.encode_in_order(_overlay(known, canonical_json.decode(task.unknown_fields)))


def decode_task(task_id: str, body: str) -> TaskRecord:
    """Decode a task. Raise CorruptRecord if it is damaged, and NewerFormat if its format is too new."""
    try:
        task = _decoder.decode(body)
        known = canonical_json.encode(task)
        if known == (stored := body.encode()):
            return task
        plain = canonical_json.decode(stored)
        unknown = _difference(plain, canonical_json.decode(known))
    except UNREADABLE as error:
        raise _error(task_id, body, str(error)) from error
    if not (isinstance(plain, dict) and FORMAT_FIELD in plain):  # the decoder above accepts a body without it
        raise _error(task_id, body, "")
    return msgspec.structs.replace(
        task, unknown_fields=Raw(canonical_json.encode_in_order(unknown)) if unknown else UNSET
    )


def _error(task_id: str, body: str, reason: str) -> NewerFormat | CorruptRecord:
    error = _format.error(task_id, body, reason)
    return CorruptRecord(task_id, str(error)) if isinstance(error, StorageCorrupt) else error


def _difference(stored: Json, known: Json) -> dict[str, Json]:
    """Return the fields of `stored`, at any depth, that `known` does not have."""
    if not (isinstance(stored, dict) and isinstance(known, dict)):
        return {}
    missing = {key: value for key, value in stored.items() if key not in known}
    nested = {key: _difference(value, known[key]) for key, value in stored.items() if key in known}
    return {**missing, **{key: value for key, value in nested.items() if value}}


def _overlay(known: Json, unknown: Json) -> Json:
    """Return `known` with the fields of `unknown` added, at any depth."""
    if not (isinstance(known, dict) and isinstance(unknown, dict)):
        return known
    added = {key: _overlay(known[key], value) if key in known else value for key, value in unknown.items()}
    return dict(sorted({**known, **added}.items())) if added else known
