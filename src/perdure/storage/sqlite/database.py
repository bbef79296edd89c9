"""Opening the file: refusing what is not ours before touching it, creating, migrating, connecting."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from random import uniform
from urllib.parse import quote

from ..errors import CannotOpen, ForeignStorage, NewerSchema, StorageBusy, StorageCorrupt, StorageReadOnly
from .errors import is_busy, is_not_a_database
from .location import Location, Options
from .statements import migrations

APPLICATION_ID = 0x70726472  # "prdr"; SQLite keeps it in the file's header
_MIN_VERSION = (3, 40)
_HEADER_READ_ATTEMPTS = 5
_LOCK_RETRY_SECONDS = (
    0.0005,
    0.003,
)  # shorter than SQLite's own, which starve a waiting process among busy ones


def prepare_database(location: Location, steps: tuple[tuple[str, ...], ...] | None = None) -> None:
    """Leave behind a file of the newest schema in WAL mode, or refuse and leave it as it was."""
    _check_sqlite_version(location)
    steps = migrations() if steps is None else steps
    if not _is_new_file(location):
        _check_header(location, len(steps))
    db = connect(location, create=True, wait_for_locks=True)
    try:
        _migrate(db, location, steps)
        execute_when_unlocked(db, "PRAGMA journal_mode = WAL", location)
    finally:
        db.close()


def connect(location: Location, *, create: bool = False, wait_for_locks: bool = False) -> sqlite3.Connection:
    """A connection that may be handed between threads. A patient one waits for locks within SQLite."""
    options = location.options
    db = sqlite3.connect(
        f"{_uri(location)}?mode={'rwc' if create else 'rw'}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=options.busy_timeout,
        cached_statements=64,
    )
    try:
        _configure(db, options, wait_for_locks=wait_for_locks)
    except BaseException:
        db.close()
        raise
    return db


def _configure(db: sqlite3.Connection, options: Options, *, wait_for_locks: bool) -> None:
    db.execute(f"PRAGMA synchronous = {options.synchronous}")
    if options.max_bytes is not None:
        (page_size,) = db.execute("PRAGMA page_size").fetchone()
        db.execute(f"PRAGMA max_page_count = {max(1, options.max_bytes // page_size)}")
    if not wait_for_locks:
        db.execute("PRAGMA busy_timeout = 0")


def execute_when_unlocked(db: sqlite3.Connection, statement: str, location: Location) -> sqlite3.Cursor:
    """Execute a statement that needs a lock, waiting for it as long as the options allow."""
    deadline = time.monotonic() + location.options.busy_timeout
    while True:
        try:
            return db.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= deadline:
                waited = location.options.busy_timeout
                raise StorageBusy(
                    f"{location.display_name}: locked by others for {waited:g} seconds"
                ) from error
            time.sleep(uniform(*_LOCK_RETRY_SECONDS))


def _uri(location: Location) -> str:
    return f"file://{quote(location.display_name)}"


def _migrate(db: sqlite3.Connection, location: Location, steps: tuple[tuple[str, ...], ...]) -> None:
    """Run the steps that this file has not seen, all in one transaction."""
    if _read_version(db, location) == len(steps):
        return
    db.execute("BEGIN")
    try:
        # Takes the write lock. In an empty file it also writes the first page, so it must stand within the
        # transaction: before it, there would be a file for a moment that is not yet ours.
        execute_when_unlocked(db, "PRAGMA auto_vacuum = INCREMENTAL", location)
        version = _read_version(db, location)  # another process may have been first
        _check_version(location, version, len(steps))
        for statement in (statement for step in steps[version:] for statement in step):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(steps)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the header tells the new version


def _read_version(db: sqlite3.Connection, location: Location) -> int:
    (tables,) = execute_when_unlocked(db, "SELECT count(*) FROM sqlite_master", location).fetchone()
    (application,) = execute_when_unlocked(
        db, "PRAGMA application_id", location
    ).fetchone()  # after: both appear at once
    _check_application(location, application if tables else APPLICATION_ID)
    return execute_when_unlocked(db, "PRAGMA user_version", location).fetchone()[0]


def _check_sqlite_version(location: Location) -> None:
    if sqlite3.sqlite_version_info < _MIN_VERSION:
        reason = f"this Python has SQLite {sqlite3.sqlite_version}"
        raise CannotOpen(location.display_name, reason, "use a Python with SQLite 3.40 or later")


def _is_new_file(location: Location) -> bool:
    try:
        if not location.path.parent.is_dir():
            raise CannotOpen(
                location.display_name, "its folder does not exist", f"create {location.path.parent}"
            )
        if location.path.is_dir():
            raise CannotOpen(location.display_name, "it is a directory", "name a file in it")
        if not location.path.exists():
            return True
        if not os.access(location.path, os.R_OK):
            raise CannotOpen(location.display_name, "it may not be read", "check its rights")
        if not os.access(location.path, os.W_OK):
            raise StorageReadOnly(f"{location.display_name}: the file may not be written; check its rights")
        return not location.path.stat().st_size
    except OSError as error:
        raise CannotOpen(
            location.display_name, str(error), "check the name, and the rights of its folder"
        ) from error


def _check_header(location: Location, newest: int) -> None:
    """Judge the file by its header, because opening it for real may already change it."""
    application, version = _read_header_with_retry(location)
    _check_application(location, application)
    _check_version(location, version, newest)


def _read_header_with_retry(location: Location) -> tuple[int, int]:
    """What looks like damage may be another process that is just folding its log into the file."""
    for _ in range(_HEADER_READ_ATTEMPTS):
        try:
            return _read_header(location)
        except (sqlite3.DatabaseError, StorageCorrupt):
            time.sleep(_LOCK_RETRY_SECONDS[1])
    return _read_header(location)


def _read_header(location: Location) -> tuple[int, int]:
    """Application id and schema version, read by SQLite as from a file that nobody changes: without locks.

    Reading them with `open` would not do: closing it would drop the locks that this process holds (POSIX).
    """
    db = sqlite3.connect(f"{_uri(location)}?mode=ro&immutable=1", uri=True)
    try:
        if _has_sidecar(location.path, "-wal") or _has_sidecar(location.path, "-journal"):
            db.execute("PRAGMA writable_schema = ON")  # be content with a file whose end is in there
        else:
            _check_not_truncated(db, location)
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        if is_not_a_database(error):
            raise ForeignStorage(
                location.display_name, "it is not a SQLite file", "choose another name"
            ) from error
        raise
    finally:
        db.close()
    return application, version


def _check_not_truncated(db: sqlite3.Connection, location: Location) -> None:
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (page_size,) = db.execute("PRAGMA page_size").fetchone()
    if location.path.stat().st_size < pages * page_size:
        raise StorageCorrupt(f"{location.display_name}: the file was cut short; restore it from a copy")


def _check_application(location: Location, application: int) -> None:
    if application != APPLICATION_ID:
        raise ForeignStorage(location.display_name, "another application made it", "choose another name")


def _check_version(location: Location, version: int, newest: int) -> None:
    if version > newest:
        reason = f"it has schema {version}, this perdure knows up to {newest}"
        raise NewerSchema(location.display_name, reason, "upgrade perdure")


def _has_sidecar(path: Path, ending: str) -> bool:
    try:
        return path.with_name(path.name + ending).stat().st_size > 0
    except FileNotFoundError:
        return False
