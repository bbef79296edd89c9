"""Every stored record, read once: which are damaged, and which a newer version of perdure wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..feeds.account import ACCOUNTS, Stored
from ..feeds.dirty_hours import LINKS
from ..feeds.item import ITEMS, item_in
from ..feeds.link_index import read_link_record
from ..runtime import lease as leases
from ..storage import Micros, Record, Space, Storage
from ..storage.quarantine import Inspection, inspect
from ..tasks.idempotency import IDEMPOTENCY_KEYS, decode_task_id
from ..tasks.listing import CURSOR_KEY_ADDRESS, SETTINGS, decode_key
from ..tasks.snapshot import LEASES, TASKS, Snapshot
from .handles import HANDLE_KEY


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
