"""Wait for conditions, and fail if they do not come true in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
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


async def wait_until_stopped(pid: int) -> None:
    """Wait until SIGSTOP has stopped every thread: on a busy machine some still run for a while."""
    await wait_until(lambda: all(state == "T" for state in _thread_states(pid)))


def _thread_states(pid: int) -> list[str]:
    states: list[str] = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            states.append(stat.read_text().rpartition(") ")[2][0])
    return states
