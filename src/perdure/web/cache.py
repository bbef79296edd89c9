"""Caches the results of expensive queries, and shares them between all open pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MIN_AGE_SECONDS = 5.0
"""Number of seconds for which a result is reused, unless the caller considers it stale."""
COST_FACTOR = 30
"""A result is reused for at least this many times the duration of its query, which limits the load."""


class CachedQuery(Generic[T]):
    """A query that reuses its most recent result for some time."""

    def __init__(self, query: Callable[[], Awaitable[T]]) -> None:
        self._query = query
        self._value: T | None = None
        self._finished_at = self._duration = 0.0
        self._lock = asyncio.Lock()

    async def get(self, *, is_stale: Callable[[T], bool] = lambda _: False) -> T:
        """Return the cached result, or a new one if the cached one is too old or `is_stale` returns True.

        The result of a slow query is kept longer, even if it is stale.
        """
        async with self._lock:
            if self._value is not None and not self._may_query(is_stale=is_stale(self._value)):
                return self._value
            started = time.monotonic()
            self._value = await self._query()
            self._finished_at = time.monotonic()
            self._duration = self._finished_at - started
            return self._value

    def _may_query(self, *, is_stale: bool) -> bool:
        age = time.monotonic() - self._finished_at
        return age >= COST_FACTOR * self._duration and (is_stale or age >= MIN_AGE_SECONDS)
