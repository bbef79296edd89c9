"""`perdure worker`: a process that does nothing but run tasks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable

import anyio

from ..runtime import App

STOPPING = (signal.SIGTERM, signal.SIGINT)


async def work(app: App, say: Callable[[str], None]) -> None:
    """Work until told to stop; then finish, or hand back, what runs. Told twice, stop dead."""
    with anyio.open_signal_receiver(*STOPPING) as signals:
        async with app.open() as runtime:
            names = ", ".join(sorted(app.functions))
            say(f"worker {runtime.name} on {runtime.store.storage.name}: {names}")
            told = await anext(signals)
            say(f"{told.name}: finishing what runs; once more to stop at once")
            impatient = asyncio.create_task(_stop_dead_on_the_next(signals, say))
        impatient.cancel()
    say("stopped")


async def _stop_dead_on_the_next(signals: AsyncIterator[signal.Signals], say: Callable[[str], None]) -> None:
    await anext(signals)
    say("stopped dead; what ran is recovered by another worker")
    os._exit(1)
