"""The storage contract: numbered promises that every engine keeps. The tests in `storage.kit` check them.

The verbs are the methods `get`, `commit`, `page`, `due`, `counts`, `purge` and `watch`. A space is a kind of
record, a partition is a group of records, a tag is a label of a record, and a lane is a timer queue. A record
is live at `now` if it has no `expires_at` or if `now < expires_at`. Otherwise it is expired.

 1. `get` returns, for each address and in the order given, the newest committed live record, or None.
 2. Within one partition, every call by any client sees all commits that returned before the call started.
    This applies to `get`, to `commit`, and to `page` and `counts` with a partition.
 3. `Insert` creates a record. Its version is 1, unless the record is copied from another storage. An
    insert never overwrites: if the address is taken, the result is `Conflict` with the stored version.
 4. `InsertIfAbsent` does the same, but a taken address is not a conflict: the stored record is kept, and the
    result is `Kept` with its version.
 5. `Replace` is accepted only if the stored record is still the one that the caller read, which means that
    its version, order and tag are the same. It increases the version by one. If a different record is stored,
    the result is `Conflict` with the stored version, which can equal the expected version. If no record is
    stored, the result is `Missing`.
 6. `Delete` is accepted under the same condition as `Replace`, and is refused with the same results.
 7. A commit writes all of its changes or none of them. It contains at most 25 changes, all in one partition,
    each to a different record, in at most 8 spaces. The bodies that it writes have a total size of at most
    2 MiB in UTF-8. Each change is checked against the records as they were before the commit. If a change is
    refused, nothing is written, and the caller gets a result for every change.
 8. If several clients change the same version of a record concurrently, exactly one succeeds, unless a call
    raises an error. The history of each record is linearizable. A write that raised OutcomeUnknown may be
    missing from the history.
 9. A guard refuses a commit if and only if every change is accepted and the commit would raise the number of
    live records with a guarded tag above the limit. The commit's `now` determines which records are live.
    The `guard_count` in the result is the number that the commit would have reached. Before the guard refuses
    a commit, it may purge expired records of the partition. This purge is not rolled back.
10. `page` returns the live records of a partition that come strictly after a position, in `(order, key)`
    order, ascending or descending, optionally only records with one tag. It finds the position with an index.
    Reading all pages returns a record exactly once if the record is live at the `now` of every page and keeps
    the requested tag.
11. `page` without a partition does the same across all partitions, in `(order, key, partition)` order. A page
    with fewer records than its limit is the last page, unless its bodies reach MAX_PAGE_BYTES in total. A
    page ends with the record that reaches this size, so a page is empty only at the end. See `is_last_page`.
12. `due` returns the live records of a lane with `wake_at <= until` that come strictly after a position, in
    `(wake_at, key, partition, space)` order, with the same limits as a page. It finds the position with an
    index.
13. `counts` returns the exact number of live records for each tag, in one partition or across all
    partitions. A tag without live records is omitted.
14. An expired record is invisible to every verb except `purge`. Until it is purged, a call with an earlier
    `now` can still see it.
15. A new record can be inserted at the address of an expired record, even if it has not been purged yet.
16. `purge` deletes at most `limit` records with `expires_at <= until`, earliest first (ties in any order).
    It updates the counters, and returns the records that this call deleted. An insert or a guard may already
    have deleted other expired records. If `purge` returns fewer than `limit` records, no such records
    are left. An `until` in the future also deletes live records. A call that raises an error may have deleted
    records.
17. Bodies are returned exactly as they were written. A name can contain any character except NUL. Names are
    ordered by code point, and no name gives access to records that were stored under a different name.
18. A watch wakes when a record that it covers changes, even if no caller was waiting at that moment. This is
    only a hint: a watch may wake without a change, may miss a change, and need not wake when a guard purges
    records. A watch with `only_lanes` need not wake for a change after which the record is in no lane.
19. Time is an argument: however much real time passes, records change only through a verb. The only exception
    is that an engine may delete expired records by itself, at least 7 days after `expires_at`.
20. A commit that has returned is still stored after the engine was closed or the client process was killed.
    Whether it survives a failure of the server or a power cut depends on the server's configuration. If a
    failover can lose the newest writes, the documentation of the engine states this.
21. All promises hold when several clients use the storage at once, even clients in different processes.
22. After `close`, every verb raises StorageClosed, and so does a watch that is waiting. A call in flight
    completes, or raises a StorageError.
23. A damaged record does not affect other records. `get` raises StorageCorrupt with the record's address.
    `page` and `due` skip the record, and log a warning with the address. A commit that changes the record
    returns a valid result or raises StorageCorrupt. `maintain` reports the record.

Across all partitions, promises 11, 12, 13 and 16 hold after a delay of up to `lag` seconds. All other
promises hold immediately. The memory engine keeps all promises except 20 and 21, because its records belong
to one process. Engines do not check arguments: `Storage` rejects invalid calls before they reach the engine.
Records that are read together are not a snapshot: one may be from before a commit and another from after it.
Use no more than about 1,000 tags in each space and partition, because an engine may store the counts of these
tags together. The version of a record starts at 1 again if the record is inserted after it was deleted or
expired, so never delete a record whose version serves as a fencing token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from .records_and_changes import (
    Address,
    Change,
    Committed,
    Guard,
    LanePosition,
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
    """The result of `Storage.maintain`."""

    reclaimed_bytes: int = 0
    findings: tuple[str, ...] = ()
    """A description of each problem that was found."""


def counter_finding(space: Space, partition: str | None, tag: Tag, *, stored: int, actual: int) -> str:
    """Describe a counter whose stored value differs from the actual number of records."""
    scope = f"{partition}/{space}" if partition else space
    return f"counter {scope}, tag {tag!r}: stored {stored}, actual {actual}"


class StorageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the server or the file that stores the records, for display."""

    server: str = ""
    """The name and version of the database software, or an empty string if they are unknown."""
    time: Micros | None = None
    """The current time on the server's clock. None if the time is unknown or there is no server."""
    path: str | None = None
    """The absolute path of the database file. None if the records are not in a file on this machine."""
    is_shared: bool = True
    """Whether another process that opens the same URL, now or later, sees the same records."""


class Engine(ABC):
    """The interface that every engine implements. Callers use `Storage`, which checks the arguments."""

    name: ClassVar[str]
    lag: float = 0.0
    """Maximum number of seconds until a commit is visible to reads that span all partitions."""

    @abstractmethod
    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]: ...

    @abstractmethod
    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused: ...

    @abstractmethod
    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]: ...

    @abstractmethod
    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]: ...

    @abstractmethod
    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]: ...

    @abstractmethod
    async def purge(self, *, until: Micros, limit: int) -> list[Purged]: ...

    @abstractmethod
    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch: ...

    @abstractmethod
    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        """Release unused space, check for damage, and report every problem that was found.

        With `repair`, also correct counters or indexes that do not match the records.
        """

    async def info(self) -> StorageInfo:
        """Return facts about the server or the file that stores the records, for display."""
        return StorageInfo()

    @abstractmethod
    async def close(self) -> None: ...
