"""Runs work in the background of a block of code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def run_in_background(work: Coroutine[None, None, T]) -> AsyncGenerator[asyncio.Task[T]]:
    """Run `work` in an asyncio task until the `async with` block ends. Errors in `work` do not end the block.

    The task is cancelled once and then awaited. A task group would wrap the errors of the block in exception
    groups, and its cancel scope would also cancel cleanup in `work`.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
