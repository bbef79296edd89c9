"""The first page of a long listing compared with its last, which a seek reaches as fast and an offset does
not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from perdure.storage import Insert, Storage, open_storage
from perdure.tasks import TaskPage, TaskStore

from .report import ResultRow, Target, at_most, micros
from .timing import race, ratio
from .workload import ANA, ROOMY, record

PAGE = 50
STRIDE = 200
"""The page size for reading to the end: the largest one."""
BATCH = 25
"""The maximum number of changes per commit."""
IN_FLIGHT = 64


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths of the listings, the calls per round, and the number of rounds."""

    stored: tuple[int, ...]
    in_memory: tuple[int, ...]
    calls: int
    rounds: int


async def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    """Measure the listings, and the file size of the longest. Only that one has a target."""
    rows = [await _in_memory(number, workload) for number in workload.in_memory]
    *shorter, longest = workload.stored
    rows += [await _in_file(folder / f"{number}.db", number, workload, None) for number in shorter]
    path = folder / "longest.db"
    rows.append(await _in_file(path, longest, workload, at_most(1.2)))
    return [*rows, _size_row(longest, path.stat().st_size)]


async def _in_memory(number: int, workload: Workload) -> ResultRow:
    async with await open_storage("memory:") as storage:
        await load(storage, number)
        return await _compare(f"memory, page of {number:,} tasks", storage, number, workload, None)


async def _in_file(path: Path, number: int, workload: Workload, target: Target | None) -> ResultRow:
    async with await open_storage(f"sqlite:///{path}?synchronous=normal") as storage:
        await load(storage, number)
        return await _compare(f"SQLite, page of {number:,} tasks", storage, number, workload, target)


async def load(storage: Storage, number: int) -> None:
    """Store tasks of one owner directly, because the store would count them one by one."""
    batches = _batches(number)

    async def share() -> None:
        for batch in batches:
            await storage.commit(batch, now=batch[0].record.order)

    await asyncio.gather(*(share() for _ in range(IN_FLIGHT)))


def _batches(number: int) -> Iterator[list[Insert]]:
    for start in range(0, number, BATCH):
        yield [Insert(record=record(each)) for each in range(start, min(start + BATCH, number))]


async def _compare(
    what: str, storage: Storage, number: int, workload: Workload, target: Target | None
) -> ResultRow:
    store = TaskStore(storage, ROOMY, application="benchmarks")
    cursor = await _walk(store, number)

    async def first() -> None:
        for _ in range(workload.calls):
            _check(await store.list(ANA, limit=PAGE), is_last=False)

    async def last() -> None:
        for _ in range(workload.calls):
            _check(await store.list(ANA, limit=PAGE, cursor=cursor), is_last=True)

    firsts, lasts = await race([first, last], workload.rounds)
    return ResultRow(
        what=f"{what}: last / first",
        baseline=micros(median(firsts) / workload.calls),
        subject=micros(median(lasts) / workload.calls),
        ratio=ratio(lasts, firsts),
        target=target,
    )


async def _walk(store: TaskStore, number: int) -> str | None:
    """Return the cursor of the last page, reached from page to page."""
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


def _size_row(number: int, size: int) -> ResultRow:
    encoded = len(record(0).body)
    return ResultRow(
        what=f"SQLite, file bytes of a task among {number:,}: stored / encoded",
        baseline=f"{encoded:,} bytes",
        subject=f"{size / number:,.0f} bytes",
        ratio=size / number / encoded,
    )
