"""`Cancellation`: a request to stop, which coroutines and threads can check."""

from __future__ import annotations

import asyncio


class Cancellation:
    """A request to stop. Any number of callers can check it or wait for it."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None
        self._requested = False

    @property
    def is_requested(self) -> bool:
        """Whether a cancellation was requested. Can be read from any thread."""
        return self._requested

    def request(self) -> bool:
        """Request a cancellation, in the event loop. Return whether this is the first request."""
        if self._requested:
            return False
        self._requested = True
        if self._event is not None:
            self._event.set()
        return True

    async def wait(self) -> None:
        """Return once a cancellation was requested."""
        if self._event is None:  # created here, because in most runs nothing waits for it
            self._event = asyncio.Event()
            if self._requested:
                self._event.set()
        await self._event.wait()
