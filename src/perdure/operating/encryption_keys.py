"""Finds out which encryption keys the tasks of a storage need. No key is needed for that."""

from __future__ import annotations

from collections import Counter

from ..storage import Micros, Storage
from ..tasks import Snapshot
from ..tasks.application import application_of
from ..tasks.encrypted_body import key_ids
from ..tasks.encryption import Keyring
from ..tasks.lifecycle import ACTIVE_STATUSES
from ..tasks.listing import read_task
from ..tasks.stored_task import TASKS
from .listing import iterate_records

MAX_CHECKED = 100
"""Maximum number of active tasks of each status that `find_missing_keys` reads."""


async def count_by_key(storage: Storage, *, now: Micros) -> dict[str, int]:
    """Return the number of tasks that are encrypted with each key, by the id of the key."""
    counts: Counter[str] = Counter()
    async for record in iterate_records(storage, TASKS, now=now):
        head = read_task(record, Snapshot.head_of)
        if isinstance(head, Snapshot):
            counts.update(key_ids(head.task))
    return dict(sorted(counts.items()))


async def find_missing_keys(
    storage: Storage, keys: Keyring, *, application: str, now: Micros
) -> frozenset[str]:
    """Return the ids of keys that a process of this application needs and does not have.

    These are the keys that it lacked for a task so far, and those of the newest active tasks. Tasks of other
    applications do not count: their servers have keys of their own.
    """
    needed = set(keys.missing_key_ids.get(application, ()))
    for status in ACTIVE_STATUSES:
        records = await storage.page(TASKS, limit=MAX_CHECKED, tag=status.value, descending=True, now=now)
        own = (record for record in records if application_of(record.partition) == application)
        heads = (read_task(record, Snapshot.head_of) for record in own)
        needed.update(*(key_ids(head.task) for head in heads if isinstance(head, Snapshot)))
    return frozenset(needed.difference(keys.key_ids))
