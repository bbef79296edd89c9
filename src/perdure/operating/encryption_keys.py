"""Determines which encryption keys are needed to read the tasks of a storage.

The ids of the keys are not encrypted, so this works without any key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import anyio

from ..storage import Micros, Position, Record, Storage, is_last_page
from ..storage.time_types import SECOND
from ..tasks import Snapshot, Status, TaskId, TaskStore
from ..tasks.application_name import application_of
from ..tasks.body_encryption import key_ids
from ..tasks.encryption import Keyring
from ..tasks.lifecycle import ACTIVE_STATUSES
from ..tasks.listing import read_task
from ..tasks.owner import partition_of
from ..tasks.task_snapshot import TASKS, task_address
from .listing import PAGE_SIZE, iterate_records
from .stats import MAX_READ_CHARS

_STATUSES = sorted(ACTIVE_STATUSES)
NEWEST, MAX_READ = 100, 1000
"""Limits of a search by `MissingKeys`. It reads up to `MAX_READ` active tasks, or fewer if their records have
`MAX_READ_CHARS` characters in total. Unless this completes a round, it then reads up to `NEWEST` of the
newest tasks of each active status.
"""
SEARCH_INTERVAL: Micros = SECOND
"""The result of a search is reused for this time, because anyone can cause many searches: requests for
`/ready` need no token.
"""


async def count_by_key(storage: Storage, *, now: Micros) -> dict[str, int]:
    """Return the number of tasks that are encrypted with each key, by the id of the key."""
    counts: Counter[str] = Counter()
    async for record in iterate_records(storage, TASKS, now=now):
        counts.update(_key_ids(record))
    return dict(sorted(counts.items()))


class MissingKeys:
    """Finds the keys that tasks of an application need and that this process does not have.

    Each search continues where the previous one stopped, and reads up to `MAX_READ` active tasks, oldest
    first for each status. It also reads the newest active tasks, so that keys that they need are found early.
    A round ends when all active tasks have been read. With N active tasks of usual size, this takes about
    N / `MAX_READ` searches. A task whose status changes during a round may be read only in the next round.
    A key is reported until a whole round has found no task that needs it.

    For each key that this process lacked when it tried to decrypt a task, a search also checks that task,
    even if it is finished. Other finished tasks are not checked. Tasks of other applications are ignored,
    because their servers may have other keys.
    """

    def __init__(self, storage: Storage, keys: Keyring, *, application: str) -> None:
        self.application = application
        self._storage = storage
        self._keys = keys
        self._lock = anyio.Lock()
        self._statuses = list(_STATUSES)
        """The statuses that remain in this round. The tasks of the first one are being read."""
        self._after: Position | None = None
        self._found: set[str] = set()
        """The keys that were found to be missing in this round."""
        self._found_before: set[str] = set()
        """The keys that were missing in the previous round, or for a task that is gone. They are reported
        until this round ends, because it may find other tasks that need them."""
        self._searched_at: Micros | None = None
        self._missing: frozenset[str] = frozenset()
        """The result of the last search."""

    @classmethod
    def of(cls, store: TaskStore) -> MissingKeys:
        """Return a search for the keys that this store needs."""
        return cls(store.storage, store.keys, application=store.application)

    async def search(self, *, now: Micros) -> frozenset[str]:
        """Return the ids of the keys that are missing. The result can be `SEARCH_INTERVAL` old."""
        async with self._lock:
            if self._searched_at is not None and abs(now - self._searched_at) < SEARCH_INTERVAL:
                return self._missing
            remembered = await self._still_needed(now)
            if not await self._continue(now):
                for status in _STATUSES:
                    self._add(await self._page(status, NEWEST, descending=True, now=now))
            self._missing = frozenset(remembered | self._found | self._found_before)
            self._searched_at = now
            return self._missing

    async def _still_needed(self, now: Micros) -> set[str]:
        """Return the missing keys of tasks that this process could not decrypt before.

        If such a task is gone or no longer needs the key, other tasks may still need it, so the key is
        reported until the round ends.
        """
        lacked = self._keys.missing_keys.get(self.application, {})
        for key_id, place in list(lacked.items()):
            partition = partition_of(self.application, place.owner, place.task_id)
            record = await self._storage.get(task_address(partition, TaskId(place.task_id)), now=now)
            if record is None or key_id not in _key_ids(record):
                self._found_before.add(key_id)
                if lacked.get(key_id) is place:  # else another task that needs the key was found meanwhile
                    del lacked[key_id]
        return set(lacked)

    async def _continue(self, now: Micros) -> bool:
        """Read the next active tasks. Return whether the round ended with them."""
        read = chars = 0
        while read < MAX_READ and chars < MAX_READ_CHARS:
            size = min(PAGE_SIZE, MAX_READ - read)
            records = await self._page(self._statuses[0], size, after=self._after, now=now)
            self._add(records)
            read += len(records)
            chars += sum(len(record.body) for record in records)
            self._after = None if is_last_page(records, size) else records[-1].position
            if self._after is None:
                del self._statuses[0]
            if not self._statuses:
                self._statuses = list(_STATUSES)
                self._found, self._found_before = set(), self._found
                return True
        return False

    async def _page(
        self,
        status: Status,
        size: int,
        *,
        after: Position | None = None,
        descending: bool = False,
        now: Micros,
    ) -> list[Record]:
        return await self._storage.page(
            TASKS, after=after, limit=size, tag=status.value, descending=descending, now=now
        )

    def _add(self, records: Sequence[Record]) -> None:
        for record in records:
            if application_of(record.partition) == self.application:
                self._found |= _key_ids(record) - set(self._keys.key_ids)


def _key_ids(record: Record) -> frozenset[str]:
    head = read_task(record, Snapshot.head_of)
    return key_ids(head.task) if isinstance(head, Snapshot) else frozenset()
