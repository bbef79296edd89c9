"""The settings of a task store. Each has a default, and is checked when the settings are created."""

from __future__ import annotations

import msgspec

from ..storage.limits import MAX_COMMIT_BYTES, MAX_INTEGER, MAX_KEY_BYTES
from .canonical_json import MAX_DEPTH
from .errors import InvalidValue

KIB = 1024
MIB = 1024 * KIB
SECOND_MS = 1000
DAY_MS = 24 * 3600 * SECOND_MS

MAX_TTL_MS = 100 * 365 * DAY_MS
"""Maximum ttl: a hundred years. A task that never expires has no ttl."""
MIN_POLL_INTERVAL_MS = 50
MAX_POLL_INTERVAL_MS = 30 * SECOND_MS


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a store. Sizes are bytes of UTF-8 JSON; times are in milliseconds, as in the protocol."""

    # Owners and quotas
    allow_anonymous: bool = False
    """Whether callers without an identity are allowed. Only the secret task id protects their tasks."""
    max_tasks_per_owner: int = 100
    """Maximum number of active tasks of one owner. It is never exceeded."""
    max_tasks: int = 10_000
    """Maximum number of active tasks of all owners. 0 means no limit. Concurrent creates can exceed it."""

    # Times
    default_ttl_ms: int | None = DAY_MS
    """How long a task can wait for its first start, and a question for its answer. None means forever."""
    max_ttl_ms: int | None = 30 * DAY_MS
    """Maximum ttl that a client may request. None means no limit: a task can then be kept forever."""
    result_retention_ms: int | None = 7 * DAY_MS
    """How long a result is kept, unless the client requested a shorter ttl. None means forever."""
    idempotency_window_ms: int = DAY_MS
    """How long an idempotency key is kept."""
    default_poll_interval_ms: int = SECOND_MS
    """The poll interval that clients are advised to use if the task has none."""

    # Sizes
    max_variable_size_bytes: int = MIB
    """Maximum size of all variables of a task; the same limit applies to its checkpoint."""
    max_variable_depth: int = 10
    max_variables: int = 1000
    max_variable_name_length: int = 256
    max_string_length: int = 64 * KIB
    """Maximum number of characters in one string of a variable."""
    max_params_size_bytes: int = MIB
    max_result_size_bytes: int = MIB
    max_error_size_bytes: int = 64 * KIB
    max_meta_size_bytes: int = 64 * KIB
    max_message_length: int = 4 * KIB
    """Maximum number of characters in a status message."""
    max_log_size_bytes: int = 64 * KIB
    """Maximum size of the log of a task. Older entries are removed."""
    max_name_length: int = 256
    """Maximum number of bytes in a method, a session id, an idempotency key or an input key."""
    max_inputs: int = 64
    """Maximum number of questions, or of answers, in one call."""
    max_input_size_bytes: int = 64 * KIB
    max_inputs_size_bytes: int = 256 * KIB
    """Maximum size of all questions, or of all answers, in one call."""
    max_input_depth: int = 32
    max_record_size_bytes: int = MAX_COMMIT_BYTES - 64 * KIB
    """Maximum size of the stored task. It leaves room for bookkeeping and for records in the same commit."""

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
"""Limits of the storage and of `canonical_json`. Other settings can be any integer that a storage accepts."""


_MINIMA = {"max_tasks": 0, "max_error_size_bytes": KIB, "max_message_length": 64}
"""Minimum values other than 1. A task needs some room to finish with an error message."""


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
