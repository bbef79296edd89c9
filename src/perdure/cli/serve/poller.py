"""`perdure serve --feeds`: a poller beside the server, on the same storage. Its failures never end it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from ...feeds import Failed, FeedSource, FeedStore, Outcome, Poller, Settings
from ...samples.source import with_simulated
from ...storage import Storage
from ...storage.errors import PerdureError
from ..feeds.opening import bluesky
from ..feeds.telling import lines_of
from ..saying import sentence_of

log = logging.getLogger("perdure.feeds")

MIN_DELAY, MAX_DELAY = 60.0, 3600.0
"""Seconds until a poller that failed is started again; twice as many each time. Sources limit logins."""


class FeedPoller:
    """Polls the accounts of a storage for as long as the server runs."""

    def __init__(self, settings: Settings, *, made_up: bool) -> None:
        """`made_up`: the storage may have accounts of the sample feeds, which Bluesky does not know."""
        self._settings = settings
        self._made_up = made_up
        self.is_failing = False
        """Whether the poller failed as a whole, and polled nothing since. The log has the reason."""

    async def check(self) -> None:
        """Raise if the settings are invalid or a package is missing. Asks nothing of the source."""
        async with bluesky(self._settings):
            pass

    @asynccontextmanager
    async def running(self, storage: Storage) -> AsyncGenerator[None]:
        """Poll in the background; at the end, release the accounts before the storage is closed.

        The task is cancelled once and awaited. A cancel scope would cancel the release of the accounts too.
        """
        polling = asyncio.create_task(self._keep_polling(FeedStore(storage)))
        try:
            yield
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    async def _keep_polling(self, store: FeedStore) -> None:
        delay = MIN_DELAY
        while True:
            started = time.monotonic()
            reason = "the poller failed"
            try:
                await self._poll(store)
            except PerdureError as error:
                reason = sentence_of(error)
            except Exception:  # a defect of the poller must not end the server
                log.exception("the poller raised an exception")
            self.is_failing = True
            delay = MIN_DELAY if time.monotonic() - started > MAX_DELAY else delay
            log.error("feeds are not polled: %s; the next attempt is in %.0f s", reason, delay)
            await anyio.sleep(delay)
            delay = min(2 * delay, MAX_DELAY)

    async def _poll(self, store: FeedStore) -> None:
        async with bluesky(self._settings) as opened:
            source: FeedSource = with_simulated(opened) if self._made_up else opened
            log.info("polling %s", source.name)
            await Poller(
                store,
                source,
                self._settings.polling,
                tell=self._log,
                follow_lists=self._settings.follow_lists,
            ).run()

    def _log(self, outcome: Outcome) -> None:
        self.is_failing = False
        level = logging.WARNING if isinstance(outcome, Failed) else logging.INFO
        for line in lines_of(outcome):
            log.log(level, "%s", line)
