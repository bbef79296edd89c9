"""Wait for conditions, and fail if they do not come true in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def wait_until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.005)


async def poll_until(
    read: Callable[[], Awaitable[T]], is_expected: Callable[[T], object], seconds: float = 15
) -> T:
    """Read repeatedly, and return the first value that is as expected."""
    async with asyncio.timeout(seconds):
        while True:
            if is_expected(value := await read()):
                return value
            await asyncio.sleep(0.02)


async def wait_for_status(
    read: Callable[[], Awaitable[dict[str, Any]]], *statuses: str, seconds: float = 15
) -> dict[str, Any]:
    """Read a task repeatedly until it has one of the statuses."""
    return await poll_until(read, lambda task: task["status"] in statuses, seconds)
