"""The weak memory engine really has each weakness that the contract allows, and has it from its seed.

That it keeps every promise is checked by the contract kit, as mode `memory-weak`.
"""

from __future__ import annotations

import asyncio

import pytest

from perdure.storage import Insert, Storage
from perdure.storage.errors import OutcomeUnknown
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, make_record

from .weak import LOST_ANSWERS, WeakMemoryEngine

pytestmark = pytest.mark.anyio

ROUNDS = 400


async def test_verbs_across_partitions_lag_and_catch_up() -> None:
    engine = WeakMemoryEngine("seed", lag=0.2)
    storage = Storage(engine)
    await insert_each(
        storage, *[make_record(f"k{n}", lane="lane", wake_at=1, expires_at=NOW + 1) for n in range(50)]
    )

    async def seen() -> tuple[int, int, int]:
        return (
            len(await storage.page(SPACE, limit=100, now=NOW)),
            len(await storage.due("lane", until=NOW, limit=100, now=NOW)),
            sum((await storage.counts(SPACE, now=NOW)).values()),
        )

    assert max(await seen()) < 50
    assert len(await storage.page(SPACE, PARTITION, limit=100, now=NOW)) == 50  # a partition does not lag
    await engine.settle()
    assert await seen() == (50, 50, 50)
    assert len(await storage.purge(until=NOW + 1, limit=100)) == 50


async def test_a_watch_misses_changes_and_wakes_for_nothing() -> None:
    storage = Storage(WeakMemoryEngine("seed"))
    async with storage.watch(SPACE) as watch:
        async with asyncio.timeout(60):
            for _ in range(100):  # until it wakes although nothing changed
                try:
                    await asyncio.wait_for(watch.changed(), 0.1)
                except TimeoutError:
                    continue
                break
            else:
                pytest.fail("it never woke for nothing")
        missed = 0
        for number in range(ROUNDS):
            waiting = asyncio.create_task(watch.changed())
            await asyncio.sleep(0)
            await insert_each(storage, make_record(f"k{number}"))
            await asyncio.sleep(0)
            missed += not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert 0 < missed < ROUNDS


async def outcomes(seed: str) -> list[tuple[str, bool]]:
    """Return the result of each commit, and whether it was written."""
    storage = Storage(WeakMemoryEngine(seed, may_lose=lambda changes: len(changes) == 1))
    seen: list[tuple[str, bool]] = []
    for number in range(ROUNDS):
        record = make_record(f"k{number}")
        try:
            await storage.commit([Insert(record=record)], now=NOW)
            outcome = "done"
        except OutcomeUnknown:
            outcome = "unknown"
        seen.append((outcome, await storage.get(record.address, now=NOW) is not None))
    return seen


async def test_answers_to_commits_are_lost_with_either_outcome() -> None:
    seen = await outcomes("seed")
    assert {*seen} == {("done", True), ("unknown", True), ("unknown", False)}
    lost = sum(outcome == "unknown" for outcome, _ in seen)
    assert lost < ROUNDS * LOST_ANSWERS * 4


async def test_the_seed_decides_what_is_lost() -> None:
    assert await outcomes("one") == await outcomes("one") != await outcomes("another")


async def test_only_what_may_be_lost_is_lost() -> None:
    storage = Storage(WeakMemoryEngine("seed", may_lose=lambda changes: len(changes) == 1))
    for number in range(ROUNDS):
        changes = [Insert(record=make_record(f"{number}.{part}")) for part in range(2)]
        await storage.commit(changes, now=NOW)
