"""A damaged SQLite file: StorageCorrupt is raised or `maintain` finds it, and a good copy restores it."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Awaitable
from pathlib import Path

import pytest

from perdure.storage import Storage, open_storage
from perdure.storage.errors import StorageCorrupt, StorageError
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, commit_changes, insert_each, make_record

from ..conditions import wait_until
from ..markers import server
from .helpers import in_time, inserting, keys_of
from .sqlite_helpers import contents, engine_threads, output_of_process, padded, trace, url_of

pytestmark = pytest.mark.anyio

PAGE = 4096
KEYS = [f"k{n:03}" for n in range(200)]


async def make_file(path: Path) -> str:
    """A file of a good hundred pages, cleanly closed."""
    async with await open_storage(url_of(path)) as storage:
        records = [padded(key, 2000) for key in KEYS]
        await asyncio.gather(*[storage.commit(inserting(record), now=NOW) for record in records])
    return url_of(path)


def overwrite(path: Path, first: int, pages: int, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(first * PAGE)
        file.write(chance.randbytes(pages * PAGE))


def execute(path: Path, sql: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(sql)
    db.close()


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


@pytest.mark.parametrize("part", [0.5, 0.02, 0.999])
async def test_a_truncated_file_is_reported_at_opening_and_unchanged(tmp_path: Path, part: float) -> None:
    path = tmp_path / "records.db"
    url = await make_file(path)
    good = contents(tmp_path)["records.db"]
    cut(path, int(len(good) * part))
    before = contents(tmp_path), engine_threads()
    with pytest.raises(StorageCorrupt, match="restore it from a backup"):
        await open_storage(url)
    assert (contents(tmp_path), engine_threads()) == before
    path.write_bytes(good)
    await expect_everything(url)


@pytest.mark.parametrize("seed", range(8))
async def test_garbage_in_the_file_is_reported_and_never_a_raw_error(tmp_path: Path, seed: int) -> None:
    path, copy = tmp_path / "records.db", tmp_path / "copy.db"
    url = await make_file(path)
    shutil.copy(path, copy)
    chance = random.Random(seed)
    pages = path.stat().st_size // PAGE
    first = chance.randrange(1, pages - 1)
    overwrite(path, first, chance.randint(1, min(10, pages - first)), chance)
    assert await raised_or_found(url), "the damage was not found"
    for log in tmp_path.glob("records.db-*"):  # noqa: ASYNC240
        log.unlink()
    shutil.copy(copy, path)
    await expect_everything(url)


async def raised_or_found(url: str) -> bool:
    """Use everything. Return whether StorageCorrupt was raised or `maintain` found the damage."""
    try:
        storage = await open_storage(url)
    except StorageCorrupt:
        return True
    try:
        reported = [await raises_corrupt(use) for use in uses(storage)]
        return any(reported) or bool((await storage.maintain()).findings)
    except StorageCorrupt:
        return True
    finally:
        await storage.close()


def uses(storage: Storage) -> list[Awaitable[object]]:
    return [
        *[storage.get(make_record(key).address, now=NOW) for key in KEYS],
        storage.page(SPACE, PARTITION, limit=1000, now=NOW),
        storage.page(SPACE, limit=1000, now=NOW, descending=True),
        storage.due("lane", until=NOW, limit=100, now=NOW),
        storage.counts(SPACE, now=NOW),
        storage.purge(until=NOW, limit=100),
        storage.commit(inserting(padded("new", 10_000)), now=NOW),
    ]


async def raises_corrupt(use: Awaitable[object]) -> bool:
    """Whether it raised StorageCorrupt. An error that is not one of the contract's is raised."""
    try:
        await use
    except StorageError as error:
        return isinstance(error, StorageCorrupt)
    return False


async def expect_everything(url: str) -> None:
    async with await open_storage(url) as storage:
        assert await keys_of(storage) == KEYS
        assert (await storage.maintain()).findings == ()
        await insert_each(storage, make_record("new"))


async def test_a_header_that_was_overwritten_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await make_file(path)
    overwrite(path, 0, 1, random.Random(1))
    with pytest.raises(StorageError):
        await open_storage(url)


async def test_text_that_is_not_utf8_is_reported_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await make_file(path)
    execute(path, "UPDATE records SET body = CAST(x'ff' AS TEXT) WHERE key = 'k007'")
    async with await open_storage(url) as storage:
        with pytest.raises(StorageCorrupt, match="k007"):
            await storage.get(make_record("k007").address, now=NOW)
        assert await keys_of(storage) == [key for key in KEYS if key != "k007"]
        assert await storage.get(make_record("k008").address, now=NOW)


@pytest.mark.parametrize("damage", ["DELETE FROM records WHERE key = 'k007'", "UPDATE counts SET n = n + 1"])
async def test_maintain_finds_counters_that_are_wrong(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "records.db"
    url = await make_file(path)
    execute(path, damage)
    async with await open_storage(url) as storage:
        findings = (await storage.maintain()).findings
    assert len(findings) == 2  # of the partition, and of all
    assert all("counter" in finding for finding in findings)


@server
async def test_damage_that_a_watch_meets_does_not_leave_commits_waiting_forever(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    await make_file(path)
    async with await open_storage(url_of(path)) as watching, await open_storage(url_of(path)) as other:
        record = make_record("k000", body=padded("", 2000).body)
        change = record.replace_with(body=record.body, tag="")
        await watching.maintain()  # the log is empty now
        await commit_changes(other, change)
        async with watching.watch(SPACE) as watch:
            await in_time(watch.changed())
            await output_of_process("spoil_first_page", path)
            await commit_changes(
                other, change.after.replace_with(body=record.body, tag="")
            )  # still has the good page
            looks = trace(watching)
            await wait_until(lambda: "PRAGMA data_version" in looks)
            with pytest.raises(StorageCorrupt):
                await in_time(insert_each(watching, make_record("new")))
