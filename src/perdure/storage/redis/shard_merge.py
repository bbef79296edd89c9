"""Reads a range of a sorted index from several shards, and merges the entries into one sorted sequence.

The first read takes only a few entries from each shard, because the entries that the caller needs are spread
over all shards. Later reads take more entries, but only from shards that have no unreturned entries left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from ..shards import merge_sorted
from .router import Call, Router
from .scripts import RANGES_SCRIPT
from .stored_layout import LexRange


class ShardScan:
    """A scan of one shard of an index.

    `entries` contains the entries that have been read but not yet returned. `remaining` is the part of the
    range that has not been read yet.
    """

    def __init__(self, shard: int, key: bytes, lex_range: LexRange) -> None:
        self.shard = shard
        self.key = key
        self.remaining = lex_range
        self.is_exhausted = False
        self.entries: list[bytes] = []

    def call(self, limit: int) -> Call:
        bounds = (self.remaining.first, self.remaining.last)
        reverse = (b"REV",) if self.remaining.descending else ()
        return self.shard, (b"ZRANGE", self.key, *bounds, b"BYLEX", *reverse, b"LIMIT", 0, limit)

    def add(self, entries: list[bytes], limit: int) -> None:
        self.entries += entries
        self.is_exhausted = len(entries) < limit
        if entries:
            self.remaining = self.remaining.starting_after(entries[-1])


class MergedScan:
    """A scan of one or more shards of an index. It returns the entries of all shards in sorted order."""

    def __init__(self, router: Router, scans: Sequence[ShardScan], *, descending: bool = False) -> None:
        self._router = router
        self._scans = scans
        self._descending = descending
        self._is_started = False

    async def take(self, count: int) -> list[bytes]:
        """Return the next `count` entries of all shards, or fewer at the end of the scan."""
        found: list[bytes] = []
        while len(found) < count:
            await self._refill(count)
            found += self._pop_sorted(count - len(found))
            if all(scan.is_exhausted and not scan.entries for scan in self._scans):
                break
        return found

    async def _refill(self, count: int) -> None:
        """Read more entries from the shards that have no entries left to return but may have unread ones."""
        empty = [scan for scan in self._scans if not scan.entries and not scan.is_exhausted]
        is_first = not self._is_started and len(self._scans) > 1
        limit = min(count, count // 16 + 8) if is_first else count
        self._is_started = True
        if empty:
            for scan, entries in zip(empty, await self._read(empty, limit), strict=True):
                scan.add(entries, limit)

    async def _read(self, scans: Sequence[ShardScan], limit: int) -> list[list[bytes]]:
        if len(scans) == 1 or not self._router.is_single_server:
            replies = await self._router.read([scan.call(limit) for scan in scans])
            return cast("list[list[bytes]]", replies)
        bounds = [scan.remaining.first for scan in scans]
        arguments = [scans[0].remaining.last, limit, int(self._descending), *bounds]
        call = RANGES_SCRIPT.call([scan.key for scan in scans], arguments)
        (reply,) = await self._router.read([(scans[0].shard, call)])
        return cast("list[list[bytes]]", reply)

    def _pop_sorted(self, count: int) -> list[bytes]:
        """Remove and return up to `count` entries in sorted order.

        The unread entries of a shard follow the last entry that was read from this shard. Do not return an
        entry that comes after this last entry, because an unread entry may precede it.
        """
        last_read = [scan.entries[-1] for scan in self._scans if not scan.is_exhausted]
        parts = [[(entry, scan.shard) for entry in scan.entries] for scan in self._scans if scan.entries]
        ahead = merge_sorted(parts, lambda each: each, count, descending=self._descending)
        if last_read:
            bound = max(last_read) if self._descending else min(last_read)
            ahead = [each for each in ahead if (each[0] >= bound if self._descending else each[0] <= bound)]
        taken = Counter(shard for _, shard in ahead)
        for scan in self._scans:
            del scan.entries[: taken[scan.shard]]
        return [entry for entry, _ in ahead]
