"""Claims that are alive: tasks that a worker runs, and accounts that a poller reads, right now."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ..feeds.account import ACCOUNTS, Stored
from ..feeds.errors import CorruptFeed
from ..runtime.lease import HELD
from ..storage import Micros, Position, Record, Space, Storage, Tag
from ..storage.errors import NewerFormat
from ..tasks.snapshot import LEASES

PAGE = 200


class LiveClaims(msgspec.Struct, frozen=True, kw_only=True):
    """How much is being worked on. Leases that have run out do not count: their process is gone."""

    tasks: int
    accounts: int

    def __bool__(self) -> bool:
        return bool(self.tasks or self.accounts)


async def live_claims(storage: Storage, *, now: Micros) -> LiveClaims:
    """Count the leases and holds of a storage that have not run out."""
    tasks = [each async for each in _records(storage, LEASES, now, tag=HELD) if (each.wake_at or 0) > now]
    accounts = [each async for each in _records(storage, ACCOUNTS, now) if _is_polled(each, now)]
    return LiveClaims(tasks=len(tasks), accounts=len(accounts))


async def _records(
    storage: Storage, space: Space, now: Micros, tag: Tag | None = None
) -> AsyncIterator[Record]:
    after: Position | None = None
    while records := await storage.page(space, after=after, limit=PAGE, tag=tag, now=now):
        for record in records:
            yield record
        after = records[-1].position


def _is_polled(record: Record, now: Micros) -> bool:
    """An account that this version cannot read does not count."""
    try:
        return Stored.read(record).account.is_held(now)
    except (CorruptFeed, NewerFormat):
        return False
