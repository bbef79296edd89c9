"""Translate SQLite's result codes to errors of the contract. Messages are not parsed."""

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

_LOCKED = (StorageBusy, "the database is locked by another process")
_NOT_WRITABLE = (StorageReadOnly, "the file or its directory is not writable")
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
    """Return whether the `sqlite3` module itself failed to decode text that is not UTF-8."""
    return isinstance(error, sqlite3.OperationalError) and not _primary_code(error)


def as_storage_error(error: sqlite3.Error, path: str) -> StorageError:
    """Return the contract's error for an error of SQLite. The caller sets the cause."""
    code = _primary_code(error)
    if is_undecodable(error):
        code = sqlite3.SQLITE_CORRUPT
    if code == sqlite3.SQLITE_CANTOPEN:
        remedy = "check that its directory exists and is writable"
        return CannotOpen(path, "SQLite cannot open the file", remedy)
    kind, reason = _ERRORS_BY_CODE.get(code, (StorageFailed, "SQLite failed"))
    return kind(f"{path}: {reason} ({error})")


@contextmanager
def translate_errors(path: str) -> Generator[None]:
    """Raise errors of SQLite and of the operating system as errors of the contract."""
    try:
        yield
    except sqlite3.Error as error:
        raise as_storage_error(error, path) from error
    except OSError as error:
        raise StorageFailed(f"{path}: {error}") from error


def _primary_code(error: sqlite3.Error) -> int:
    """Return the low byte of an extended result code, which is the primary code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
