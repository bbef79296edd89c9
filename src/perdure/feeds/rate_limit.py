"""Limits the rate of requests to a server, and repeats requests that fail.

Authors of sources can use the classes in this module. One `RateLimiter` handles all requests to a server.
After each response, the source reports to the limiter how many requests the server still allows. The limiter
keeps some of them in reserve. When only the reserve remains, all requests wait until the rate limit is reset.
`Retrier` repeats failed requests after a growing delay, or later if the server specifies a later time.
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
from ..storage.time_types import HOUR, MINUTE, SECOND, system_clock
from .errors import RateLimited, SourceUnavailable
from .settings import PollSettings

log = logging.getLogger("perdure.feeds")

T = TypeVar("T")

OnWait: TypeAlias = Callable[[str, Micros], None]
"""A callback that receives the reason for a wait and the time at which the wait ends."""

RESERVE_FRACTION = 0.1
"""The fraction of the rate limit that is left unused, for other clients with the same IP address."""
DEFAULT_PAUSE: Micros = MINUTE
"""The pause when the rate limit is reached and the server does not specify when to continue."""
MIN_PAUSE: Micros = SECOND
MAX_PAUSE: Micros = HOUR
"""Maximum pause, even if a server requests a longer one, because its headers can be wrong."""
LONG_WAIT: Micros = 5 * SECOND
"""Waits before a retry are reported if they are at least this long. Rate limit waits are always reported."""


def log_wait(reason: str, until: Micros) -> None:
    """Log a wait. This is the default `on_wait` of `RateLimiter`."""
    log.warning("waiting until %s: %s", f"{datetime.fromtimestamp(until / 1e6, UTC):%H:%M:%S} UTC", reason)


class RateLimiter:
    """Limits the rate of requests to a server, and the number of concurrent requests."""

    def __init__(
        self, connections: int, *, clock: Callable[[], Micros] = system_clock, on_wait: OnWait = log_wait
    ) -> None:
        self.clock = clock
        self.on_wait = on_wait
        self._reported: dict[bool, Micros] = {}
        """The end of the most recently reported wait, by reason: True is the rate limit, False a retry."""
        self.remaining: int | None = None
        """Number of requests that the server still allows. None if the number is unknown."""
        self.paused_until: Micros | None = None
        """The time until which all requests wait. None if requests are not paused."""
        self.request_count = 0
        self._limit: int | None = None
        self._resets_at: Micros = 0
        self._connections = anyio.CapacityLimiter(connections)

    def update(self, *, limit: int | None, remaining: int, resets_at: Micros) -> None:
        """Apply the rate limit headers of a response.

        Responses can arrive out of order. So ignore a response whose reset time is earlier than the known
        one. If both times are equal, keep the lower number of remaining requests.
        """
        resets_at = min(resets_at, self.clock() + MAX_PAUSE)
        if resets_at < self._resets_at:
            return
        is_same_window = resets_at == self._resets_at and self.remaining is not None
        self.remaining = min(self.remaining or 0, remaining) if is_same_window else remaining
        self._limit = limit if limit is not None else self._limit
        self._resets_at = resets_at

    def pause(self, retry_at: Micros | None) -> None:
        """Make all requests wait until `retry_at`, or for `DEFAULT_PAUSE` if `retry_at` is None."""
        now = self.clock()
        retry_at = (
            now + DEFAULT_PAUSE if retry_at is None else min(max(retry_at, now + MIN_PAUSE), now + MAX_PAUSE)
        )
        self.paused_until = max(self.paused_until or 0, retry_at)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Wait until a connection is free and the rate limit allows another request.

        The connection is in use until the `async with` block ends.
        """
        async with self._connections:
            while (until := self._blocked_until()) is not None:
                self.paused_until = until
                self.report_wait("the source received too many requests", until, is_limit=True)
                await anyio.sleep((until - self.clock()) / 1e6 + uniform(0, 0.1))
            self.request_count += 1
            if self.remaining is not None:
                self.remaining -= 1
            yield

    def report_wait(self, reason: str, until: Micros, *, is_limit: bool = False) -> None:
        """Report a wait, but only once for requests that wait until about the same time."""
        if until > self._reported.get(is_limit, 0) + MIN_PAUSE:
            self._reported[is_limit] = until
            self.on_wait(reason, until)

    def _blocked_until(self) -> Micros | None:
        """Return the time at which the next request is allowed, or None if a request is allowed now."""
        now = self.clock()
        if self.paused_until is not None and now >= self.paused_until:
            self.paused_until = None
            self.remaining = None
        if self.paused_until is not None:
            return self.paused_until
        is_spent = self.remaining is not None and self.remaining <= RESERVE_FRACTION * (self._limit or 0)
        return self._resets_at if is_spent and now < self._resets_at else None


class Retrier:
    """Sends requests within the rate limit, and repeats requests that fail."""

    def __init__(self, limiter: RateLimiter, settings: PollSettings) -> None:
        self.limiter = limiter
        self._retries = settings.max_retries
        self._backoff = settings.retry_backoff_ms / 1000

    async def call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` and return its result. Try again if it raises RateLimited or SourceUnavailable.

        Raise SourceUnavailable after `PollSettings.max_retries` retries. Attempts that raise RateLimited do
        not count as retries.
        """
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
                requested = min(max((error.retry_at or 0) - self.limiter.clock(), 0), MAX_PAUSE) / 1e6
                wait = max(self._backoff * 2**tried * uniform(0.8, 1.2), requested)
                if wait * 1e6 >= LONG_WAIT:
                    self.limiter.report_wait(str(error), self.limiter.clock() + round(wait * 1e6))
                await anyio.sleep(wait)
                tried += 1
