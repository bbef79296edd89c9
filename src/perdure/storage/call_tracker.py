"""Calls in flight, for engines whose `close` waits for them."""

from __future__ import annotations

import asyncio

from .errors import StorageClosed


class CallTracker:
    """Counts the calls in flight; each runs in a `with` block. It belongs to one event loop."""

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
        """Refuse further calls, and wait for those in flight."""
        self._closed = True
        await self._is_idle.wait()
