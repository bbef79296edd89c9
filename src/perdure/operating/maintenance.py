"""Every stored record, read once: which are damaged, and which a newer version of perdure wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from ..feeds.account import ACCOUNTS, Stored
from ..feeds.dirty_hours import LINKS
from ..feeds.errors import CorruptFeed
from ..feeds.item import ITEMS, item_in
from ..feeds.link_index import read_link_record
from ..runtime import lease as leases
from ..runtime.lease import HELD
from ..storage import Micros, Position, Record, Space, Storage, Tag
from ..storage.errors import NewerFormat
from ..storage.quarantine import Inspection, inspect
from ..tasks.idempotency import IDEMPOTENCY_KEYS, decode_task_id
from ..tasks.listing import CURSOR_KEY_ADDRESS, SETTINGS, decode_key
from ..tasks.snapshot import LEASES, TASKS, Snapshot
from .locators import HANDLE_KEY


def _read_setting(record: Record) -> object:
    return decode_key(record) if record.address in (CURSOR_KEY_ADDRESS, HANDLE_KEY) else None


READERS: Mapping[Space, Callable[[Record], object]] = {
    SETTINGS: _read_setting,
    IDEMPOTENCY_KEYS: decode_task_id,
    TASKS: Snapshot.from_record,
    LEASES: leases.read,
    ACCOUNTS: Stored.read,
    ITEMS: item_in,
    LINKS: read_link_record,
}
"""Everything that perdure stores. A damaged lease, idempotency key or summary of links is replaced when it is
next used, so their readers report no damage.
"""

QUARANTINED = frozenset({TASKS, ACCOUNTS, ITEMS})
"""Where a damaged record is quarantined. A damaged setting must be deleted instead, as its message says."""


async def inspect_records(storage: Storage, *, repair: bool, now: Micros) -> Inspection:
    """Read everything; with `repair`, quarantine what is damaged."""
    found = [
        await inspect(storage, space, read, repair=repair and space in QUARANTINED, now=now)
        for space, read in READERS.items()
    ]
    return Inspection(
        examined=sum(each.examined for each in found),
        damaged=tuple(damage for each in found for damage in each.damaged),
        newer=sum(each.newer for each in found),
        quarantined=sum(each.quarantined for each in found),
    )


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
