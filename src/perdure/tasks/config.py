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
"""Maximum ttl (time to live) of a task, in milliseconds: 100 years. A task that never expires has no ttl."""
MIN_POLL_INTERVAL_MS = 50
MAX_POLL_INTERVAL_MS = 30_000


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, dict=True):  # cached properties need a dict
    """The limits and defaults of a store. Sizes are in bytes of JSON. Durations are seconds or timedeltas."""

    # Owners and quotas
    allow_anonymous: bool = False
    """Whether to accept callers without an identity. Their tasks are protected only by the secret task id."""
    max_tasks_per_owner: int = 100
    """Maximum number of active tasks per owner and application. Concurrent calls cannot exceed it. Anonymous
    callers have no such limit."""
    max_tasks: int = 10_000
    """Maximum number of active tasks in the storage. The tasks of all applications count, because they share
    the capacity of the storage. 0 means no limit. Concurrent calls can exceed the limit."""

    # Encryption
    encrypt: EncryptedPart = "credentials"
    """What is encrypted in new tasks: `credentials` (only the credentials of the caller) or `everything` (all
    fields except those needed to list, schedule and expire the task)."""

    # Times
    ttl: Duration | None = DAY_SECONDS
    """How long a task may wait to be started, and how long a question may wait for an answer. None means
    forever. A client can request a different ttl (time to live) for its task."""
    max_ttl: Duration | None = 30 * DAY_SECONDS
    """Maximum ttl that a client can request. None means no limit: clients can then create permanent tasks."""
    retention: Duration | None = 7 * DAY_SECONDS
    """Minimum time to keep the result of a finished task. A ttl that the client requested can shorten it.
    None means forever, unless the client requested a ttl."""
    idempotency_window: Duration = DAY_SECONDS
    """How long an idempotency key is kept after its task was created."""
    poll_interval: Duration = 1
    """How long clients should wait between two polls of a task, unless the task has its own interval."""

    # Sizes
    max_variable_size_bytes: int = MIB
    """Maximum total size of the variables of a task. All limits on variables also apply to its checkpoint."""
    max_variable_depth: int = 10
    """Maximum nesting depth of the value of a variable."""
    max_variables: int = 1000
    """Maximum number of variables of a task."""
    max_variable_name_length: int = 256
    """Maximum number of characters in the name of a variable."""
    max_string_length: int = 64 * KIB
    """Maximum number of characters in a string within a variable."""
    max_params_size_bytes: int = MIB
    """Maximum size of the parameters of a call."""
    max_result_size_bytes: int = MIB
    """Maximum size of the result of a task."""
    max_error_size_bytes: int = 64 * KIB
    """Maximum size of the error of a failed task."""
    max_meta_size_bytes: int = 64 * KIB
    """Maximum size of the `_meta` field of a call. The same limit applies to the caller's credentials."""
    max_message_length: int = 4 * KIB
    """Maximum number of characters in a status message. Longer log messages are truncated to this length."""
    max_log_size_bytes: int = 64 * KIB
    """Maximum size of the log of a task. When it is exceeded, the oldest entries are removed."""
    max_name_length: int = 256
    """Maximum number of bytes in a method or function name, session id, idempotency key or input key."""
    max_inputs: int = 64
    """Maximum number of questions that a task can ask at once, and of answers in one call."""
    max_input_size_bytes: int = 64 * KIB
    """Maximum size of one question or answer."""
    max_inputs_size_bytes: int = 256 * KIB
    """Maximum total size of the questions asked at once, and of the answers in one call."""
    max_input_depth: int = 32
    """Maximum nesting depth of a question or answer."""
    max_record_size_bytes: int = MAX_COMMIT_BYTES - 64 * KIB
    """Maximum size of a stored task. Attempts, messages and an error can exceed it by up to 48 KiB."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            _check_field(field.name, getattr(self, field.name))
        check_poll_interval("poll_interval", self.poll_interval_ms)
        if self.max_ttl_ms is not None and (self.ttl_ms is None or self.ttl_ms > self.max_ttl_ms):
            maximum = f"{self.max_ttl_ms / 1000:.15g}"
            raise InvalidValue("ttl", f"must be at most max_ttl, which is {maximum} seconds")

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
"""Maximum values of integer settings. The maximum of a setting that is not listed here is `MAX_INTEGER`."""


_MINIMA = {"max_tasks": 0, "max_error_size_bytes": KIB, "max_message_length": 64}
"""Minimum values of integer settings. The minimum of a setting that is not listed here is 1.

The limits on errors and messages must be large enough for the errors that perdure itself stores.
"""


def _check_field(name: str, value: object) -> None:
    if name == "encrypt":
        if value not in get_args(EncryptedPart):
            raise InvalidValue(name, f"must be 'credentials' or 'everything', not {value!r}")
        return
    if name == "allow_anonymous":
        if not isinstance(value, bool):
            raise InvalidValue(name, f"must be True or False, not {value!r}")
        return
    if value is None and name in _NULLABLE:
        return
    if name in _DURATIONS:
        check_duration(name, value)
        return
    minimum, maximum = _MINIMA.get(name, 1), _MAXIMA.get(name, MAX_INTEGER)
    if type(value) is not int or not minimum <= value <= maximum:
        raise InvalidValue(name, f"must be an integer from {minimum} to {maximum}, not {value!r}")


def check_seconds(name: str, value: object) -> float:
    """Return the duration `value` in seconds. Raise InvalidValue if it is not a finite duration."""
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        seconds = to_seconds(value)
        if isfinite(seconds):
            return seconds
    raise InvalidValue(name, f"must be a finite number of seconds or a timedelta, not {value!r}")


def check_duration(name: str, value: object) -> float:
    """Return a duration in seconds. Raise InvalidValue unless it is from 1 millisecond to 100 years."""
    seconds = check_seconds(name, value)
    if not 1 <= to_milliseconds(seconds) <= MAX_TTL_MS:
        raise InvalidValue(name, f"must be from 0.001 to {MAX_TTL_MS // 1000} seconds, not {seconds:.15g}")
    return seconds


def check_poll_interval(field: str, interval_ms: int) -> None:
    if type(interval_ms) is not int or not MIN_POLL_INTERVAL_MS <= interval_ms <= MAX_POLL_INTERVAL_MS:
        minimum, maximum = MIN_POLL_INTERVAL_MS / 1000, MAX_POLL_INTERVAL_MS / 1000
        raise InvalidValue(
            field, f"must be from {minimum:g} to {maximum:g} seconds, not {interval_ms / 1000:g}"
        )
