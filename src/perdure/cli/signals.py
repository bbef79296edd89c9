"""Stops a process on SIGTERM or SIGINT: cleanly at the first signal, immediately at the second."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from ..runtime.background import run_in_background
from .output import print_message

T = TypeVar("T")

NOTICE_DELAY = 0.5
"""Seconds after the first signal until a message says what the process waits for. There is no message if the
process stops before, because it had nothing to wait for.
"""
RUNS = "waiting for running tasks, for at most `drain_timeout` (default: 20 seconds)"
RECOVERY = "Running tasks will be recovered by another worker or at the next start."


@asynccontextmanager
async def stop_signals(
    stopping: str = RUNS, killed: str = RECOVERY, *, exit_code: int | None = 1
) -> AsyncGenerator[anyio.Event]:
    """Yield an event that is set at the first SIGTERM or SIGINT. The second signal ends the process.

    `stopping` is printed after the first signal, unless the `async with` block ends within `NOTICE_DELAY`
    seconds. `killed` is printed at the second signal. If `exit_code` is None, the second signal ends the
    process with exit code 128 plus the signal number.
    """
    stop = anyio.Event()

    async def listen() -> None:
        first = await anext(signals)
        stop.set()
        group.start_soon(notify, first)
        second = await anext(signals)
        print_message(f"Killed. {killed}")
        os._exit(128 + second if exit_code is None else exit_code)

    async def notify(first: signal.Signals) -> None:
        await anyio.sleep(NOTICE_DELAY)
        again = "press Ctrl+C again" if first is signal.SIGINT else "send the signal again"
        print_message(f"{first.name}: {stopping}; {again} to stop immediately.")

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            yield stop
            group.cancel_scope.cancel()


async def run_until_signal(work: Coroutine[None, None, T], stopping: str, killed: str) -> T | None:
    """Run `work` and return its result. At the first signal, cancel `work`, await it and return None."""
    async with stop_signals(stopping, killed, exit_code=None) as stop, run_in_background(work) as task:
        task.add_done_callback(lambda _: stop.set())
        await stop.wait()
        return await task if task.done() else None
