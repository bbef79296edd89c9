"""SQLite's result codes as errors of the contract. By code, never by message."""

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

_ERRORS_BY_CODE: dict[int, tuple[type[StorageError], str]] = {
    sqlite3.SQLITE_BUSY: (StorageBusy, "other processes hold the file's lock"),
    sqlite3.SQLITE_LOCKED: (StorageBusy, "other processes hold the file's lock"),
    sqlite3.SQLITE_READONLY: (StorageReadOnly, "the file or its folder may not be written"),
    sqlite3.SQLITE_PERM: (StorageReadOnly, "the file or its folder may not be written"),
    sqlite3.SQLITE_FULL: (StorageFull, "the disk, or the size allowed by max_bytes, is full"),
    sqlite3.SQLITE_CORRUPT: (StorageCorrupt, "the file is damaged; restore it from a copy"),
    sqlite3.SQLITE_NOTADB: (StorageCorrupt, "the file is damaged; restore it from a copy"),
}


def is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_not_a_database(error: sqlite3.Error) -> bool:
    return _primary_code(error) == sqlite3.SQLITE_NOTADB


def is_undecodable(error: sqlite3.Error) -> bool:
    """Whether this is an error of the module itself, which met text that is not UTF-8."""
    return isinstance(error, sqlite3.OperationalError) and not _primary_code(error)


def as_storage_error(error: sqlite3.Error, path: str) -> StorageError:
    """The contract's error for one of SQLite's, which the caller sets as its cause."""
    code = _primary_code(error)
    if is_undecodable(error):
        code = sqlite3.SQLITE_CORRUPT
    if code == sqlite3.SQLITE_CANTOPEN:
        return CannotOpen(path, "SQLite cannot open it", "check that its folder exists and may be written")
    kind, what = _ERRORS_BY_CODE.get(code, (StorageFailed, "SQLite failed"))
    return kind(f"{path}: {what} ({error})")


@contextmanager
def translate_errors(path: str) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise as_storage_error(error, path) from error
    except OSError as error:
        raise StorageFailed(f"{path}: {error}") from error


def _primary_code(error: sqlite3.Error) -> int:
    """The low byte; the rest of an extended code says where it happened."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
