"""Translates errors from the driver and the server into storage errors, based on error types and codes."""

from __future__ import annotations

from typing import TypeVar, cast

from redis.exceptions import RedisError

from ..errors import (
    OutcomeUnknown,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from ..exception_text import text_of

_E = TypeVar("_E", bound=StorageError)

_ERRORS_BY_CODE: dict[str, tuple[type[StorageError], str]] = {
    "OOM": (StorageFull, "the server's memory is full"),
    "MISCONF": (StorageReadOnly, "the server cannot write to its disk and rejects writes"),
    "WRONGTYPE": (StorageCorrupt, "a key has the wrong type; does another application use this prefix?"),
    "NOAUTH": (StorageFailed, "the server requires a user and password; nothing was done"),
    "READONLY": (StorageUnavailable, "the server has become a replica"),
    "LOADING": (StorageUnavailable, "the server is still loading its data"),
    "MASTERDOWN": (StorageUnavailable, "the server has lost its master"),
    "NOREPLICAS": (StorageUnavailable, "fewer replicas are connected than min-replicas-to-write requires"),
    "CLUSTERDOWN": (StorageUnavailable, "the cluster, or a part of it, is down"),
    "TRYAGAIN": (StorageUnavailable, "the keys are being moved to another node"),
    "MOVED": (StorageUnavailable, "the nodes disagree about which node has the keys"),
    "ASK": (StorageUnavailable, "the keys are being moved to another node"),
    "NOSCRIPT": (StorageUnavailable, "the server has lost a script, perhaps in a restart"),
    "BUSY": (StorageUnavailable, "the server is busy running a long script"),
}


def error_code(error: RedisError) -> str:
    """Return the code at the start of the server's error message, or an empty string if it has no code."""
    known = cast("str | None", error.status_code)
    if known is not None:
        return known
    first = str(error.args[0]).partition(" ")[0] if error.args else ""
    return first if first.isupper() else ""


def server_error(error: RedisError, where: str, *, writes: bool = False) -> StorageError:
    """Return the storage error that corresponds to a server error.

    A command that fails has usually changed nothing. There is one exception: if the key of an index has a
    value of the wrong type, the write script may fail after it has written something. If `writes` is true,
    this case is reported as StorageFailed instead of StorageCorrupt, so that the caller reads before it
    writes again.
    """
    kind, what = _ERRORS_BY_CODE.get(error_code(error), (StorageFailed, "the server failed"))
    if writes and kind is StorageCorrupt:
        kind = StorageFailed
    return _with_cause(kind(f"{where}: {what} ({text_of(error)})"), error)


def unreachable_error(error: Exception, where: str) -> StorageUnavailable:
    return _with_cause(StorageUnavailable(f"{where}: cannot be reached ({text_of(error)})"), error)


def unknown_outcome_error(error: Exception, where: str) -> OutcomeUnknown:
    return _with_cause(
        OutcomeUnknown(
            f"{where}: the server did not reply to a command, which may have been executed ({text_of(error)})"
        ),
        error,
    )


def failed_read_error(error: StorageError) -> StorageUnavailable:
    """Return the error for a read whose reply was lost.

    The returned error is retryable, and has the message and the cause of `error`.
    """
    return _with_cause(StorageUnavailable(*error.args), error.__cause__)


def _with_cause(error: _E, cause: BaseException | None) -> _E:
    error.__cause__ = cause
    return error
