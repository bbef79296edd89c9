"""`perdure worker`: a process that does nothing but run tasks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import anyio

from ..runtime import App

STOPPING = (signal.SIGTERM, signal.SIGINT)


async def work(app: App, say: Callable[[str], None]) -> None:
    """Work until told to stop; then finish, or hand back, what runs. Told twice, stop dead."""
    async with anyio.create_task_group() as group:
        async with app.open() as runtime:
            say(f"worker {runtime.name} on {runtime.store.storage.name}: {', '.join(sorted(app.functions))}")
            say(f"{await _next_signal()}: finishing what runs; once more to stop at once")
            group.start_soon(_stop_dead_on_the_next, say)
        group.cancel_scope.cancel()
    say("stopped")


async def _next_signal() -> str:
    with anyio.open_signal_receiver(*STOPPING) as signals:
        return (await anext(aiter(signals))).name


async def _stop_dead_on_the_next(say: Callable[[str], None]) -> None:
    await _next_signal()
    say("stopped dead; what ran is recovered by another worker")
    os._exit(1)
