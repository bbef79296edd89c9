"""The counters of a SQLite file equal the records, whatever became of the one that a writer had read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perdure.storage import Change, Committed, Delete, Guard, Record, Refused, open_storage
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, commit_changes, insert_each, make_record

from .helpers import inserting
from .sqlite_helpers import url_of

pytestmark = pytest.mark.anyio

READ = make_record(tag="red")
REBORN = make_record(tag="green")
CHANGES = [
    READ.replace_with(body="2", tag="blue"),
    READ.replace_with(body="2", tag="red"),
    Delete(before=READ),
]


def name(change: Change) -> str:
    return type(change).__name__


@pytest.mark.parametrize("change", CHANGES, ids=name)
async def test_a_reinserted_record_with_the_version_that_was_read_is_counted_right(
    tmp_path: Path, change: Change
) -> None:
    async with await open_storage(url_of(tmp_path / "records.db")) as storage:
        await insert_each(storage, READ)
        await commit_changes(storage, Delete(before=READ))
        await insert_each(storage, REBORN)
        await storage.commit([change], now=NOW)  # refused or not, the counters must agree
        records = await storage.page(SPACE, PARTITION, limit=9, now=NOW)
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == count(records)
        assert (await storage.maintain()).findings == ()


async def test_a_guard_counts_the_stored_tag_and_not_the_one_that_was_read(tmp_path: Path) -> None:
    guard = Guard(space=SPACE, tags=frozenset({"red"}), max_count=1)
    async with await open_storage(url_of(tmp_path / "records.db")) as storage:
        await insert_each(storage, READ)
        await commit_changes(storage, Delete(before=READ))
        await insert_each(storage, REBORN)
        await insert_each(storage, make_record("other", tag="red"))
        await storage.commit([READ.replace_with(body="2", tag="red")], guard=guard, now=NOW)
        assert (await storage.counts(SPACE, PARTITION, now=NOW))["red"] == 1
        assert (await storage.maintain()).findings == ()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE counts SET n = n + 5",
        "UPDATE counts SET n = n - 5",
        "UPDATE counts SET n = 9 WHERE partition <> ''",
        "UPDATE counts SET n = 9 WHERE partition = ''",
        "DELETE FROM counts",
        "DELETE FROM records WHERE tag = 'green'",
        "INSERT INTO counts SELECT space, partition, 'gone', 3 FROM counts WHERE tag = 'red'",
    ],
)
async def test_repairing_sets_wrong_counters_right_of_a_partition_and_of_all(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path)) as storage:
        await insert_each(
            storage,
            READ,
            make_record("2", tag="red"),
            make_record("3", tag="green"),
            make_record(partition="other"),
        )
        execute(path, damage)
        found = (await storage.maintain()).findings
        assert found != ()
        assert (await storage.maintain(repair=True)).findings == found
        assert (await storage.maintain()).findings == ()
        for partition in (PARTITION, "other", None):
            records = await storage.page(SPACE, partition, limit=9, now=NOW)
            assert dict(await storage.counts(SPACE, partition, now=NOW)) == count(records)
        guard = Guard(space=SPACE, tags=frozenset({"red"}), max_count=3)
        results = [
            await storage.commit(inserting(make_record(key, tag="red")), guard=guard, now=NOW) for key in "45"
        ]
        assert [type(result) for result in results] == [Committed, Refused]


async def test_repairing_changes_nothing_where_all_is_well(tmp_path: Path) -> None:
    async with await open_storage(url_of(tmp_path / "records.db")) as storage:
        await insert_each(storage, READ, make_record("expired", tag="green", expires_at=NOW + 1))
        assert (await storage.maintain(repair=True)).findings == ()
        assert dict(await storage.counts(SPACE, now=NOW)) == {"red": 1, "green": 1}
        assert dict(await storage.counts(SPACE, now=NOW + 1)) == {"red": 1}


def execute(path: Path, sql: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(sql)
    db.close()


def count(records: list[Record]) -> dict[str, int]:
    tags = [record.tag for record in records]
    return {tag: tags.count(tag) for tag in tags}
