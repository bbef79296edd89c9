"""Polls feeds for `perdure serve --feeds`. A failure of the poller never stops the server."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import anyio

from ...feeds import Feeds, FeedSettings, FeedStore, PollFailed, PollOutcome
from ...feeds.source import open_source
from ...samples.source import with_simulated
from ...storage import Storage
from ...storage.errors import PerdureError
from ..feeds.render import outcome as outcome_lines
from ..output import one_line

log = logging.getLogger("perdure.feeds")

MIN_RESTART_SECONDS, MAX_RESTART_SECONDS = 60.0, 3600.0
"""Minimum and maximum delay before a failed poller restarts. The delay doubles after each failure. If
the poller ran for more than an hour before it failed, the delay starts at the minimum again.
"""


@dataclass
class FeedPoller:
    """Polls the accounts in the server's storage, and restarts after a failure."""

    settings: FeedSettings
    simulated: bool
    """Whether to also poll the simulated accounts of the sample server."""
    is_failing: bool = False
    """Whether the poller has failed and has not polled any account since then."""

    async def poll_forever(self, storage: Storage) -> None:
        """Poll until cancelled, then release the accounts. `storage` must stay open until this call ends."""
        store = FeedStore(storage)
        delay = MIN_RESTART_SECONDS
        while True:
            started = time.monotonic()
            reason = "an unexpected error, logged above"
            try:
                async with open_source(self.settings) as opened:
                    source = with_simulated(opened) if self.simulated else opened
                    log.info("polling %s", source.name)
                    await Feeds(store, self.settings, source=source).run(on_outcome=self._log)
            except PerdureError as error:
                reason = one_line(str(error))
            except Exception:  # a bug in the poller must not stop the server
                log.exception("the feed poller raised an exception")
            self.is_failing = True
            if time.monotonic() - started > MAX_RESTART_SECONDS:
                delay = MIN_RESTART_SECONDS
            log.error("feed polling stopped: %s; restarting in %.0f s", reason, delay)
            await anyio.sleep(delay)
            delay = min(2 * delay, MAX_RESTART_SECONDS)

    def _log(self, outcome: PollOutcome) -> None:
        self.is_failing = False
        level = logging.WARNING if isinstance(outcome, PollFailed) else logging.INFO
        for line in outcome_lines(outcome):
            log.log(level, "%s", line)
