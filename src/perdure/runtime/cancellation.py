"""A cancellation: asked for once, seen by all who share it, in the event loop and in threads."""

from __future__ import annotations

import asyncio


class Cancellation:
    """Asking again changes nothing. Any number may wait for it or look at it."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None
        self._requested = False

    @property
    def is_requested(self) -> bool:
        """Whether somebody asked. May be read from any thread."""
        return self._requested

    def request(self) -> bool:
        """Ask; whether this was the first time. Belongs to the event loop."""
        if self._requested:
            return False
        self._requested = True
        if self._event is not None:
            self._event.set()
        return True

    async def wait(self) -> None:
        """Return once somebody has asked."""
        if self._event is None:  # made here, because most runs end before anybody waits
            self._event = asyncio.Event()
            if self._requested:
                self._event.set()
        await self._event.wait()
