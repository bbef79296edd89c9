"""Converts SQLite errors to storage errors, based on result codes and not on messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from ..errors import (
    CannotOpen,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageReadOnly,
)

_LOCKED = (StorageBusy, "the database is locked by another process; try again later")
_NOT_WRITABLE = (StorageReadOnly, "the file or its directory is not writable; check the permissions")
_DAMAGED = (StorageCorrupt, "the file is damaged; restore it from a backup")
_ERRORS_BY_CODE: dict[int, tuple[type[StorageError], str]] = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_FULL: (StorageFull, "the disk is full, or the file has reached max_bytes"),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}


def is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_not_a_database(error: sqlite3.Error) -> bool:
    return _primary_code(error) == sqlite3.SQLITE_NOTADB


def is_undecodable(error: sqlite3.Error) -> bool:
    """Return whether the `sqlite3` module raised this error because stored text is not valid UTF-8."""
    return isinstance(error, sqlite3.OperationalError) and not _primary_code(error)


def as_storage_error(error: sqlite3.Error, path: str) -> StorageError:
    """Return the storage error for a SQLite error. The caller must set its `__cause__`."""
    code = _primary_code(error)
    if is_undecodable(error):
        code = sqlite3.SQLITE_CORRUPT
    if code == sqlite3.SQLITE_CANTOPEN:
        remedy = "check that the directory of the file exists and is writable"
        return CannotOpen(path, "SQLite cannot open the file", remedy)
    kind, reason = _ERRORS_BY_CODE.get(code, (StorageFailed, "SQLite failed"))
    return kind(f"{path}: {reason} ({error})")


@contextmanager
def translate_errors(path: str) -> Generator[None]:
    """Within this context, convert SQLite errors and operating system errors to storage errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise as_storage_error(error, path) from error
    except OSError as error:
        raise StorageFailed(f"{path}: {error}") from error


def _primary_code(error: sqlite3.Error) -> int:
    """Return the primary result code, which is the low byte of the extended result code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
