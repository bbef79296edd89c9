"""A lane of the queue, read past the records that only a newer version of perdure can handle."""

from __future__ import annotations

from ..storage import Address, Micros, Record, Storage
from ..storage.limits import MAX_PAGE_RECORDS


class Lane:
    """Reads what is due in one lane, without the records that `leave` was called with."""

    def __init__(self, storage: Storage, name: str, batch: int) -> None:
        self._storage = storage
        self._name = name
        self._batch = batch
        self._left: set[tuple[Address, int]] = set()
        """Records that are due, by version."""

    async def due(self, now: Micros) -> list[Record]:
        limit = min(MAX_PAGE_RECORDS, self._batch + len(self._left))
        found = await self._storage.due(self._name, until=now, limit=limit, now=now)
        self._left &= {(record.address, record.version) for record in found}
        return [record for record in found if (record.address, record.version) not in self._left]

    def leave(self, record: Record) -> None:
        """Skip this version of a record from now on."""
        self._left.add((record.address, record.version))
