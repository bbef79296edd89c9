"""What a task takes up in the memory engine: its record, and its places in the indexes."""

from __future__ import annotations

import gc
import tracemalloc

import msgspec

from perdure.storage import open_storage
from perdure.tasks import TaskStore

from .report import Line
from .workload import ANA, NEW, ROOMY, record


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks are kept at once."""

    tasks: int


async def measure(effort: Effort) -> Line:
    encoded = len(record(0).body)
    kept = await _bytes_per_task(effort.tasks)
    return Line(
        what=f"memory, bytes of a task among {effort.tasks:,}: kept / encoded",
        floor=f"{encoded:,} bytes",
        subject=f"{kept:,.0f} bytes",
        ratio=kept / encoded,
    )


async def _bytes_per_task(number: int) -> float:
    async with await open_storage("memory:") as storage:
        store = TaskStore(storage, ROOMY)
        await store.create(ANA, NEW)  # whatever is made once is made before
        gc.collect()
        tracemalloc.start()
        for _ in range(number):
            await store.create(ANA, NEW)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return kept / number
