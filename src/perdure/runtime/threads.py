"""Calls plain functions in threads."""

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
"""The function that calls another function in a thread. Simulated time replaces it, to count the calls."""


async def call_in_thread(call: Callable[[], T]) -> T:
    """Call a function in a thread of its own. The slots of the worker limit the number of threads.

    A thread cannot be cancelled. If this call is cancelled, it keeps waiting until the function has checked
    `task.is_cancelled()` and returned. If it is cancelled again, it abandons the thread.
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
