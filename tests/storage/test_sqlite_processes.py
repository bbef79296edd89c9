"""Several processes on one file, some killed: no error reaches anyone, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from perdure.storage import Storage, open_storage
from perdure.storage.kit.sample_records import NOW, PARTITION, insert_each, make_record

from .helpers import keys_of
from .sqlite_helpers import child, output_of_process, url_of
from .sqlite_ledger import PARTITIONS, expect_whole_commits
from .sqlite_stress import OWN

pytestmark = pytest.mark.anyio

KILLS = 10


# Together


async def test_concurrent_processes_do_not_disturb_each_other(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    async with await open_storage(url) as storage:
        hammers = [
            asyncio.create_task(output_of_process(url, name, script="sqlite_stress")) for name in "abcd"
        ]
        while not all(hammer.done() for hammer in hammers):
            assert (await storage.maintain()).findings == ()
        expected: dict[str, int] = {}
        for hammer in hammers:
            expected |= json.loads((await hammer)[0])
        assert len(expected) > 100
        assert await versions(storage) == expected
        assert (await storage.maintain()).findings == ()


async def versions(storage: Storage) -> dict[str, int]:
    """The version of each record that belongs to one of the hammers."""
    found: list[tuple[str, int]] = []
    after = None
    while page := await storage.page(OWN, PARTITION, limit=1000, now=NOW, after=after):
        found += [(record.key, record.version) for record in page]
        after = page[-1].position
    assert len({key for key, _ in found}) == len(found)
    return dict(found)


async def test_processes_may_come_and_go_all_the_time(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    await asyncio.gather(*[output_of_process("come_and_go", url, name, 40) for name in "abcdef"])
    async with await open_storage(url) as storage:
        assert {*await keys_of(storage)} == {f"{name}-{n}" for name in "abcdef" for n in range(40)}
        assert (await storage.maintain()).findings == ()


async def test_a_second_client_of_this_process_does_not_give_the_file_away_to_others(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    async with await open_storage(url) as first, await open_storage(url) as second:
        await insert_each(first, make_record("a"))
        assert await keys_in_another_process(url) == ["a"]  # which closes the file behind it
        await insert_each(first, make_record("b"))
        await insert_each(second, make_record("c"))
        assert await keys_in_another_process(url) == ["a", "b", "c"]
        assert await keys_of(first) == await keys_of(second) == ["a", "b", "c"]


async def test_a_second_client_that_is_closed_does_not_take_the_file_from_the_first(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    async with await open_storage(url) as storage:
        for n in range(5):
            async with await open_storage(url) as second:
                await insert_each(second, make_record(f"second-{n}"))
            await insert_each(storage, make_record(f"first-{n}"))
            assert len(await keys_in_another_process(url)) == 2 * (n + 1)
        assert len(await keys_of(storage)) == 10


async def keys_in_another_process(url: str) -> list[str]:
    [line] = await output_of_process("keys", url)
    return json.loads(line)


# Killed


async def test_every_acknowledged_commit_survives_a_kill_and_none_is_halved(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    chance = random.Random(9)
    acknowledged = dict.fromkeys(PARTITIONS, 0)
    for _ in range(KILLS):
        acknowledged |= newest(await lines_until_killed(url, chance))
        async with await open_storage(url) as storage:
            await expect_whole_commits(storage, acknowledged)
            assert (await storage.maintain()).findings == ()
    assert min(acknowledged.values()) > KILLS


def newest(lines: list[str]) -> dict[str, int]:
    """The newest commit of each partition that was acknowledged."""
    return {partition: int(n) for partition, n in map(str.split, lines)}


async def lines_until_killed(url: str, chance: random.Random) -> list[str]:
    """What a process acknowledged that was killed at some moment."""
    async with child(url, script="sqlite_ledger") as ledger:
        lines = [await ledger.line() for _ in range(chance.randint(1, 200))]
        await asyncio.sleep(chance.uniform(0, 0.01))  # so that it is not always just after a commit
        return [*lines, *await ledger.kill()]


async def test_a_process_killed_while_others_write_disturbs_none_of_them(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    async with await open_storage(url) as storage:
        writing = asyncio.create_task(insert_each(storage, *[make_record(f"k{n:03}") for n in range(300)]))
        lines = await lines_until_killed(url, random.Random(1))
        await writing
        assert await keys_of(storage) == [f"k{n:03}" for n in range(300)]
        await expect_whole_commits(storage, newest(lines))
        assert (await storage.maintain()).findings == ()
