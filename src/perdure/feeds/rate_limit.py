"""The rate limit of a source, and retries of what failed. For everyone who writes a source.

One `Budget` counts for all requests to a server: it reads from the server's own headers what is left, keeps a
reserve, and when the server refuses more, all requests wait. The time that a server names wins over our own
backoff. Every long wait is reported, with its reason and its end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import uniform
from typing import TypeAlias, TypeVar

import anyio

from ..storage import Micros
from ..storage.clock import system_clock
from .errors import RateLimited, SourceUnavailable
from .settings import PollSettings

log = logging.getLogger("perdure.feeds")

T = TypeVar("T")

OnWait: TypeAlias = Callable[[str, Micros], None]
"""Takes the reason for a wait, and the time at which it ends."""

RESERVE_FRACTION = 0.1
"""The part of a limit that is left to others who share the address."""
DEFAULT_PAUSE: Micros = 60 * 1_000_000
"""How long to wait when a source refuses for its rate, and does not say until when."""
MIN_PAUSE: Micros = 1_000_000
MAX_PAUSE: Micros = 3600 * 1_000_000
"""A source's word counts within these: clocks differ, and headers can say anything."""
LONG_WAIT: Micros = 5 * 1_000_000
"""A wait before a retry is reported if it is at least this long; a wait for the rate limit always is."""


def log_wait(reason: str, until: Micros) -> None:
    """Log a wait: what `Budget` does unless it is given another function."""
    log.warning("waiting until %s: %s", f"{datetime.fromtimestamp(until / 1e6, UTC):%H:%M:%S} UTC", reason)


class RateLimiter:
    """What may be asked, and how much of it at a time."""

    def __init__(
        self,
        connections: int,
        *,
        clock: Callable[[], Micros] = system_clock,
        on_wait: OnWait = log_wait,
    ) -> None:
        self.clock = clock
        self.on_wait = on_wait
        self._reported: dict[bool, Micros] = {}
        """The end of the last wait that was reported: of waits for the rate limit, and of others."""
        self.remaining: int | None = None
        """As the source last said, less what was asked since."""
        self.paused_until: Micros | None = None
        """While everybody waits."""
        self.request_count = 0
        self._limit: int | None = None
        self._resets_at: Micros = 0
        self._connections = anyio.CapacityLimiter(connections)

    def update(self, *, limit: int | None, remaining: int, resets_at: Micros) -> None:
        """What the headers of an answer said. Answers overtake each other: of one window the least counts."""
        resets_at = min(resets_at, self.clock() + MAX_PAUSE)
        if resets_at < self._resets_at:
            return
        is_same_window = resets_at == self._resets_at and self.remaining is not None
        self.remaining = min(self.remaining or 0, remaining) if is_same_window else remaining
        self._limit = limit if limit is not None else self._limit
        self._resets_at = resets_at

    def pause(self, retry_at: Micros | None) -> None:
        """The source wants no more before this time."""
        now = self.clock()
        retry_at = (
            now + DEFAULT_PAUSE if retry_at is None else min(max(retry_at, now + MIN_PAUSE), now + MAX_PAUSE)
        )
        self.paused_until = max(self.paused_until or 0, retry_at)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Wait until something may be asked, and then for a connection."""
        async with self._connections:
            while (until := self._blocked_until()) is not None:
                self.paused_until = until
                self.report_wait("rate limited by the source", until, is_limit=True)
                await anyio.sleep((until - self.clock()) / 1e6 + uniform(0, 0.1))
            self.request_count += 1
            if self.remaining is not None:
                self.remaining -= 1
            yield

    def report_wait(self, reason: str, until: Micros, *, is_limit: bool = False) -> None:
        """Report a wait. Requests that wait for the same time are one wait."""
        if until > self._reported.get(is_limit, 0) + MIN_PAUSE:
            self._reported[is_limit] = until
            self.on_wait(reason, until)

    def _blocked_until(self) -> Micros | None:
        """When the next thing may be asked. None: now."""
        now = self.clock()
        if self.paused_until is not None and now >= self.paused_until:
            self.paused_until = None
            self.remaining = None
        if self.paused_until is not None:
            return self.paused_until
        is_spent = self.remaining is not None and self.remaining <= RESERVE_FRACTION * (self._limit or 0)
        return self._resets_at if is_spent and now < self._resets_at else None


class Retrier:
    """Requests within a budget, tried again a few times."""

    def __init__(self, limiter: RateLimiter, polling: PollSettings) -> None:
        self.limiter = limiter
        self._retries = polling.max_retries
        self._backoff = polling.retry_backoff_ms / 1000

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What the attempt brings. A refusal for the rate is waited out, and is not one of the tries."""
        tried = 0
        while True:
            try:
                async with self.limiter.slot():
                    return await attempt()
            except RateLimited as error:
                self.limiter.pause(error.retry_at)
            except SourceUnavailable as error:
                if tried == self._retries:
                    raise
                wait = max(self._backoff * 2**tried * uniform(0.8, 1.2), self._retry_after(error))
                if wait * 1e6 >= LONG_WAIT:
                    self.limiter.report_wait(str(error), self.limiter.clock() + round(wait * 1e6))
                await anyio.sleep(wait)
                tried += 1

    def _retry_after(self, error: SourceUnavailable) -> float:
        """The seconds that the source itself wants to be left alone."""
        if error.retry_at is None:
            return 0.0
        return min(max(error.retry_at - self.limiter.clock(), 0), MAX_PAUSE) / 1e6
