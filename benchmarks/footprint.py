"""The memory that a task takes in the memory engine: its record and its index entries."""

from __future__ import annotations

import gc
import tracemalloc

import msgspec

from perdure.storage import open_storage
from perdure.tasks import TaskStore

from .report import ResultRow
from .workload import ANA, NEW, ROOMY, record


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The number of stored tasks."""

    tasks: int


async def measure(workload: Workload) -> ResultRow:
    encoded = len(record(0).body)
    kept = await _bytes_per_task(workload.tasks)
    return ResultRow(
        what=f"memory, bytes of a task among {workload.tasks:,}: kept / encoded",
        baseline=f"{encoded:,} bytes",
        subject=f"{kept:,.0f} bytes",
        ratio=kept / encoded,
    )


async def _bytes_per_task(number: int) -> float:
    async with await open_storage("memory:") as storage:
        store = TaskStore(storage, ROOMY, application="benchmarks")
        await store.create(ANA, NEW)  # create what exists only once before measuring
        gc.collect()
        tracemalloc.start()
        for _ in range(number):
            await store.create(ANA, NEW)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return kept / number
