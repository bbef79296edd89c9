"""Counts the calls that have not returned yet, so that the `close` of an engine can wait for them."""

from __future__ import annotations

import asyncio

from .errors import StorageClosed


class CallTracker:
    """Counts the running calls. Run each call in `with tracker:`. Use a tracker in only one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._closed = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def __enter__(self) -> None:
        if self._closed:
            raise StorageClosed("this storage is closed")
        self._count += 1
        self._is_idle.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._is_idle.set()

    async def drain(self) -> None:
        """Refuse new calls, and wait until all running calls have returned."""
        self._closed = True
        await self._is_idle.wait()
