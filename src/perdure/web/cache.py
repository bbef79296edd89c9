"""What it takes a long look to know is kept for a while, however many pages are open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LEAST = 5.0
"""Seconds for which it is kept, unless it is out of date."""
SHARE = 30
"""And in any case so many times as long as the look took: looking takes a thirtieth of the time at most."""


class Kept(Generic[T]):
    """One thing that is told, by the look that finds it out."""

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        self._look = look
        self._told: T | None = None
        self._ended = self._took = 0.0
        self._looking = asyncio.Lock()

    async def told(self, *, unless: Callable[[T], bool] = lambda _: False) -> T:
        """What the last look told; what the next one does, if that was long ago, or is out of date."""
        async with self._looking:
            if self._told is not None and not self._may_look(is_old=unless(self._told)):
                return self._told
            began = time.monotonic()
            self._told = await self._look()
            self._ended = time.monotonic()
            self._took = self._ended - began
            return self._told

    def _may_look(self, *, is_old: bool) -> bool:
        age = time.monotonic() - self._ended
        return age >= SHARE * self._took and (is_old or age >= LEAST)
