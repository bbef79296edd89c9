"""Opening the file: refusing what is not ours before touching it, creating, migrating, connecting."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from random import uniform
from urllib.parse import quote

from ..errors import CannotOpen, ForeignFile, NewerSchema, StorageBusy, StorageCorrupt
from .failures import is_busy
from .location import Location
from .statements import migrations

APPLICATION_ID = 0x70726472  # "prdr"; SQLite keeps it in the file's header
_MAGIC = b"SQLite format 3\0"
_FLOOR = (3, 40)
_PAUSE = 0.0005, 0.003  # shorter than SQLite's own, which starve a waiting process among busy ones


def prepare(location: Location, steps: tuple[tuple[str, ...], ...] | None = None) -> None:
    """Leave behind a file of the newest schema in WAL mode, or refuse and leave it as it was."""
    _check_library(location)
    _check_header(location, newest := len(steps := steps or migrations()))
    db = connect(location, create=True, patient=True)
    try:
        wait_for(db, "PRAGMA auto_vacuum = INCREMENTAL", location)  # heeded only by an empty file
        wait_for(db, "BEGIN IMMEDIATE", location)
        _migrate(db, location, steps, newest)
        wait_for(db, "PRAGMA journal_mode = WAL", location)
    finally:
        db.close()


def connect(location: Location, *, create: bool = False, patient: bool = False) -> sqlite3.Connection:
    """A connection that may be handed between threads. A patient one waits for locks within SQLite."""
    options = location.options
    db = sqlite3.connect(
        f"file:{quote(str(location.path.absolute()))}?mode={'rwc' if create else 'rw'}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=options.busy_timeout if patient else 0,
        cached_statements=64,
    )
    db.execute(f"PRAGMA synchronous = {options.synchronous}")
    if options.max_bytes is not None:
        (page_size,) = db.execute("PRAGMA page_size").fetchone()
        db.execute(f"PRAGMA max_page_count = {max(1, options.max_bytes // page_size)}")
    return db


def wait_for(db: sqlite3.Connection, statement: str, location: Location) -> None:
    """Execute a statement that needs a lock, waiting for it as long as the options allow."""
    deadline = time.monotonic() + location.options.busy_timeout
    while True:
        try:
            db.execute(statement)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= deadline:
                waited = location.options.busy_timeout
                raise StorageBusy(f"{location.name}: locked by others for {waited:g} seconds") from error
            time.sleep(uniform(*_PAUSE))  # noqa: S311 - jitter, not a secret
        else:
            return


def _migrate(
    db: sqlite3.Connection, location: Location, steps: tuple[tuple[str, ...], ...], newest: int
) -> None:
    """Run the steps that this file has not seen, in the transaction that is open."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    try:
        _check_version(location, version, newest)
        for step in steps[version:]:
            for statement in step:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {newest}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the header tells the new version


def _check_library(location: Location) -> None:
    if sqlite3.sqlite_version_info < _FLOOR:
        reason = f"this Python has SQLite {sqlite3.sqlite_version}"
        raise CannotOpen(location.name, reason, "use a Python with SQLite 3.40 or later")


def _check_header(location: Location, newest: int) -> None:
    """Judge the file by its first 100 bytes, because opening it with SQLite may already change it."""
    if not location.path.parent.is_dir():
        raise CannotOpen(location.name, "its folder does not exist", f"create {location.path.parent}")
    try:
        with location.path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotOpen(location.name, str(error), "check its permissions") from error
    if not header:
        return
    if not header.startswith(_MAGIC):
        raise ForeignFile(location.name, "it is not a SQLite file", "choose another name")
    if int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise ForeignFile(location.name, "another application made it", "choose another name")
    _check_version(location, int.from_bytes(header[60:64]), newest)
    _check_length(location.path, header)


def _check_version(location: Location, version: int, newest: int) -> None:
    if version > newest:
        reason = f"it has schema {version}, this perdure knows up to {newest}"
        raise NewerSchema(location.name, reason, "upgrade perdure")


def _check_length(path: Path, header: bytes) -> None:
    """A file shorter than its header says has lost its end, unless the log still holds it."""
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        return
    page_size = int.from_bytes(header[16:18])
    pages = int.from_bytes(header[28:32])
    if path.stat().st_size < pages * (65536 if page_size == 1 else page_size):
        raise StorageCorrupt(f"{path}: the file was cut short; restore it from a copy")
