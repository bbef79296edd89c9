"""Plain functions, called in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from .errors import exited

T = TypeVar("T")

RunInThread: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]

run_in_thread: ContextVar[RunInThread] = ContextVar("run_in_thread", default=anyio.to_thread.run_sync)
"""How a function is called in a thread. Simulated time has its own way: it waits for the threads."""


async def call_in_thread(call: Callable[[], T]) -> T:
    """Call it, in a thread of its own: the slots bound how many there are.

    A thread cannot be cancelled. Who is cancelled while it runs goes on waiting, for it to look at its task's
    cancellation and end; cancelled a second time, leaves it behind.
    """
    limiter = anyio.CapacityLimiter(1)
    running = asyncio.ensure_future(
        run_in_thread.get()(_staying, call, abandon_on_cancel=True, limiter=limiter)
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
