"""Checks, creates, migrates and opens the database file, and loads the SQL statements.

Each SQL statement is in its own file, `sql/<name>.sql`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import uniform
from urllib.parse import quote

from ..errors import CannotOpen, ForeignStorage, NewerSchema, StorageBusy, StorageCorrupt, StorageReadOnly
from .errors import is_busy, is_not_a_database
from .location import Location

APPLICATION_ID = 0x70726472  # "prdr"; stored in the header of the file
_PACKAGE = files(__package__ or "")
_MIN_VERSION = (3, 40)
_HEADER_READ_ATTEMPTS = 5
_LOCK_RETRY_SECONDS = 0.0005, 0.003
"""Minimum and maximum of the random delay, in seconds, between two attempts to get a lock. With SQLite's own
delays, which are longer, a process might never get the lock while other processes keep writing.
"""


def prepare_database(location: Location, steps: tuple[tuple[str, ...], ...] | None = None) -> None:
    """Create or migrate the file, and switch it to WAL mode. Leave a file unchanged if it cannot be used.

    Tests can pass other migrations as `steps`. None means the migrations of this version of perdure.
    """
    if sqlite3.sqlite_version_info < _MIN_VERSION:
        reason = f"this Python uses SQLite {sqlite3.sqlite_version}, which is too old"
        raise CannotOpen(location.display_name, reason, "use a Python build with SQLite 3.40 or later")
    steps = migrations() if steps is None else steps
    if not _is_new_file(location):  # check the header first, because opening the database can change the file
        application, version = _read_header_with_retry(location)
        _check_application(location, application)
        _check_version(location, version, len(steps))
    db = connect(location, create=True, wait_for_locks=True)
    try:
        _migrate(db, location, steps)
        execute_when_unlocked(db, "PRAGMA journal_mode = WAL", location)
    finally:
        db.close()


def connect(location: Location, *, create: bool = False, wait_for_locks: bool = False) -> sqlite3.Connection:
    """Return a connection that can be used in any thread.

    If `wait_for_locks` is true, statements wait while another process has the database locked. Otherwise they
    fail.
    """
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
        db.execute(f"PRAGMA synchronous = {options.synchronous}")
        if options.max_bytes is not None:
            (page_size,) = db.execute("PRAGMA page_size").fetchone()
            db.execute(f"PRAGMA max_page_count = {max(1, options.max_bytes // page_size)}")
        if not wait_for_locks:
            db.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        db.close()
        raise
    return db


def execute_when_unlocked(db: sqlite3.Connection, statement: str, location: Location) -> sqlite3.Cursor:
    """Execute a statement. While the database is locked, retry for up to `busy_timeout` seconds."""
    seconds = location.options.busy_timeout
    deadline = time.monotonic() + seconds
    while True:
        try:
            return db.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= deadline:
                reason = (
                    f"the database was locked for {seconds:g} seconds; try again, or increase busy_timeout"
                )
                raise StorageBusy(f"{location.display_name}: {reason}") from error
            time.sleep(uniform(*_LOCK_RETRY_SECONDS))


def _uri(location: Location) -> str:
    return f"file://{quote(location.display_name)}"


def _migrate(db: sqlite3.Connection, location: Location, steps: tuple[tuple[str, ...], ...]) -> None:
    """Run all migrations that have not run yet, in one transaction."""
    if _read_version(db, location) == len(steps):
        return
    db.execute("BEGIN")
    try:
        # This takes the write lock. In an empty file, it also writes the first page. It must be in the
        # transaction: otherwise, the file would exist for a moment without the application id of perdure.
        execute_when_unlocked(db, "PRAGMA auto_vacuum = INCREMENTAL", location)
        version = _read_version(db, location)  # again, because another process may have migrated the file
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
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # write the new version into the header of the file


def _read_version(db: sqlite3.Connection, location: Location) -> int:
    (tables,) = execute_when_unlocked(db, "SELECT count(*) FROM sqlite_master", location).fetchone()
    # Read the id after the tables: one transaction writes both, so a file with perdure's tables has its id.
    (application,) = execute_when_unlocked(db, "PRAGMA application_id", location).fetchone()
    _check_application(location, application if tables else APPLICATION_ID)
    return execute_when_unlocked(db, "PRAGMA user_version", location).fetchone()[0]


def _is_new_file(location: Location) -> bool:
    name, path = location.display_name, location.path
    try:
        if not path.parent.is_dir():
            raise CannotOpen(name, "the directory of the file does not exist", f"create {path.parent}")
        if path.is_dir():
            raise CannotOpen(name, "the path is a directory", "use the path of a file")
        if not path.exists():
            return True
        if not os.access(path, os.R_OK):
            raise CannotOpen(name, "the file is not readable", "check the permissions of the file")
        if not os.access(path, os.W_OK):
            raise StorageReadOnly(f"{name}: the file is not writable; check its permissions")
        return not path.stat().st_size
    except OSError as error:
        raise CannotOpen(name, str(error), "check the path and the permissions of its directory") from error


def _read_header_with_retry(location: Location) -> tuple[int, int]:
    """Read the header. Retry after an error, because another process may be copying the log to the file."""
    for _ in range(_HEADER_READ_ATTEMPTS):
        try:
            return _read_header(location)
        except (sqlite3.DatabaseError, StorageCorrupt):
            time.sleep(_LOCK_RETRY_SECONDS[1])
    return _read_header(location)


def _read_header(location: Location) -> tuple[int, int]:
    """Return the application id and the schema version from the header of the file, without taking locks.

    Do not use `open` to read the file. On POSIX, closing the file would release all locks that this process
    has on it.
    """
    db = sqlite3.connect(f"{_uri(location)}?mode=ro&immutable=1", uri=True)
    try:
        if _has_sidecar(location.path, "-wal") or _has_sidecar(location.path, "-journal"):
            db.execute("PRAGMA writable_schema = ON")  # accept a file whose newest pages are only in the log
        else:
            _check_not_truncated(db, location)
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        if is_not_a_database(error):
            reason = "the file is not a SQLite database"
            raise ForeignStorage(location.display_name, reason, "use another path in the URL") from error
        raise
    finally:
        db.close()
    return application, version


def _check_not_truncated(db: sqlite3.Connection, location: Location) -> None:
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (page_size,) = db.execute("PRAGMA page_size").fetchone()
    if location.path.stat().st_size < pages * page_size:
        raise StorageCorrupt(f"{location.display_name}: the file is truncated; restore it from a backup")


def _check_application(location: Location, application: int) -> None:
    if application != APPLICATION_ID:
        reason = "the file belongs to another application"
        raise ForeignStorage(location.display_name, reason, "use another path in the URL")


def _check_version(location: Location, version: int, newest: int) -> None:
    if version > newest:
        reason = f"its schema version is {version}, but this version of perdure supports up to {newest}"
        raise NewerSchema(location.display_name, reason, "upgrade perdure")


def _has_sidecar(path: Path, ending: str) -> bool:
    try:
        return path.with_name(path.name + ending).stat().st_size > 0
    except FileNotFoundError:
        return False


# SQL


def statement(name: str) -> str:
    return (_PACKAGE / "sql" / f"{name}.sql").read_text(encoding="utf-8")


@cache
def page_statement(*, one_partition: bool, one_tag: bool, descending: bool) -> str:
    columns = ['"order"', "key"] if one_partition else ['"order"', "key", "partition"]
    scope = ["space", *["partition"] * one_partition, *["tag"] * one_tag]
    index = "records_by_order"
    if one_partition or one_tag:
        index = f"records_by{'_partition' * one_partition}{'_tag' * one_tag}"
    return statement("page").format(
        index=index,
        scope=" AND ".join(f"{column} = :{column}" for column in scope),
        columns=", ".join(columns),
        comparison="<" if descending else ">",
        position=", ".join(f":{column.strip(chr(34))}" for column in columns),
        ordering=", ".join(f"{column} DESC" if descending else column for column in columns),
    )


def migrations() -> tuple[tuple[str, ...], ...]:
    """Return the statements of each migration, in order. Each migration raises the schema version by one."""
    scripts = sorted((_PACKAGE / "migrations").iterdir(), key=lambda each: each.name)
    return tuple(_split(script.read_text(encoding="utf-8")) for script in scripts)


def _split(script: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in script.split(";\n") if part.strip())
