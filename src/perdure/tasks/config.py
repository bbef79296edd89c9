"""How a task store is set up. Every limit has a name, a default and a check at construction."""

from __future__ import annotations

import msgspec

from ..storage.limits import MAX_COMMIT_BYTES, MAX_INTEGER, MAX_KEY_BYTES
from .codec import MAX_DEPTH
from .errors import InvalidValue

KIB = 1024
MIB = 1024 * KIB
SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS
DAY_MS = 24 * HOUR_MS

MAX_TTL_MS = 100 * 365 * DAY_MS
"""A hundred years: more is for ever, and is asked for with null."""
MIN_POLL_INTERVAL_MS = 50
MAX_POLL_INTERVAL_MS = 30 * SECOND_MS


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a store. Sizes are of UTF-8 JSON; times are in milliseconds, as in the protocol."""

    # Who, and how many
    allow_anonymous: bool = False
    """Serve callers that cannot be told apart: the unguessable id is then the key to a task."""
    max_tasks_per_owner: int = 100
    """Active tasks of one owner. Holds exactly."""
    max_tasks: int = 10_000
    """Active tasks altogether; 0: no maximum. May be exceeded by the creates in flight."""

    # How long
    default_ttl_ms: int | None = DAY_MS
    """How long a task waits for its first start, and a question for its answer; None: forever."""
    max_ttl_ms: int | None = 30 * DAY_MS
    """The longest ttl that a client may name; None: any, forever included."""
    result_retention_ms: int | None = 7 * DAY_MS
    """How long a result stays readable, unless the client named a shorter ttl; None: forever."""
    idempotency_window_ms: int = DAY_MS
    """How long an idempotency key is remembered."""
    default_poll_interval_ms: int = SECOND_MS
    """What clients are told to wait between two looks, where the task says nothing else."""

    # How large
    max_variable_size_bytes: int = MIB
    """All variables of a task together, and all of its checkpoint together."""
    max_variable_depth: int = 10
    max_variables: int = 1000
    max_variable_name_length: int = 256
    max_string_length: int = 64 * KIB
    """Of a string within a variable, in characters."""
    max_params_size_bytes: int = MIB
    max_result_size_bytes: int = MIB
    max_error_size_bytes: int = 64 * KIB
    max_meta_size_bytes: int = 64 * KIB
    max_message_length: int = 4 * KIB
    """Of a status message, in characters."""
    max_name_length: int = 256
    """Of a method, a session id and an idempotency key, in bytes."""
    max_inputs: int = 64
    """Requests that one call asks, or answers that one call gives."""
    max_input_size_bytes: int = 64 * KIB
    max_inputs_size_bytes: int = 256 * KIB
    """All requests, or answers, of one call together."""
    max_input_depth: int = 32
    max_record_size_bytes: int = MAX_COMMIT_BYTES - 64 * KIB
    """The whole task. Leaves room for bookkeeping, and for what else is committed together with it."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            _check_field(field.name, getattr(self, field.name))
        check_poll_interval("default_poll_interval_ms", self.default_poll_interval_ms)
        if self.max_ttl_ms is not None and (
            self.default_ttl_ms is None or self.default_ttl_ms > self.max_ttl_ms
        ):
            raise InvalidValue("default_ttl_ms", f"must be at most max_ttl_ms, which is {self.max_ttl_ms}")


_NULLABLE = ("default_ttl_ms", "max_ttl_ms", "result_retention_ms")
_MAXIMA = {
    "default_ttl_ms": MAX_TTL_MS,
    "max_ttl_ms": MAX_TTL_MS,
    "result_retention_ms": MAX_TTL_MS,
    "idempotency_window_ms": MAX_TTL_MS,
    "max_variable_depth": MAX_DEPTH - 1,
    "max_input_depth": MAX_DEPTH,
    "max_record_size_bytes": MAX_COMMIT_BYTES - 64 * KIB,
    "max_name_length": MAX_KEY_BYTES,
}
"""What the storage and the codec can bear; of the others, any number that a storage can."""


_MINIMA = {"max_tasks": 0, "max_error_size_bytes": KIB, "max_message_length": 64}
"""What a task needs to end with a reason."""


def _check_field(name: str, value: object) -> None:
    if (value is None and name in _NULLABLE) or (isinstance(value, bool) and name == "allow_anonymous"):
        return
    minimum, maximum = _MINIMA.get(name, 1), _MAXIMA.get(name, MAX_INTEGER)
    if type(value) is not int or not minimum <= value <= maximum:
        raise InvalidValue(name, f"must be an integer from {minimum} to {maximum}, not {value!r}")


def check_poll_interval(field: str, interval: int) -> None:
    if type(interval) is not int or not MIN_POLL_INTERVAL_MS <= interval <= MAX_POLL_INTERVAL_MS:
        raise InvalidValue(
            field, f"must be an integer from {MIN_POLL_INTERVAL_MS} to {MAX_POLL_INTERVAL_MS}, not {interval}"
        )
