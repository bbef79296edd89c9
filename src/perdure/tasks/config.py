"""The limits and defaults of a task store. `StoreConfig` checks every value when it is created."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from math import isfinite
from typing import get_args

import msgspec

from ..storage.limits import MAX_COMMIT_BYTES, MAX_INTEGER, MAX_KEY_BYTES
from ..storage.time_types import Duration, to_milliseconds, to_seconds
from .canonical_json import MAX_DEPTH
from .encryption import EncryptedPart
from .errors import InvalidValue

KIB = 1024
MIB = 1024 * KIB
DAY_SECONDS = 24 * 3600

MAX_TTL_MS = 100 * 365 * DAY_SECONDS * 1000
"""Maximum ttl (time to live) of a task in milliseconds: 100 years. A task that never expires has no ttl."""
MIN_POLL_INTERVAL_MS = 50
MAX_POLL_INTERVAL_MS = 30_000


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, dict=True):  # for cached properties
    """The limits and defaults of a store. Sizes are bytes of JSON; durations are seconds or timedeltas."""

    # Owners and quotas
    allow_anonymous: bool = False
    """Whether to accept callers without an identity. Their tasks are protected only by the secret task id."""
    max_tasks_per_owner: int = 100
    """Maximum number of active tasks per owner, in one application. Concurrent calls cannot exceed it."""
    max_tasks: int = 10_000
    """Maximum number of active tasks in the storage, of all applications, because they share its capacity.
    0 means no limit. Concurrent calls can exceed it."""

    # Encryption
    encrypt: EncryptedPart = "credentials"
    """What is encrypted in new tasks: credentials, or everything that listing and scheduling do not need."""

    # Times
    ttl: Duration | None = DAY_SECONDS
    """How long a task may wait until it is started, and how long a question may wait for an answer. None
    means forever."""
    max_ttl: Duration | None = 30 * DAY_SECONDS
    """Maximum ttl that a client can request. None means no limit: clients can then create permanent tasks."""
    retention: Duration | None = 7 * DAY_SECONDS
    """Minimum time to keep a result, unless the client requested a shorter ttl. None means forever."""
    idempotency_window: Duration = DAY_SECONDS
    """How long an idempotency key is kept after its task was created."""
    poll_interval: Duration = 1
    """The poll interval that is recommended to clients, unless the task sets its own."""

    # Sizes
    max_variable_size_bytes: int = MIB
    """Maximum total size of the variables of a task. The same limit applies to its checkpoint."""
    max_variable_depth: int = 10
    max_variables: int = 1000
    max_variable_name_length: int = 256
    max_string_length: int = 64 * KIB
    """Maximum number of characters in a string within a variable."""
    max_params_size_bytes: int = MIB
    max_result_size_bytes: int = MIB
    max_error_size_bytes: int = 64 * KIB
    max_meta_size_bytes: int = 64 * KIB
    max_message_length: int = 4 * KIB
    """Maximum number of characters in a status message."""
    max_log_size_bytes: int = 64 * KIB
    """Maximum size of the log of a task. If it is exceeded, the oldest entries are removed."""
    max_name_length: int = 256
    """Maximum number of bytes in a method or function name, session id, idempotency key or input key."""
    max_inputs: int = 64
    """Maximum number of questions or answers in one call."""
    max_input_size_bytes: int = 64 * KIB
    max_inputs_size_bytes: int = 256 * KIB
    """Maximum total size of the questions or answers in one call."""
    max_input_depth: int = 32
    max_record_size_bytes: int = MAX_COMMIT_BYTES - 64 * KIB
    """Maximum size of a stored task. A commit can be larger, because it may also contain other records."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            _check_field(field.name, getattr(self, field.name))
        check_poll_interval("poll_interval", self.poll_interval_ms)
        if self.max_ttl_ms is not None and (self.ttl_ms is None or self.ttl_ms > self.max_ttl_ms):
            raise InvalidValue("ttl", f"must be at most max_ttl, which is {self.max_ttl_ms / 1000:g} seconds")

    @cached_property
    def ttl_ms(self) -> int | None:
        return None if self.ttl is None else to_milliseconds(self.ttl)

    @cached_property
    def max_ttl_ms(self) -> int | None:
        return None if self.max_ttl is None else to_milliseconds(self.max_ttl)

    @cached_property
    def retention_ms(self) -> int | None:
        return None if self.retention is None else to_milliseconds(self.retention)

    @cached_property
    def idempotency_window_ms(self) -> int:
        return to_milliseconds(self.idempotency_window)

    @cached_property
    def poll_interval_ms(self) -> int:
        return to_milliseconds(self.poll_interval)


_NULLABLE = ("ttl", "max_ttl", "retention")
_DURATIONS = (*_NULLABLE, "idempotency_window", "poll_interval")
_MAXIMA = {
    "max_variable_depth": MAX_DEPTH - 1,
    "max_input_depth": MAX_DEPTH,
    "max_record_size_bytes": MAX_COMMIT_BYTES - 64 * KIB,
    "max_name_length": MAX_KEY_BYTES,
}
"""Maximum values of these settings. The maximum of every other integer setting is `MAX_INTEGER`."""


_MINIMA = {"max_tasks": 0, "max_error_size_bytes": KIB, "max_message_length": 64}
"""Minimum values of settings whose minimum is not 1. A failed task must be able to store its error."""


def _check_field(name: str, value: object) -> None:
    if name == "encrypt":
        if value not in get_args(EncryptedPart):
            raise InvalidValue(name, f"must be 'credentials' or 'everything', not {value!r}")
        return
    if (value is None and name in _NULLABLE) or (isinstance(value, bool) and name == "allow_anonymous"):
        return
    if name in _DURATIONS:
        check_duration(name, value)
        return
    minimum, maximum = _MINIMA.get(name, 1), _MAXIMA.get(name, MAX_INTEGER)
    if type(value) is not int or not minimum <= value <= maximum:
        raise InvalidValue(name, f"must be an integer from {minimum} to {maximum}, not {value!r}")


def check_seconds(name: str, value: object) -> float:
    """Return a duration in seconds. Raise InvalidValue if `value` is not a finite duration."""
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        seconds = to_seconds(value)
        if isfinite(seconds):
            return seconds
    raise InvalidValue(name, f"must be a number of seconds or a timedelta, not {value!r}")


def check_duration(name: str, value: object) -> None:
    """Raise InvalidValue unless `value` is a duration from 1 millisecond to 100 years."""
    seconds = check_seconds(name, value)
    if not 1 <= to_milliseconds(seconds) <= MAX_TTL_MS:
        raise InvalidValue(name, f"must be from 0.001 to {MAX_TTL_MS // 1000} seconds, not {seconds:g}")


def check_poll_interval(field: str, interval_ms: int) -> None:
    if type(interval_ms) is not int or not MIN_POLL_INTERVAL_MS <= interval_ms <= MAX_POLL_INTERVAL_MS:
        least, most = MIN_POLL_INTERVAL_MS / 1000, MAX_POLL_INTERVAL_MS / 1000
        raise InvalidValue(field, f"must be from {least:g} to {most:g} seconds, not {interval_ms / 1000:g}")
