"""PostgreSQL's error codes, and the driver's errors, as errors of the contract. By code, never by message.

What matters most is whether a write can have happened. The server rolls back whatever it answers with an
error; only where the connection was lost after a write was sent, nobody knows.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TypeVar

import asyncpg

from ..errors import (
    CannotOpen,
    MissingSchema,
    OutcomeUnknown,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from .location import Location

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # a TimeoutError is one
    ValueError,  # a URL that the driver does not understand
)

T = TypeVar("T")

_CONNECTION_LOST_CODES = {"57P01", "57P02", "57P03", "57P05", "25P03", "40003"}
"""Codes, beside those of class 08, with which the server ends a connection."""

_ERRORS_BY_CODE: Mapping[str, tuple[type[StorageError], str]] = {
    "25006": (StorageReadOnly, "the server, or this user's transactions, may only read"),
    "42501": (StorageReadOnly, "this user lacks the rights on the tables"),
    "53": (StorageUnavailable, "the server has no resources left for this"),
    "53100": (StorageFull, "the server's disk is full"),
    "40": (StorageBusy, "others changed the same; it was rolled back"),
    "55P03": (StorageBusy, "others held the lock for longer than lock_timeout"),
    "57014": (StorageBusy, "it took the server longer than statement_timeout"),
    "XX001": (StorageCorrupt, "a table is damaged; restore it from a copy"),
    "XX002": (StorageCorrupt, "an index is damaged; rebuild it with REINDEX"),
}

_CONNECT_ERRORS: Mapping[str, tuple[str, str]] = {
    "08P01": ("the server refuses our settings", "write pooler=transaction if a pooler stands before it"),
    "28": ("the server refuses this user", "check user, password and the server's pg_hba.conf"),
    "3D000": ("there is no such database", "create it, or name another"),
    "42501": ("this user lacks the rights", "grant them, or let somebody else run perdure migrate"),
}


def as_storage_error(error: Exception, location: Location, *, was_sent: bool = False) -> StorageError:
    """The contract's error for the driver's, which the caller sets as its cause.

    `was_sent` says that it may have met a write under way.
    """
    code = _code(error)
    if is_connection_lost(error):
        if was_sent and not isinstance(error, asyncpg.InterfaceError):  # which refuses before it sends
            return OutcomeUnknown(
                f"{location.display_name}: the connection was lost during a write ({error!r})"
            )
        return StorageUnavailable(f"{location.display_name}: the server cannot be reached ({error!r})")
    if code in ("42P01", "42883", "3F000"):
        return MissingSchema(
            location.display_name,
            "its tables are not there",
            f"run: perdure migrate --url {location.display_name}",
        )
    if isinstance(error, UnicodeDecodeError):
        return StorageCorrupt(f"{location.display_name}: stored text is not UTF-8 ({error})")
    kind, what = _find(_ERRORS_BY_CODE, code) or (StorageFailed, "PostgreSQL failed")
    return kind(f"{location.display_name}: {what} ({error})")


def as_connect_error(error: Exception, location: Location) -> StorageError:
    """The same for an error met while connecting: who is refused is told what to do about it.

    A server that cannot be reached may be there in a moment, so that is no reason to give up the URL.
    """
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StorageUnavailable(
            f"{location.display_name}: no server there takes writes now, only standbys answer"
        )
    if isinstance(error, (ssl.SSLError, ValueError)):
        return CannotOpen(location.display_name, str(error), "check the driver's options in the URL")
    found = _find(_CONNECT_ERRORS, _code(error))
    return CannotOpen(location.display_name, *found) if found else as_storage_error(error, location)


def is_connection_lost(error: Exception) -> bool:
    """Whether the connection is gone, or never was."""
    if isinstance(error, asyncpg.PostgresError):
        code = _code(error)
        return code in _CONNECTION_LOST_CODES or code.startswith("08")
    is_misuse = isinstance(error, ValueError)  # some of the driver's interface errors are
    return not is_misuse and isinstance(error, (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError))


def is_read_only(error: Exception) -> bool:
    """Whether the server takes no writes in this session."""
    return isinstance(error, asyncpg.ReadOnlySQLTransactionError)


def is_lock_conflict(error: StorageError) -> bool:
    """Whether the server rolled back because others held a lock."""
    return isinstance(error.__cause__, (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError))


def is_serialization_failure(error: StorageError) -> bool:
    """Whether the server rolled back because others were first."""
    return isinstance(error.__cause__, asyncpg.SerializationError)


def _code(error: Exception) -> str:
    return (error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""


def _find(table: Mapping[str, T], code: str) -> T | None:
    """What a table says of this code, or of its class."""
    return table.get(code) or table.get(code[:2])
