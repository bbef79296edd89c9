"""The storage contract: numbered promises that every engine keeps. An engine is correct if it passes the kit.

A record is live at `now` if it has no `expires_at` or if `now < expires_at`; otherwise it is expired.

 1. `get` returns, for each address and in the order given, the newest committed live record, or None.
 2. Within one partition, every call by any client sees all commits that returned before the call started.
    This covers `get`, `commit`, and `page` and `counts` with a partition.
 3. `Insert` creates a record with the version it carries (1, unless the record is a copy). It never
    overwrites: if the address is taken, the result is `Conflict` with the stored version.
 4. `InsertIfAbsent` does the same, but if the address is taken it changes nothing and the result is `Kept`
    with the stored version.
 5. `Replace` is accepted only if the stored record is the one its writer read. Version, order and tag
    together identify that record: one that was deleted and inserted again with the same three counts as the
    same. The version then increases by one. If a different record is stored, the result is `Conflict` with
    its version, which can equal the expected one; if none is stored, it is `Missing`.
 6. `Delete` has the same condition and the same results.
 7. A commit writes all of its changes or none. It has up to 25 changes in one partition, each to a
    different record, in up to 8 spaces, and writes up to 2 MiB of bodies, counted in UTF-8. Each change is
    decided against the state before the commit. If one is refused, nothing is written and every change gets
    its result.
 8. If several writers change the same version concurrently, exactly one succeeds, provided that no call
    raises. The history of each record is linearizable. After OutcomeUnknown, the write may be part of it.
 9. A guard never admits a commit that raises the number of live records, at the commit's `now`, above its
    limit, and always admits one that stays within it. It refuses only commits that raise the number, and only
    if every change of the commit is accepted; `guard_count` is the number that the commit would have reached.
    Before it refuses, it may purge expired records of the partition. They remain purged even if it then
    refuses the commit.
10. `page` returns the live records of a partition in `(order, key)` order, strictly after a position,
    ascending or descending, optionally of one tag, by seeking in an index. Reading page after page returns
    exactly once each record that is live at the `now` of every page and, with a tag, has that tag throughout.
11. `page` without a partition does the same over all partitions, in `(order, key, partition)` order. A page
    with fewer records than its limit is the last one, unless its bodies reach MAX_PAGE_BYTES: a page ends
    with the record that reaches that size, so it has at least one record if there is one. See `is_last_page`.
12. `due` returns the live records of a lane with `wake_at <= until`, in `(wake_at, key, partition, space)`
    order, with the same limits as a page.
13. `counts` returns the exact number of live records for each tag, in a partition or in all of them. A tag
    without live records is absent.
14. From `expires_at` on (`now >= expires_at`), a record is invisible to every verb except `purge`. A verb
    with an earlier `now` sees it again until it is purged.
15. The address of an expired record is free, purged or not: a new record can be inserted there.
16. `purge` deletes records with `expires_at <= until`, earliest first (in any order among equals), at most
    `limit`, updates the counters, and returns the records that this call deleted (an insert or a guard may
    have deleted others before). If it returns fewer than `limit`, none is left. An `until` in the future
    deletes live records. If the call raises, it may have deleted records.
17. Bodies are returned byte for byte. Any text without NUL is a valid name, names are ordered by code point,
    and no name gives access to the records of another.
18. `watch` wakes when something it covers changes, even if the change came while nothing was waiting for the
    watch. It is a hint: it may wake without a change and may miss one, and need not report what a guard
    purges.
19. Time is an argument. However much real time passes, nothing changes except through a verb. The only
    exception is an engine that deletes expired records by itself, as a backstop: at least 7 days after
    `expires_at`.
20. A commit that returned is still stored when the engine is opened again after it was closed or its client
    was killed. What a server keeps through its own failure or a power cut depends on its configuration; an
    engine whose servers can lose the newest writes in a failover says so in its documentation.
21. All promises hold for several clients together, including clients in different processes.
22. After `close`, every verb raises StorageClosed, and so does a watch that is waiting. A call in flight
    completes, or raises a StorageError.
23. A stored record that is damaged does not affect any other. `get` of it raises StorageCorrupt, which names
    its address; `page` and `due` leave it out, log a warning that names it, and continue with the next; a
    commit that changes it returns a valid result or raises StorageCorrupt; `maintain` reports it.

Across partitions, promises 11, 12, 13 (without a partition) and 16 hold after `lag` seconds; all others hold
immediately. The memory engine keeps all promises except 20 and 21: its records belong to one process. Engines
do not check arguments: `Storage` rejects invalid calls before the engine sees them. Records that are read
together are not a snapshot: one may be from before a commit and another from after it. Use few tags: an
engine may keep all counts of a space and partition in one place, which is sufficient for 1,000 tags. Versions
start again when a record is inserted again after it was deleted or expired: never delete a record whose
version serves as a fencing token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from .record import (
    Address,
    Change,
    Committed,
    Guard,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
)
from .watch import Watch


class MaintenanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `maintain`."""

    reclaimed_bytes: int = 0
    findings: tuple[str, ...] = ()
    """One sentence for each problem that was found."""


def counter_finding(space: Space, partition: str | None, tag: Tag, *, stored: int, actual: int) -> str:
    """Return the finding about a counter that does not match the records."""
    scope = f"{partition}/{space}" if partition else space
    return f"counter {scope}, tag {tag!r}: stored {stored}, actual {actual}"


class StorageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the server or the file that stores the records, for people."""

    server: str = ""
    """The name and version of the server, if known."""
    time: Micros | None = None
    """The time on the server's clock. None if it is unknown or there is no server."""
    path: str | None = None
    """The absolute path of the file with the records. None if they are not in a file on this machine."""
    is_shared: bool = True
    """Whether another process that opens the same URL, now or later, sees the same records."""


class Engine(ABC):
    """The interface of an engine: seven verbs, `maintain` and `close`. `Storage` checks the arguments."""

    name: ClassVar[str]
    lag: float = 0.0
    """Maximum number of seconds by which results across partitions may be out of date."""

    @abstractmethod
    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]: ...

    @abstractmethod
    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused: ...

    @abstractmethod
    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]: ...

    @abstractmethod
    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]: ...

    @abstractmethod
    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]: ...

    @abstractmethod
    async def purge(self, *, until: Micros, limit: int) -> list[Purged]: ...

    @abstractmethod
    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch: ...

    @abstractmethod
    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        """Release unused space, check for damage, and report every finding.

        With `repair`, also correct the counters that do not match the records.
        """

    async def info(self) -> StorageInfo:
        """Return facts about the server or the file, for people."""
        return StorageInfo()

    @abstractmethod
    async def close(self) -> None: ...
