"""What went wrong, as the driver and the server tell it, in the errors of the contract. By type and by code,
never by text.
"""

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

_E = TypeVar("_E", bound=StorageError)

_KINDS: dict[str, tuple[type[StorageError], str]] = {
    "OOM": (StorageFull, "the server's memory is full"),
    "MISCONF": (StorageReadOnly, "the server cannot write to its disk, and so refuses to change anything"),
    "WRONGTYPE": (StorageCorrupt, "something else stands in the place of our records"),
    "NOAUTH": (StorageFailed, "the server does not know this connection's user, and did nothing"),
    "READONLY": (StorageUnavailable, "this server is a replica now"),
    "LOADING": (StorageUnavailable, "the server is still loading its data"),
    "MASTERDOWN": (StorageUnavailable, "the server has lost its master"),
    "NOREPLICAS": (StorageUnavailable, "the server has fewer replicas than it was told to need"),
    "CLUSTERDOWN": (StorageUnavailable, "the cluster is down, or a part of it"),
    "TRYAGAIN": (StorageUnavailable, "these keys are on their way to another node"),
    "MOVED": (StorageUnavailable, "the nodes do not agree on who has these keys"),
    "ASK": (StorageUnavailable, "these keys are on their way to another node"),
    "NOSCRIPT": (StorageUnavailable, "the server has just begun anew"),
    "BUSY": (StorageUnavailable, "the server runs somebody's long script"),
}


def code_of(error: RedisError) -> str:
    """The first word of what the server said; empty where it said nothing."""
    known = cast("str | None", error.status_code)
    if known is not None:
        return known
    first = str(error.args[0]).partition(" ")[0] if error.args else ""
    return first if first.isupper() else ""


def refused(error: RedisError, where: str, *, writes: bool = False) -> StorageError:
    """The server's own refusal. Of what it refuses it has done nothing, but for a script that has begun to
    write when it meets what is not ours.
    """
    kind, what = _KINDS.get(code_of(error), (StorageFailed, "the server failed"))
    if writes and kind is StorageCorrupt:
        kind = StorageFailed
    return _caused(kind(f"{where}: {what} ({error})"), error)


def not_sent(error: Exception, where: str) -> StorageUnavailable:
    return _caused(StorageUnavailable(f"{where}: cannot be reached ({_reason(error)})"), error)


def lost(error: Exception, where: str) -> OutcomeUnknown:
    return _caused(OutcomeUnknown(f"{where}: no answer came to what was sent ({_reason(error)})"), error)


def unread(error: StorageError) -> StorageUnavailable:
    """A read whose answer was lost has changed nothing."""
    return _caused(StorageUnavailable(*error.args), error.__cause__)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _caused(error: _E, cause: BaseException | None) -> _E:
    error.__cause__ = cause
    return error
