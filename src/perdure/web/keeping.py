"""What it takes a long look to know is kept for a while, however many pages are open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LEAST = 5.0
"""Seconds for which it is kept."""
SHARE = 20
"""And so many times as long as the look took: so looking takes a twentieth of the time at most."""


class Kept(Generic[T]):
    """One thing that is told, by the look that finds it out."""

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        self._look = look
        self._told: tuple[T, float] | None = None
        """And until when it is kept."""
        self._looking = asyncio.Lock()

    async def told(self, *, unless: Callable[[T], bool] = lambda _: False) -> T:
        """What the last look told; what the next one does, if that was long ago, or is out of date."""
        async with self._looking:
            if self._told is None or time.monotonic() >= self._told[1] or unless(self._told[0]):
                began = time.monotonic()
                found = await self._look()
                ended = time.monotonic()
                self._told = found, ended + max(LEAST, SHARE * (ended - began))
            return self._told[0]
