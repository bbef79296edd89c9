"""Converts PostgreSQL error codes and errors of the driver to storage errors.

The important question is whether a failed write may have been applied. A server that reports an error has
rolled back the write. The outcome is unknown only if the connection was lost after the write was sent.
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
from ..exception_text import text_of
from .location import Location

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # includes TimeoutError
    ValueError,  # raised by the driver for an invalid URL
)

T = TypeVar("T")

_CONNECTION_LOST_CODES = {"57P01", "57P02", "57P03", "57P05", "25P03", "40003"}
"""Error codes that mean that the connection was lost. All codes that start with 08 mean the same."""

_ERRORS_BY_CODE: Mapping[str, tuple[type[StorageError], str]] = {
    "25006": (StorageReadOnly, "the server or the session is read-only"),
    "42501": (StorageReadOnly, "the user lacks permissions on the tables; grant them"),
    "53": (StorageUnavailable, "the server is out of connections, memory or another resource"),
    "53100": (StorageFull, "the server's disk is full"),
    "40": (
        StorageBusy,
        "the transaction was rolled back because it conflicted with a concurrent transaction",
    ),
    "55P03": (StorageBusy, "other writes locked the partition for longer than lock_timeout"),
    "57014": (StorageBusy, "the statement took longer than statement_timeout"),
    "XX001": (StorageCorrupt, "a table is damaged; restore it from a backup"),
    "XX002": (StorageCorrupt, "an index is damaged; rebuild it with REINDEX"),
}

_CONNECT_ERRORS: Mapping[str, tuple[str, str]] = {
    "08P01": (
        "the server rejects the connection settings",
        "if the server is behind a pooler such as PgBouncer, add pooler=transaction to the URL",
    ),
    "28": ("authentication failed", "check the user, the password and the server's pg_hba.conf"),
    "3D000": ("the database does not exist", "create it, or use another database"),
    "42501": ("the user lacks permissions", "grant them, or run perdure migrate as another user"),
}


def as_storage_error(error: Exception, location: Location, *, was_sent: bool = False) -> StorageError:
    """Return the storage error for an error of the driver. The caller must set its `__cause__`.

    `was_sent` is True if a write may have been sent to the server.
    """
    code = _code(error)
    if is_connection_lost(error):
        # An InterfaceError is raised before anything is sent.
        if was_sent and not isinstance(error, asyncpg.InterfaceError):
            reason = "the connection was lost during a write, which may have been applied"
            return OutcomeUnknown(f"{location.display_name}: {reason} ({text_of(error)})")
        return StorageUnavailable(f"{location.display_name}: the server is unreachable ({text_of(error)})")
    if code in ("42P01", "42883", "3F000"):
        remedy = f"run: perdure migrate --url {location.display_name}"
        return MissingSchema(location.display_name, "the tables do not exist", remedy)
    if isinstance(error, UnicodeDecodeError):
        return StorageCorrupt(f"{location.display_name}: stored text is not valid UTF-8 ({error})")
    kind, reason = _find(_ERRORS_BY_CODE, code) or (StorageFailed, "PostgreSQL failed")
    return kind(f"{location.display_name}: {reason} ({text_of(error)})")


def as_connect_error(error: Exception, location: Location) -> StorageError:
    """Return the storage error for an error that occurred while connecting.

    An unreachable server is not reported as CannotOpen, because the server may become reachable later.
    """
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StorageUnavailable(f"{location.display_name}: no host accepts writes; only standbys responded")
    if isinstance(error, (ssl.SSLError, ValueError)):
        return CannotOpen(location.display_name, text_of(error), "check the options for asyncpg in the URL")
    found = _find(_CONNECT_ERRORS, _code(error))
    return CannotOpen(location.display_name, *found) if found else as_storage_error(error, location)


def is_connection_lost(error: Exception) -> bool:
    """Return whether an error means that the connection was lost or could not be opened."""
    if isinstance(error, asyncpg.PostgresError):
        code = _code(error)
        return code in _CONNECTION_LOST_CODES or code.startswith("08")
    is_misuse = isinstance(error, ValueError)  # some of the driver's interface errors are ValueErrors
    return not is_misuse and isinstance(error, (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError))


def _code(error: Exception) -> str:
    return (error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""


def _find(table: Mapping[str, T], code: str) -> T | None:
    """Return the entry for `code`. If there is none, return the entry for its first two characters."""
    return table.get(code) or table.get(code[:2])
