"""Doing something beside a block of code, whose own errors come out of it as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager

import anyio


@asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Do this work meanwhile; it is cancelled when the block is left. What it raises is raised then.

    A task group would do the same, and wrap every error of the block in a group.
    """
    doing = asyncio.create_task(work)
    try:
        yield
    finally:
        doing.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([doing])
    if not doing.cancelled():
        doing.result()
