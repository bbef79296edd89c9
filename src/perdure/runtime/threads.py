"""Plain functions, called in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from .errors import exited

T = TypeVar("T")


async def call_in_thread(call: Callable[[], T]) -> T:
    """Call it, in a thread of its own: the slots bound how many there are.

    A thread cannot be cancelled. Who is cancelled while it runs goes on waiting, for it to look at its task's
    cancellation and end; cancelled a second time, leaves it behind.
    """
    limiter = anyio.CapacityLimiter(1)
    running = asyncio.ensure_future(
        anyio.to_thread.run_sync(_staying, call, abandon_on_cancel=True, limiter=limiter)
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        return await running


def _staying(call: Callable[[], T]) -> T:
    try:
        return call()
    except SystemExit as error:
        raise exited(error) from error
