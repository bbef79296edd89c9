"""`perdure worker`: a process that does nothing but run tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from ..runtime import App
from .signals import STOPPING, stop_dead_on_the_next


async def work(app: App, say: Callable[[str], None]) -> None:
    """Work until told to stop; then finish, or hand back, what runs. Told twice, stop dead."""
    with anyio.open_signal_receiver(*STOPPING) as signals:
        async with app.open() as runtime:
            names = ", ".join(sorted(app.functions))
            say(f"worker {runtime.name} on {runtime.store.storage.name}: {names}")
            told = await anext(signals)
            say(f"{told.name}: finishing what runs; once more to stop at once")
            impatient = asyncio.create_task(stop_dead_on_the_next(signals, say))
        impatient.cancel()
    say("stopped")
