"""A lane is read past what this process must skip, however much that is."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from perdure.runtime import lane as lanes
from perdure.runtime.lane import Lane
from perdure.storage import Insert, Record, Space, Storage
from perdure.storage.memory import MemoryEngine

pytestmark = pytest.mark.anyio

NOW = 1_000_000


def make_record(number: int, *, body: str = "{}") -> Record:
    return Record(
        space=Space("s"), partition="p", key=f"{number:05}", order=number, body=body, lane="l", wake_at=number
    )


async def insert(storage: Storage, *records: Record) -> None:
    for record in records:
        await storage.commit([Insert(record=record)], now=NOW)


async def test_more_records_than_a_page_has_are_skipped() -> None:
    async with Storage(MemoryEngine()) as storage:
        records = [make_record(number) for number in range(2_503)]
        await insert(storage, *records)
        lane = Lane(storage, "l")
        for record in records[:2_500]:
            lane.skip(record)
        assert await lane.due(NOW, 2) == records[2_500:2_502]
        assert await lane.due(NOW, 9) == records[2_500:]


async def test_more_bytes_than_a_page_has_are_skipped() -> None:
    async with Storage(MemoryEngine()) as storage:
        records = [make_record(number, body='"' + 1_000_000 * "x" + '"') for number in range(12)]
        await insert(storage, *records)
        lane = Lane(storage, "l")
        for record in records[:11]:
            lane.skip(record)
        assert await lane.due(NOW, 1) == records[11:]


async def test_another_version_of_a_skipped_record_is_returned() -> None:
    async with Storage(MemoryEngine()) as storage:
        record, other = make_record(1), make_record(2)
        await insert(storage, record, other)
        lane = Lane(storage, "l")
        lane.skip(record)
        assert await lane.due(NOW, 9) == [other]
        change = record.replace_with(body="[]", tag="", lane="l", wake_at=3)
        await storage.commit([change], now=NOW)
        assert await lane.due(NOW, 9) == [other, change.after]


async def test_a_record_is_returned_when_its_pause_is_over() -> None:
    async with Storage(MemoryEngine()) as storage:
        record = make_record(1)
        await insert(storage, record)
        lane = Lane(storage, "l")
        lane.skip(record, math.inf)
        assert await lane.due(NOW, 9) == []
        lane.skip(record, -1)
        lane.skip(make_record(2), math.inf)
        assert await lane.due(NOW, 9) == []  # the start of the lane is not read each time
        lane = Lane(storage, "l")
        lane.skip(record, -1)
        assert await lane.due(NOW, 9) == [record]


async def test_the_start_of_a_lane_is_read_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Storage(MemoryEngine()) as storage:
        await insert(storage, skipped := make_record(5))
        monkeypatch.setattr(lanes, "MAX_START_AGE", math.inf)
        lane = Lane(storage, "l")
        lane.skip(skipped)
        assert await lane.due(NOW, 9) == []
        await insert(storage, early := replace(skipped, key="early", wake_at=1))
        assert await lane.due(NOW, 9) == []
        monkeypatch.setattr(lanes, "MAX_START_AGE", 0)
        lane = Lane(storage, "l")
        lane.skip(skipped)
        assert await lane.due(NOW, 9) == [early]
        await insert(storage, earlier := replace(skipped, key="earlier", wake_at=0))
        assert await lane.due(NOW, 9) == [earlier, early]
