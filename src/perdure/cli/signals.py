"""Run a process until a signal stops it. The first signal ends it in good order, the next one immediately."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from .output import print_message

T = TypeVar("T")


@asynccontextmanager
async def stop_signals(
    stopping: str, killed: str, *, exit_code: int | None = 1
) -> AsyncGenerator[anyio.Event]:
    """Yield an event that the first signal sets. The next signal ends the process.

    `stopping` is printed at the first signal, and `killed` at the next one. Without an `exit_code`, the
    process exits with 128 plus the number of the signal.
    """
    stop = anyio.Event()

    async def listen() -> None:
        first = await anext(signals)
        print_message(f"{first.name}: {stopping}; send it again, or press Ctrl+C, to stop now.")
        stop.set()
        second = await anext(signals)
        print_message(f"Killed. {killed}")
        os._exit(128 + second if exit_code is None else exit_code)

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            yield stop
            group.cancel_scope.cancel()


@asynccontextmanager
async def run_in_background(work: Coroutine[None, None, T]) -> AsyncGenerator[asyncio.Task[T]]:
    """Run `work` until the block ends. Its errors do not end the block.

    `work` is cancelled once, as a task, and awaited: a cancel scope would also cancel the release of leases.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def run_until_signal(work: Coroutine[None, None, T], stopping: str, killed: str) -> T | None:
    """Return the result of `work`. At the first signal, cancel it, wait for its end and return None."""
    async with stop_signals(stopping, killed, exit_code=None) as stop, run_in_background(work) as task:
        task.add_done_callback(lambda _: stop.set())
        await stop.wait()
        return await task if task.done() else None
