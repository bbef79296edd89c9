"""Counting and maintenance hold up neither the event loop nor other writers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.storage import Delete, open_storage
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, commit_changes, insert_each, make_record
from perdure.storage.sqlite import database, engine, read_connections
from perdure.storage.sqlite.engine import MAX_EXPIRED_INLINE
from perdure.storage.sqlite.location import Location

from .sqlite_helpers import url_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Call this with every statement of the connections that are opened from here on, before it runs."""

    def start(callback: Callable[[str], None]) -> None:
        def connect(location: Location, *, wait_for_locks: bool = False) -> sqlite3.Connection:
            db = database.connect(location, wait_for_locks=wait_for_locks)
            db.set_trace_callback(callback)
            return db

        for module in (engine, read_connections):
            monkeypatch.setattr(module, "connect", connect)

    return start


@pytest.mark.parametrize(
    ("expired", "is_inline"), [(MAX_EXPIRED_INLINE, True), (MAX_EXPIRED_INLINE + 1, False)]
)
async def test_counting_runs_in_the_event_loop_only_if_few_records_have_expired(
    tmp_path: Path, trace: Callable[[Callable[[str], None]], None], expired: int, *, is_inline: bool
) -> None:
    """It reads every expired record that is not purged yet, and there may be many."""
    threads: list[threading.Thread] = []

    def note(statement: str) -> None:
        if "AS live" in statement:
            threads.append(threading.current_thread())

    trace(note)
    async with await open_storage(url_of(tmp_path / "records.db")) as storage:
        gone = [make_record(f"k{n}", expires_at=NOW - 1) for n in range(expired)]
        await insert_each(storage, *gone, make_record("living"))
        threads.clear()
        assert await storage.counts(SPACE, PARTITION, now=NOW) == {"": 1}
        assert await storage.counts(SPACE, now=NOW) == {"": 1}
    assert [thread is threading.main_thread() for thread in threads] == [is_inline, is_inline]


async def test_a_vacuum_lets_others_write_between_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: Callable[[Callable[[str], None]], None]
) -> None:
    path = tmp_path / "records.db"
    steps: list[str] = []

    def write_before(statement: str) -> None:
        if "incremental_vacuum" in statement:
            other = sqlite3.connect(path, timeout=0, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")  # fails if the vacuum holds the lock
            other.execute("ROLLBACK")
            other.close()
            steps.append(statement)

    async with await open_storage(url_of(path)) as storage:
        records = [make_record(f"k{n}", body='"' + "x" * 100_000 + '"') for n in range(40)]
        await insert_each(storage, *records)
        for record in records:
            await commit_changes(storage, Delete(before=record))
        trace(write_before)
        monkeypatch.setattr(engine, "VACUUM_PAGES", 50)
        done = await storage.maintain()
    assert done.reclaimed_bytes > 2_000_000
    assert done.findings == ()
    assert len(steps) > 10
