"""How a process that was told to stop is told once more."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable

STOPPING = (signal.SIGTERM, signal.SIGINT)


async def stop_dead_on_the_next(signals: AsyncIterator[signal.Signals], say: Callable[[str], None]) -> None:
    await anext(signals)
    say("stopped dead; what ran is recovered by another process, or at the next start")
    os._exit(1)
