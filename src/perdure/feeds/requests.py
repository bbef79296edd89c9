"""Asking a source: never more often than it allows, and again when it fails. For whoever writes a source.

One `Budget` counts for everything that is asked from here: it learns from the source's own headers what is
left, keeps a reserve, and when the source says stop, everybody stops. A source's word on when to come back
wins over our own backoff.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import uniform
from typing import TypeVar

import anyio

from ..storage import Micros
from ..tasks.store import system_clock
from .errors import RateLimited, SourceUnavailable
from .settings import Polling

T = TypeVar("T")

RESERVE = 0.1
"""The part of a limit that is left to others who share the address."""
UNTOLD: Micros = 60 * 1_000_000
"""How long to wait when a source refuses for its rate, and does not say until when."""
SHORTEST: Micros = 1_000_000
LONGEST: Micros = 3600 * 1_000_000
"""A source's word counts within these: clocks differ, and headers can say anything."""


class Budget:
    """What may be asked, and how much of it at a time."""

    def __init__(self, connections: int, *, clock: Callable[[], Micros] = system_clock) -> None:
        self.clock = clock
        self.remaining: int | None = None
        """As the source last said, less what was asked since."""
        self.waits_until: Micros | None = None
        """While everybody waits."""
        self.requests = 0
        self._limit: int | None = None
        self._resets_at: Micros = 0
        self._connections = anyio.CapacityLimiter(connections)

    def learn(self, *, limit: int | None, remaining: int, resets_at: Micros) -> None:
        """What the headers of an answer said. Answers overtake each other: of one window the least counts."""
        resets_at = min(resets_at, self.clock() + LONGEST)
        if resets_at < self._resets_at:
            return
        is_same_window = resets_at == self._resets_at and self.remaining is not None
        self.remaining = min(self.remaining or 0, remaining) if is_same_window else remaining
        self._limit = limit if limit is not None else self._limit
        self._resets_at = resets_at

    def stop(self, until: Micros | None) -> None:
        """The source wants no more before this time."""
        now = self.clock()
        until = now + UNTOLD if until is None else min(max(until, now + SHORTEST), now + LONGEST)
        self.waits_until = max(self.waits_until or 0, until)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait until something may be asked, and then for a connection."""
        async with self._connections:
            while (until := self._closed_until()) is not None:
                self.waits_until = until
                await anyio.sleep((until - self.clock()) / 1e6 + uniform(0, 0.1))
            self.requests += 1
            if self.remaining is not None:
                self.remaining -= 1
            yield

    def _closed_until(self) -> Micros | None:
        """When the next thing may be asked. None: now."""
        now = self.clock()
        if self.waits_until is not None and now >= self.waits_until:
            self.waits_until = None
            self.remaining = None
        if self.waits_until is not None:
            return self.waits_until
        is_spent = self.remaining is not None and self.remaining <= RESERVE * (self._limit or 0)
        return self._resets_at if is_spent and now < self._resets_at else None


class Requests:
    """Requests within a budget, tried again a few times."""

    def __init__(self, budget: Budget, polling: Polling) -> None:
        self.budget = budget
        self._retries = polling.max_retries
        self._backoff = polling.retry_backoff_ms / 1000

    async def ask(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What the attempt brings. A refusal for the rate is waited out, and is not one of the tries."""
        tried = 0
        while True:
            try:
                async with self.budget.turn():
                    return await attempt()
            except RateLimited as error:
                self.budget.stop(error.until)
            except SourceUnavailable as error:
                if tried == self._retries:
                    raise
                await anyio.sleep(max(self._backoff * 2**tried * uniform(0.8, 1.2), self._wanted(error)))
                tried += 1

    def _wanted(self, error: SourceUnavailable) -> float:
        """The seconds that the source itself wants to be left alone."""
        if error.until is None:
            return 0.0
        return min(max(error.until - self.budget.clock(), 0), LONGEST) / 1e6
