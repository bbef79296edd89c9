"""The storage contract: what every engine promises, numbered. An engine is right when the kit says so.

 1. `get` answers the newest committed record of each address, in the order asked, None where none is.
 2. Within a partition every verb, of every client, sees each commit that returned before it began.
 3. An insert brings a record into being with the version it carries (1, except when copied), and never
    overwrites: it conflicts with the actual version.
 4. A keep where something stands changes nothing and answers kept with its version.
 5. A replace is done only on the record that its writer read (same version, order and tag); the version grows
    by one. On another it conflicts and names the version that stands there; on nothing it is missing.
 6. A delete likewise.
 7. A commit is all or nothing, across spaces, up to 25 changes and 2 MiB. Each change is judged against the
    state before the commit; if one is refused, nothing is written and each still gets its answer.
 8. Of concurrent writers of one version exactly one wins; histories of one record are linearizable.
 9. A guard never admits one too many and counts live records only; it may purge overdue ones of the partition
    before it refuses. It refuses only what raises the count, and only where every change met its condition.
10. `page` answers the records of a partition in `(order, key)` order, strictly after a position, in either
    direction, of one tag if asked, by index seek. Walking pages meets each record that stays exactly once.
11. `page` without a partition does so over all partitions in `(order, key, partition)` order.
    A page shorter than its limit is the last, unless its bodies have MAX_PAGE_BYTES together: it ends with
    the record that brings it there, so it holds at least one if there is one. `is_last_page` finds the end.
12. `due` answers what a lane should have woken by `until`, in `(wake_at, key, partition, space)` order,
    within the same bounds as a page.
13. `counts` are exact numbers of live records per tag, of a partition or of all; a tag of none is absent.
14. From `expires_at` on (`now >= expires_at`) a record is invisible to every verb but `purge`.
15. The address of an expired record is free, though not yet purged: a new record may be born there.
16. `purge` removes what expired by `until`, earliest first, at most `limit`, counters included, and tells of
    each that this call removed (a birth or a guard may have been first). Fewer than `limit`: no more is left.
17. Bodies come back to the byte. Any text without NUL is a name, and no name reaches another's records.
18. `watch` wakes on a change of what it covers. It may wake for nothing and may miss: it is a hint.
19. Time is an argument. However much of it passes outside, nothing changes but by a verb; an engine's own
    expiry is a backstop, days after `purge` should have come.
20. A commit that returned is still there after the engine was closed, or killed, and opened again. An engine
    whose servers may lose the newest writes when one takes over from another says so in its own docs.
21. A second client, in another process too, is bound by all of this together with the first.
22. After `close` every verb raises StorageClosed, and so does a watch that was waiting. A commit under way is
    finished, or raises an error as any other.
23. A stored record that is damaged harms no other. `get` of it raises StorageCorrupt, which names its
    address; `page` and `due` leave it out, log a warning that names it, and continue with the next; a commit
    that meets it answers as any other or raises StorageCorrupt; `maintain` reports it.

Promises 11, 12, 13 (without a partition) and 16 hold across partitions after `lag` seconds; the others at
once. Engines hold no rules: what is to be refused was refused by the `Storage` port before the engine saw it.
Nothing is promised between records that are read together: a reader may see one as it was before a commit and
another as it is after. Tags are few: an engine may hold the counts of a space and partition in one place,
good for 1 000 of them. Versions begin anew when a record is born again: who uses one as a fencing token keeps
the record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

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


class Watch(ABC):
    """A subscription to wake-ups. Wake-ups are not queued: ten changes may be one."""

    @abstractmethod
    async def changed(self) -> None:
        """Return as soon as something covered may have changed since the last return."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """What `maintain` did and found."""

    reclaimed_bytes: int = 0
    findings: tuple[str, ...] = ()
    """What is wrong with the storage, one sentence each; none if all is well."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps the records, for people."""

    server: str = ""
    """Its name and version, where it tells them."""
    time: Micros | None = None
    """What its clock shows. None: it has none of its own, or does not tell."""
    place: str | None = None
    """Where on this machine the records stand: the absolute path of a file. None: elsewhere, or in memory."""
    is_shared: bool = True
    """Whether another process that opens the same URL, now or later, sees the same records."""


class Engine(ABC):
    """What an engine implements: seven verbs, `maintain` and `close`. Arguments are already checked."""

    name: ClassVar[str]
    lag: float = 0.0
    """Seconds that the verbs across partitions may be behind."""

    @abstractmethod
    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]: ...

    @abstractmethod
    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused: ...

    @abstractmethod
    async def page(self, wanted: PageRequest, *, now: Micros) -> list[Record]: ...

    @abstractmethod
    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]: ...

    @abstractmethod
    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]: ...

    @abstractmethod
    async def purge(self, *, until: Micros, limit: int) -> list[Purged]: ...

    @abstractmethod
    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch: ...

    @abstractmethod
    async def maintain(self, *, repair: bool) -> Maintenance:
        """Give back room that is no longer used, and look for damage. `repair` sets counters right that
        disagree with the records they count; what was found is told in any case.
        """

    async def about(self) -> About:
        """What the server tells of itself, if there is one and it is asked easily."""
        return About()

    @abstractmethod
    async def close(self) -> None:
        """Release everything. Calling it again does nothing."""
