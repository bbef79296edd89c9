"""The stored task: one frozen struct.

JSON from callers (parameters, results, variables) is kept as canonical bytes and decoded only on access, so
most reads and writes of a task do not decode its contents.
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
from .canonical_json import Json, JsonLike, check_canonical, check_integer, check_text
from .errors import CorruptRecord, InvalidValue
from .inputs import Capability, Input
from .lifecycle import Status
from .owner import Owner
from .task_log import LogEntry, NewestEntries, Report, decode_log, decode_reports
from .variables_and_checkpoint import Variables

TASK_FORMAT = 2
"""The version of the format of stored tasks. Increase it if a field is removed or changes its meaning."""

TaskId = NewType("TaskId", str)

OptionalJson: TypeAlias = Raw | UnsetType
"""Canonical JSON, or UNSET if there is no value. JSON null counts as a value."""

MAX_HEADLINE_LENGTH = 500
"""Maximum number of characters in the one-line summary of an error."""


def new_task_id() -> TaskId:
    """Return an id with 128 random bits. It must be unguessable, because it can serve as a bearer token."""
    return TaskId(secrets.token_hex(16))


def is_task_id(text: object) -> TypeGuard[TaskId]:
    """Return whether `text` has the form of a task id: 1 to 128 ASCII letters and digits."""
    return isinstance(text, str) and text.isascii() and text.isalnum() and len(text) <= 128


class Success(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="success", tag_field="kind"):
    """The result of a task, as the original request would have returned it. It may report an error."""

    result: Raw
    """The result as canonical JSON. `Success.of` creates it from a plain value."""
    error: str | None = None
    """One-line summary of the error that the result reports, if any. Clients can read it."""
    cause: str | None = None
    """One-line summary of the exception that caused the error. Only operators can read it."""

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

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error={self.error!r}"
        return f"Success({self.value!r}{error})"


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="error", tag_field="kind"):
    """The JSON-RPC error of a task, as the original request would have returned it."""

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

    def __repr__(self) -> str:
        data = "" if isinstance(self.data_json, UnsetType) else f", {self.data!r}"
        return f"Failure({self.code}, {self.message!r}{data})"


Outcome: TypeAlias = Success | Failure


def headline(text: str) -> str:
    """Return the first line that is not blank, cut to `MAX_HEADLINE_LENGTH` characters."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "")[:MAX_HEADLINE_LENGTH]


def check_outcome(outcome: object) -> None:
    """Raise InvalidValue if `outcome` is invalid, which is possible if it was not created with `of`."""
    match outcome:
        case Success(result=result, error=error, cause=cause):
            check_canonical("result", result)
            for field, text in (("error", error), ("cause", cause)):
                if text is not None:
                    check_text(field, text, MAX_HEADLINE_LENGTH)
        case Failure(code=code, message=message, data_json=data):
            check_integer("error.code", code)
            check_text("error.message", message)
            if isinstance(data, Raw):
                check_canonical("error.data", data)
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
    """The owner of the task. It comes from the authenticated request and never changes."""
    application: str
    """The application whose workers run the task. It never changes."""
    session_id: str | None = None
    """The session that created the task. It can be used to filter lists, but it grants no access."""
    status: Status
    status_message: str | None = None
    created_at: Micros
    last_updated_at: Micros
    """When the task was last changed."""
    ttl_ms: int | None = msgspec.field(name="ttl")
    """Milliseconds from creation within which the task must be started. None means no limit."""
    retention_ms: int | None = msgspec.field(default=None, name="retention")
    """Minimum number of milliseconds for which the finished task is kept. None means forever."""
    poll_interval_ms: int = msgspec.field(name="poll_interval")
    """Milliseconds that clients should wait between two polls."""
    original_method: str
    params_json: OptionalJson = msgspec.field(default=UNSET, name="original_params")
    """The parameters of the request that created the task."""
    outcome: Outcome | None = None
    """The result or error of the task. It is written once, together with the final status."""
    finished_at: Micros | None = None
    meta_json: OptionalJson = msgspec.field(default=UNSET, name="meta")
    """The `_meta` field of the request that created the task."""
    variables_json: OptionalJson = msgspec.field(default=UNSET, name="variables")
    """The variables of the task. Its worker and its client can both read and set them."""
    checkpoint_json: OptionalJson = msgspec.field(default=UNSET, name="checkpoint")
    """The checkpoint of the worker. Clients can neither read nor write it."""
    client_can: tuple[str, ...] | None = None
    """The capabilities that the client declared. None if no client created the task."""
    operators_answer: bool = False
    """Whether the task can ask questions that its client does not support, because operators answer them."""
    inputs: dict[str, Input] = {}
    """All questions of the task by key, with their answers."""
    progress: Progress | None = None
    reports_json: OptionalJson = msgspec.field(default=UNSET, name="reports")
    """The newest progress reports. One write can store several reports, and a client can receive each."""
    log_json: OptionalJson = msgspec.field(default=UNSET, name="log")
    """The newest log entries of the function. They are removed if the task would otherwise be too large."""
    cancel_requested_at: Micros | None = None
    """When a cancellation was requested. The worker then cancels the task."""
    function: str | None = None
    """The name of the function that a worker runs. None if the creator finishes the task without a worker."""
    is_claimed: bool = msgspec.field(default=False, name="held")
    """Whether a worker currently has a claim on the task."""
    run_at: Micros | None = None
    """The earliest time of the next attempt. None if the task can be started at once."""
    released_at: Micros | None = None
    """When the task was most recently released unfinished, by its worker or because the worker was lost."""
    attempts: int = 0
    """Number of attempts. An attempt is counted when it starts, so attempts that end in a crash count too."""
    failures: int = 0
    """Number of attempts that raised `Again` or timed out. The function's `retries` setting limits it."""
    interruptions: int = 0
    """Number of interruptions (worker lost or stopped, storage failed) since the task last made progress."""
    last_failure: str | None = None
    """Why the most recent failed or interrupted attempt ended."""
    attempt_history_json: OptionalJson = msgspec.field(default=UNSET, name="history")
    """The most recent attempts, for display only."""
    idempotency_key: str | None = None
    credentials_json: OptionalJson = msgspec.field(default=UNSET, name="credentials")
    """The credentials of the caller. They are stored only encrypted, and removed when the task finishes."""
    credentials_omitted: bool = False
    """Whether the caller had credentials that were not stored, because there was no key to encrypt them."""
    is_encrypted: bool = msgspec.field(default=False, name="encrypted")
    """Whether everything is encrypted that is not needed to list, schedule and expire the task."""
    ciphertexts: dict[str, str] = {}
    """The encrypted fields. Empty if the task was decrypted; see `Snapshot.head_of`."""
    attended_by: str | None = None
    """The process in which the call of a client without tasks waits for the task. If that process is lost or
    stops, the task is cancelled. None for all other tasks."""
    unknown_fields: OptionalJson = msgspec.field(default=UNSET, name="unknown")
    """Fields that a later version of perdure added. This version writes them back unchanged."""

    def __repr__(self) -> str:
        return f"TaskRecord({self.task_id}, {self.status.value})"  # other fields may be secret

    @property
    def is_terminal(self) -> bool:
        return self.status.is_terminal

    @property
    def is_error(self) -> bool:
        """Whether the task completed with a result that reports an error."""
        return isinstance(self.outcome, Success) and self.outcome.error is not None

    @property
    def effective_status(self) -> Status:
        """The status that operators see: `failed` if the result reports an error."""
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
        """Return whether the client declared this capability, or the task has no client."""
        return self.client_can is None or capability.value in self.client_can

    @property
    def questions(self) -> dict[str, Input]:
        """The open questions that the client of the task can answer."""
        if self.client_can is None:
            return self.outstanding
        return {key: asked for key, asked in self.outstanding.items() if self.can_ask(asked.capability)}

    @property
    def outstanding(self) -> dict[str, Input]:
        """The open questions, which have not been answered yet."""
        return {key: asked for key, asked in self.inputs.items() if not asked.is_answered}


_format = BodyFormat(TaskRecord)
_decoder = msgspec.json.Decoder(TaskRecord)


def encode_task(task: TaskRecord) -> bytes:
    """Return the canonical bytes of a task."""
    if isinstance(task.unknown_fields, UnsetType):
        return canonical_json.encode(task)
    known = canonical_json.decode(canonical_json.encode(msgspec.structs.replace(task, unknown_fields=UNSET)))
    return canonical_json.encode(_overlay(known, canonical_json.decode(task.unknown_fields)))


def decode_task(task_id: str, body: str) -> TaskRecord:
    """Decode a task. Raise CorruptRecord if it is damaged, or NewerFormat if its format is too new."""
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
        task, unknown_fields=Raw(canonical_json.encode(unknown)) if unknown else UNSET
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
    return {**known, **added}
