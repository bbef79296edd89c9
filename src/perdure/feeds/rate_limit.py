"""The rate limit of a source, and retries of failed requests. For authors of sources.

One `RateLimiter` counts all requests to a server: it reads from the server's headers what is left, keeps a
reserve, and when the server rejects more, all requests wait. The time that a server names takes precedence
over our own backoff. Every long wait is reported, with its reason and its end.
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
from ..storage.clock import HOUR, MINUTE, SECOND, system_clock
from .errors import RateLimited, SourceUnavailable
from .settings import PollSettings

log = logging.getLogger("perdure.feeds")

T = TypeVar("T")

OnWait: TypeAlias = Callable[[str, Micros], None]
"""Takes the reason for a wait, and the time at which it ends."""

RESERVE_FRACTION = 0.1
"""The fraction of a limit that is left to other clients of the same IP address."""
DEFAULT_PAUSE: Micros = MINUTE
"""How long to wait if a source that limits the rate does not say until when."""
MIN_PAUSE: Micros = SECOND
MAX_PAUSE: Micros = HOUR
"""The bounds of a wait that a source asks for: clocks differ, and headers can be wrong."""
LONG_WAIT: Micros = 5 * SECOND
"""A wait before a retry is reported if it is at least this long; a wait for the rate limit always is."""


def log_wait(reason: str, until: Micros) -> None:
    """Log a wait. The default of `RateLimiter`."""
    log.warning("waiting until %s: %s", f"{datetime.fromtimestamp(until / 1e6, UTC):%H:%M:%S} UTC", reason)


class RateLimiter:
    """Limits the rate of requests to a server, and how many run at the same time."""

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
        """How many requests are left, by the last response and the requests since. None if not known."""
        self.paused_until: Micros | None = None
        """Until when all requests wait. None if they do not."""
        self.request_count = 0
        self._limit: int | None = None
        self._resets_at: Micros = 0
        self._connections = anyio.CapacityLimiter(connections)

    def update(self, *, limit: int | None, remaining: int, resets_at: Micros) -> None:
        """Apply the headers of a response. As these arrive out of order, the lowest of a window counts."""
        resets_at = min(resets_at, self.clock() + MAX_PAUSE)
        if resets_at < self._resets_at:
            return
        is_same_window = resets_at == self._resets_at and self.remaining is not None
        self.remaining = min(self.remaining or 0, remaining) if is_same_window else remaining
        self._limit = limit if limit is not None else self._limit
        self._resets_at = resets_at

    def pause(self, retry_at: Micros | None) -> None:
        """Send no request before this time."""
        now = self.clock()
        retry_at = (
            now + DEFAULT_PAUSE if retry_at is None else min(max(retry_at, now + MIN_PAUSE), now + MAX_PAUSE)
        )
        self.paused_until = max(self.paused_until or 0, retry_at)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Wait for a connection, and until a request is allowed."""
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
        """Return when the next request is allowed, or None if it is allowed now."""
        now = self.clock()
        if self.paused_until is not None and now >= self.paused_until:
            self.paused_until = None
            self.remaining = None
        if self.paused_until is not None:
            return self.paused_until
        is_spent = self.remaining is not None and self.remaining <= RESERVE_FRACTION * (self._limit or 0)
        return self._resets_at if is_spent and now < self._resets_at else None


class Retrier:
    """Sends requests within a rate limit, and retries those that fail."""

    def __init__(self, limiter: RateLimiter, settings: PollSettings) -> None:
        self.limiter = limiter
        self._retries = settings.max_retries
        self._backoff = settings.retry_backoff_ms / 1000

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`, with retries. Waiting for a rate limit does not count as one."""
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
        """Return the seconds that the source asks to wait."""
        if error.retry_at is None:
            return 0.0
        return min(max(error.retry_at - self.limiter.clock(), 0), MAX_PAUSE) / 1e6
