"""Watching a file: commits of other processes wake, and are not looked for when there is no watch."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage import Storage, open_storage
from perdure.storage.kit.sample_records import NOW, SPACE, insert_each, make_record

from ..conditions import wait_until
from ..markers import server
from .helpers import in_time
from .sqlite_helpers import child, trace, url_of

pytestmark = pytest.mark.anyio

LOOK = "PRAGMA data_version"


@server
async def test_a_commit_of_another_process_wakes_a_watch(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    async with await open_storage(url) as storage, child("put_keys", url) as other:
        assert await other.line() == "ready"
        async with storage.watch(SPACE) as watch:
            for key in ("a", "b", "c"):
                await other.send(key)
                while await storage.get(make_record(key).address, now=NOW) is None:
                    await in_time(watch.changed())
        assert [await other.line() for _ in range(3)] == ["a", "b", "c"]
        await other.end()


async def test_a_commit_of_this_process_wakes_a_watch(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    async with await open_storage(url) as storage, storage.watch(SPACE, "someone", "k") as watch:
        await in_time(watch.changed())
        await insert_each(storage, make_record())
        await in_time(watch.changed())


async def test_polling_stops_when_the_last_watch_is_closed(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    async with await open_storage(url) as storage, await open_storage(url) as clock:
        looks, ticks = trace(storage), trace(clock)
        first, second = storage.watch(SPACE), storage.watch(SPACE, "someone")
        await first.close()
        await expect_looking(looks)
        await second.close()
        await insert_each(storage, make_record())  # after it, the writer has seen that there is no watch
        looks.clear()
        async with clock.watch(SPACE):
            await wait_until(lambda: ticks.count(LOOK) > 10)
        assert looks == []
        async with storage.watch(SPACE):
            await expect_looking(looks)


async def expect_looking(statements: list[str]) -> None:
    before = statements.count(LOOK)
    await wait_until(lambda: statements.count(LOOK) > before + 3)


async def test_there_is_no_polling_before_the_first_watch(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    async with await open_storage(url) as storage, await open_storage(url) as clock:
        looks = await statements_while_another_ticks(storage, clock)
        assert looks == []


async def statements_while_another_ticks(storage: Storage, clock: Storage) -> list[str]:
    looks, ticks = trace(storage), trace(clock)
    async with clock.watch(SPACE):
        await wait_until(lambda: ticks.count(LOOK) > 10)
    return looks
