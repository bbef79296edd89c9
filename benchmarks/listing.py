"""The first page of a long listing against its last, which a seek reaches as fast and an offset does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from perdure.storage import Insert, Storage, open_storage
from perdure.tasks import TaskPage, TaskStore

from .report import Line, Target, at_most, micros
from .timing import race, ratio
from .workload import ANA, ROOMY, record

PAGE = 50
STRIDE = 200
"""The largest page, for walking to the end."""
BATCH = 25
"""The most changes of a commit."""
IN_FLIGHT = 64


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: how long the listings are, calls of one round, and rounds."""

    stored: tuple[int, ...]
    in_memory: tuple[int, ...]
    calls: int
    rounds: int


async def measure(folder: Path, effort: Effort) -> list[Line]:
    """The listings, and how large the file of the longest is, on which the target is set."""
    lines = [await _in_memory(number, effort) for number in effort.in_memory]
    *shorter, longest = effort.stored
    lines += [await _in_file(folder / f"{number}.db", number, effort, None) for number in shorter]
    path = folder / "longest.db"
    lines.append(await _in_file(path, longest, effort, at_most(1.2)))
    return [*lines, _size_line(longest, path.stat().st_size)]


async def _in_memory(number: int, effort: Effort) -> Line:
    async with await open_storage("memory:") as storage:
        await load(storage, number)
        return await _compare(f"memory, page of {number:,} tasks", storage, number, effort, None)


async def _in_file(path: Path, number: int, effort: Effort, target: Target | None) -> Line:
    async with await open_storage(f"sqlite:///{path}?synchronous=normal") as storage:
        await load(storage, number)
        return await _compare(f"SQLite, page of {number:,} tasks", storage, number, effort, target)


async def load(storage: Storage, number: int) -> None:
    """Store so many tasks of one owner, past the store, which would count them one by one."""
    batches = _batches(number)

    async def share() -> None:
        for batch in batches:
            await storage.commit(batch, now=batch[0].record.order)

    await asyncio.gather(*(share() for _ in range(IN_FLIGHT)))


def _batches(number: int) -> Iterator[list[Insert]]:
    for start in range(0, number, BATCH):
        yield [Insert(record=record(each)) for each in range(start, min(start + BATCH, number))]


async def _compare(what: str, storage: Storage, number: int, effort: Effort, target: Target | None) -> Line:
    store = TaskStore(storage, ROOMY)
    cursor = await _walk(store, number)

    async def first() -> None:
        for _ in range(effort.calls):
            _check(await store.list(ANA, limit=PAGE), is_last=False)

    async def last() -> None:
        for _ in range(effort.calls):
            _check(await store.list(ANA, limit=PAGE, cursor=cursor), is_last=True)

    firsts, lasts = await race([first, last], effort.rounds)
    return Line(
        what=f"{what}: last / first",
        floor=micros(median(firsts) / effort.calls),
        subject=micros(median(lasts) / effort.calls),
        ratio=ratio(lasts, firsts),
        target=target,
    )


async def _walk(store: TaskStore, number: int) -> str | None:
    """The cursor of the last page, come by honestly: from page to page."""
    cursor: str | None = None
    left = number - PAGE
    while left:
        page = await store.list(ANA, limit=min(left, STRIDE), cursor=cursor)
        cursor = page.next_cursor
        left -= len(page.tasks)
    return cursor


def _check(page: TaskPage, *, is_last: bool) -> None:
    assert len(page.tasks) == PAGE
    assert (page.next_cursor is None) is is_last


def _size_line(number: int, size: int) -> Line:
    encoded = len(record(0).body)
    return Line(
        what=f"SQLite, file bytes of a task among {number:,}: stored / encoded",
        floor=f"{encoded:,} bytes",
        subject=f"{size / number:,.0f} bytes",
        ratio=size / number / encoded,
    )
