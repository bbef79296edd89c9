"""The counters of a SQLite file equal the records, whatever became of the one that a writer had read."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage import Change, Delete, Guard, Record, open_storage
from perdure.storage.kit.samples import NOW, PARTITION, SPACE, do, put, sample

from .sqlite_helpers import url_of

pytestmark = pytest.mark.anyio

READ = sample(tag="red")
REBORN = sample(tag="green")
CHANGES = [READ.becoming(body="2", tag="blue"), READ.becoming(body="2", tag="red"), Delete(before=READ)]


def name(change: Change) -> str:
    return type(change).__name__


@pytest.mark.parametrize("change", CHANGES, ids=name)
async def test_a_record_born_again_with_the_version_that_was_read_is_counted_right(
    tmp_path: Path, change: Change
) -> None:
    async with await open_storage(url_of(tmp_path / "records.db")) as storage:
        await put(storage, READ)
        await do(storage, Delete(before=READ))
        await put(storage, REBORN)
        await storage.commit([change], now=NOW)  # refused or not, the counters must agree
        records = await storage.page(SPACE, PARTITION, limit=9, now=NOW)
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == count(records)
        assert (await storage.maintain()).findings == ()


async def test_a_guard_counts_the_tag_that_stands_there_and_not_the_one_that_was_read(tmp_path: Path) -> None:
    guard = Guard(space=SPACE, tags=frozenset({"red"}), at_most=1)
    async with await open_storage(url_of(tmp_path / "records.db")) as storage:
        await put(storage, READ)
        await do(storage, Delete(before=READ))
        await put(storage, REBORN)
        await put(storage, sample("other", tag="red"))
        await storage.commit([READ.becoming(body="2", tag="red")], guard=guard, now=NOW)
        assert (await storage.counts(SPACE, PARTITION, now=NOW))["red"] == 1
        assert (await storage.maintain()).findings == ()


def count(records: list[Record]) -> dict[str, int]:
    tags = [record.tag for record in records]
    return {tag: tags.count(tag) for tag in tags}
