"""The log of a task: the newest entries are stored within limits, and they never prevent a write."""

from __future__ import annotations

import json
from typing import get_args

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from perdure.storage.time_types import SECOND
from perdure.tasks import Json, LogEntry, LogLevel, Progress, StoreConfig, Success, TaskStore, edits, task_log
from perdure.tasks.canonical_json import JsonLike
from perdure.tasks.errors import InvalidValue, TerminalTask
from perdure.tasks.task_log import (
    MAX_LOG_ENTRIES,
    MAX_REPORTS_BYTES,
    MAX_REPORTS_KEPT,
    Report,
    log_entry,
)
from perdure.tasks.task_snapshot import BOOKKEEPING_RESERVE_BYTES, Snapshot

from .. import task_edits
from .samples import ANA, CALL, START, Clock, json_values

pytestmark = pytest.mark.anyio

MAX_BYTES = StoreConfig().max_log_size_bytes


def entry(
    at: int, message: JsonLike = "page", level: LogLevel = "info", logger: str | None = None
) -> LogEntry:
    return log_entry(at, level, message, logger, max_length=4096)


def appended(raw: Raw | UnsetType, *entries: LogEntry) -> Raw | UnsetType:
    return task_log.append(raw, entries, max_entries=MAX_LOG_ENTRIES, max_bytes=MAX_BYTES)


async def logged(store: TaskStore, snapshot: Snapshot, *entries: LogEntry) -> Snapshot:
    return await store.edit(snapshot, lambda task, _now, config: edits.log(task, entries, config=config))


async def test_entries_are_stored_with_time_level_message_and_logger(store: TaskStore) -> None:
    task = await store.create(ANA, CALL)
    assert task.task.log.entries == ()
    entries = (entry(START, "opened", "debug"), entry(START + 1, {"rows": 3}, "error", "db"))
    task = await logged(store, task, entries[0])
    await logged(store, task, entries[1])
    log = (await store.get(ANA, task.task.task_id)).task.log
    assert (log.entries, log.removed) == (entries, 0)
    assert [each.text for each in log.entries] == ["opened", '{"rows":3}']


async def test_a_log_entry_is_not_an_update_of_what_clients_see(store: TaskStore, clock: Clock) -> None:
    task = await store.create(ANA, CALL)
    clock.advance(SECOND)
    assert (await logged(store, task, entry(START + SECOND))).task.last_updated_at == START


async def test_a_finished_task_accepts_no_entries(store: TaskStore) -> None:
    task = await task_edits.finish(store, await store.create(ANA, CALL), Success.of("done"))
    with pytest.raises(TerminalTask):
        await logged(store, task, entry(START))


async def test_a_task_without_space_for_its_log_loses_the_log_and_not_its_result(
    store: TaskStore,
) -> None:
    params = await store.create(ANA, replace(CALL, params="x" * 30_000))
    store.config = replace(store.config, max_record_size_bytes=100_000)
    task = params
    for at in range(4):
        task = await logged(store, task, *(entry(START + at * 10 + n, "y" * 4000) for n in range(5)))
    assert task.task.log.entries
    task = await task_edits.finish(store, task, Success.of("z" * 60_000))
    read = (await store.get(ANA, task.task.task_id)).task
    assert isinstance(read.outcome, Success)
    assert (read.outcome.value, read.log.entries) == ("z" * 60_000, ())


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=6000), max_size=40), st.integers(1, 9))
def test_the_newest_entries_are_kept_within_the_limits(messages: list[str], batch: int) -> None:
    raw: Raw | UnsetType = UNSET
    entries = [entry(at, message) for at, message in enumerate(messages * 8)]
    for start in range(0, len(entries), batch):
        raw = appended(raw, *entries[start : start + batch])
    log = task_log.decode_log(raw)
    assert log.total == len(entries)
    assert list(log.entries) == entries[log.removed :]
    assert len(log.entries) <= MAX_LOG_ENTRIES
    assert len(memoryview(raw)) < MAX_BYTES + 100 if isinstance(raw, Raw) else not entries
    if log.removed and len(log.entries) < MAX_LOG_ENTRIES:  # then there was no space for one more
        assert len(memoryview(raw)) + 6 * 4100 > MAX_BYTES  # type: ignore[arg-type]


def test_after_a_count_come_the_entries_that_were_not_yet_seen() -> None:
    raw = appended(UNSET, *(entry(at, str(at)) for at in range(MAX_LOG_ENTRIES + 10)))
    log = task_log.decode_log(raw)
    assert log.removed == 10
    assert [each.message for each in log.after(MAX_LOG_ENTRIES + 8)] == ["208", "209"]
    assert len(log.after(3)) == MAX_LOG_ENTRIES
    assert log.after(log.total) == ()


def test_entries_whose_write_was_repeated_are_stored_once() -> None:
    first = appended(UNSET, entry(1, "a"), entry(2, "b"))
    again = appended(first, entry(1, "a"), entry(2, "b"), entry(3, "b"))
    assert [each.message for each in task_log.decode_log(again).entries] == ["a", "b", "b"]
    assert appended(again, entry(3, "b")) is again


def test_fields_of_a_later_version_are_kept() -> None:
    stored = Raw(b'{"entries":[{"at":1,"level":"info","message":"a","span":"x"}],"removed":4}')
    raw = appended(stored, entry(2, "b"))
    assert isinstance(raw, Raw)
    assert json.loads(bytes(raw)) == {
        "removed": 4,
        "entries": [
            {"at": 1, "level": "info", "message": "a", "span": "x"},
            {"at": 2, "level": "info", "message": "b"},
        ],
    }


@given(json_values)
def test_an_unreadable_log_counts_as_empty_and_is_replaced(value: Json) -> None:
    raw = Raw(json.dumps(value).encode())
    assert task_log.decode_log(raw).entries == ()
    assert [each.message for each in task_log.decode_log(appended(raw, entry(1, "a"))).entries] == ["a"]


@pytest.mark.parametrize(
    ("message", "stored"),
    [
        ("x" * 5000, "x" * 4095 + "…"),
        ("\ud800", "?"),
        (["y" * 5000], '["' + "y" * 4093 + "…"),
        ({"a": float("nan")}, "{'a': nan}"),
        (object, "<class 'object'>"),
        (None, None),
        ([1, {"a": "b"}], [1, {"a": "b"}]),
    ],
)
def test_any_message_can_be_logged(message: JsonLike, stored: Json) -> None:
    assert entry(1, message).message == stored


def test_only_the_levels_of_the_protocol_can_be_logged() -> None:
    for level in get_args(LogLevel):
        assert entry(1, level=level).level == level
    with pytest.raises(InvalidValue, match=r"level: must be one of debug, .*, not 'fatal'"):
        entry(1, level="fatal")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="logger"):
        entry(1, logger="")


async def test_the_newest_reports_are_kept_in_little_room(store: TaskStore) -> None:
    task = await store.create(ANA, CALL)
    for done in range(3 * MAX_REPORTS_KEPT):
        reports = [Report(done=done, total=30, message=f"page {done}")]
        task = await store.edit(
            task,
            lambda task, now, config, reports=reports: edits.report(
                task, progress=Progress(done=reports[0].done), reports=reports, now=now, config=config
            ),
        )
    read = (await store.get(ANA, task.task.task_id)).task.reports
    assert (read.total, len(read.entries)) == (24, MAX_REPORTS_KEPT)
    assert [each.done for each in read.after(22)] == [22, 23]
    long = [Report(done=1, message="\0" * 4000)] * 3
    raw = task_log.append(UNSET, long, max_entries=MAX_REPORTS_KEPT, max_bytes=MAX_REPORTS_BYTES)
    assert task_log.decode_reports(raw).total == 3
    assert MAX_REPORTS_BYTES < BOOKKEEPING_RESERVE_BYTES / 8
