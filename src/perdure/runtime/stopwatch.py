"""`Stopwatch` measures how long a function runs, not counting the time in which it waits for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Stopwatch:
    """Calls `on_end` after it has run for a number of seconds. Pauses may be nested."""

    def __init__(self, seconds: float | None, on_end: Callable[[], None]) -> None:
        self._left = seconds
        self._on_end = on_end
        self._pauses = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._left is not None:
            self._timer = asyncio.get_running_loop().call_later(self._left, self._on_end)

    def stop(self) -> None:
        if self._timer is not None:
            self._left = self._timer.when() - asyncio.get_running_loop().time()
            self._timer.cancel()
            self._timer = None

    def pause(self) -> None:
        self._pauses += 1
        self.stop()

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            self.start()
