"""Reads a storage lane (a timer queue), and skips the records that this process cannot handle now."""

from __future__ import annotations

import asyncio
import math

from ..storage import Address, LanePosition, Micros, Record, Storage, is_last_page
from ..storage.limits import MAX_PAGE_RECORDS

NOT_READABLE_PAUSE = 3600.0
"""Seconds for which a record is skipped if a newer version of perdure wrote it or its key is missing."""
ERROR_PAUSE = 30.0
"""Seconds for which a record is skipped if it could not be handled because of an error."""
MAX_START_AGE = 60.0
"""Seconds after which a lane is read from its start again, in case a record was added there."""


class Lane:
    """Reads the due records of one lane, except those that are skipped."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._skipped: dict[tuple[Address, int], float] = {}
        """For each version of a record: the time until which it is skipped, by the event loop's clock."""
        self._start: LanePosition | None = None
        """All records up to this position are skipped, so reading starts after it."""
        self._start_expires = math.inf

    def skip(self, record: Record, seconds: float = NOT_READABLE_PAUSE) -> None:
        """Do not return this version of a record for the next `seconds`."""
        self._skipped[record.address, record.version] = asyncio.get_running_loop().time() + seconds

    async def due(self, now: Micros, count: int) -> list[Record]:
        """Return up to `count` records that are due, earliest first."""
        at = asyncio.get_running_loop().time()
        if at >= self._start_expires:
            self._start, self._start_expires = None, math.inf
        self._skipped = {place: until for place, until in self._skipped.items() if until > at}
        after, limit = self._start, 2 * count if self._skipped else count
        found: list[Record] = []
        while True:
            page = await self._storage.due(self._name, after=after, until=now, limit=limit, now=now)
            for record in page:
                until = self._skipped.get((record.address, record.version))
                if until is None:
                    found.append(record)
                elif not found:
                    self._start = record.lane_position
                    self._start_expires = min(self._start_expires, until, at + MAX_START_AGE)
            if len(found) >= count or is_last_page(page, limit):
                return found[:count]
            after, limit = page[-1].lane_position, min(MAX_PAGE_RECORDS, 2 * limit)
