"""The memory engine: the contract in its plainest form. For tests, for trying out, and as the model that
every other engine is compared with. It forgets everything when the process ends.

Nothing here awaits, so each verb is atomic on the event loop by itself. Every index holds exactly the
records in `_records`; expired ones stay in until they are purged, and readers step over them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from .contract import About, Engine, Maintenance, Watch
from .errors import CannotOpen
from .page import page_of
from .record import (
    Address,
    Answer,
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    Keep,
    Kept,
    Micros,
    PageRequest,
    Position,
    Purged,
    Record,
    Refused,
    Replace,
    Space,
    Standing,
    Tag,
    accepted,
    growth,
    judge,
)
from .sorted_set import OrderedSet
from .watch import Signals

_Scope = tuple[Space, str | None, Tag | None]
_Timer = tuple[Micros, str, str, Space]  # wake_at, key, partition, space
_Expiry = tuple[Micros, Address]


class MemoryEngine(Engine):
    """Records in dictionaries and sorted sets."""

    name = "memory"

    def __init__(self) -> None:
        self._records: dict[Address, Record] = {}
        self._listings: defaultdict[_Scope, OrderedSet[Position]] = defaultdict(OrderedSet)
        self._timers: defaultdict[str, OrderedSet[_Timer]] = defaultdict(OrderedSet)
        self._expiries: OrderedSet[_Expiry] = OrderedSet()
        self._counts: defaultdict[tuple[Space, str | None], dict[Tag, int]] = defaultdict(dict)
        self._signals = Signals()

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return [self._live(address, now) for address in addresses]

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        answers = tuple(judge(change, self._standing(change.address, now)) for change in changes)
        done = accepted(answers)
        if done is None:
            return Refused(answers)
        if guard is not None:
            over = self._over(guard, changes[0].address.partition, growth(guard, changes, done, now), now)
            if over is not None:
                return Refused(answers, over=over)
        for change, answer in zip(changes, done, strict=True):
            self._apply(change, answer)
        self._signals.wake(change.address for change in changes)
        return Committed(done)

    async def page(self, wanted: PageRequest, *, now: Micros) -> list[Record]:
        listing = self._listings.get((wanted.space, wanted.partition, wanted.tag))
        if listing is None:
            return []
        positions = listing.before(wanted.after) if wanted.descending else listing.after(wanted.after)
        found = (self._records[Address(wanted.space, at.partition, at.key)] for at in positions)
        return page_of((record for record in found if record.is_live(now)), wanted.limit)

    async def due(self, lane: str, *, until: Micros, limit: int, now: Micros) -> list[Record]:
        return page_of(self._due(lane, until, now), limit)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        counts = dict(self._counts.get((space, partition), {}))
        for record in self._overdue(now):
            if record.space == space and partition in (None, record.partition):
                counts[record.tag] -= 1
        return {tag: count for tag, count in counts.items() if count}

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        overdue = list(islice(self._overdue(until), limit))
        for record in overdue:
            self._remove(record)
        self._signals.wake(record.address for record in overdue)
        return [Purged(*record.address, record.tag) for record in overdue]

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self._signals.watch((space, partition, key))

    async def maintain(self, *, repair: bool) -> Maintenance:  # noqa: ARG002 - nothing can be wrong here
        return Maintenance()

    async def about(self) -> About:
        return About(is_shared=False)

    async def close(self) -> None:
        self._signals.close()

    # Reading

    def _live(self, address: Address, now: Micros) -> Record | None:
        record = self._records.get(address)
        return record if record is not None and record.is_live(now) else None

    def _standing(self, address: Address, now: Micros) -> Standing | None:
        record = self._live(address, now)
        return None if record is None else record.standing

    def _due(self, lane: str, until: Micros, now: Micros) -> Iterator[Record]:
        for wake_at, key, partition, space in self._timers.get(lane, OrderedSet[_Timer]()).after(None):
            if wake_at > until:
                return
            record = self._live(Address(space, partition, key), now)
            if record is not None:
                yield record

    def _overdue(self, until: Micros) -> Iterator[Record]:
        for expires_at, address in self._expiries.after(None):
            if expires_at > until:
                return
            yield self._records[address]

    def _over(self, guard: Guard, partition: str, grows: int, now: Micros) -> int | None:
        """The guarded count as it would be, where that is too many."""
        if grows <= 0 or self._count(guard, partition) + grows <= guard.at_most:
            return None
        for record in [each for each in self._overdue(now) if each.partition == partition]:
            self._remove(record)
        count = self._count(guard, partition) + grows
        return count if count > guard.at_most else None

    def _count(self, guard: Guard, partition: str) -> int:
        counts = self._counts.get((guard.space, partition), {})
        return sum(counts.get(tag, 0) for tag in guard.tags)

    # Writing

    def _apply(self, change: Change, answer: Answer) -> None:
        if isinstance(answer, Kept):
            return
        stale = self._records.get(change.address)  # what is replaced or deleted, or expired unpurged
        if stale is not None:
            self._remove(stale)
        match change:
            case Insert(record=record) | Keep(record=record) | Replace(after=record):
                self._add(record)
            case Delete():
                pass

    def _add(self, record: Record) -> None:
        self._records[record.address] = record
        position = record.position
        for listing in self._listings_of(record):
            self._listings[listing].add(position)
        for partition in (None, record.partition):
            counts = self._counts[record.space, partition]
            counts[record.tag] = counts.get(record.tag, 0) + 1
        if record.lane is not None and record.wake_at is not None:
            self._timers[record.lane].add((record.wake_at, record.key, record.partition, record.space))
        if record.expires_at is not None:
            self._expiries.add((record.expires_at, record.address))

    def _remove(self, record: Record) -> None:
        del self._records[record.address]
        position = record.position
        for scope in self._listings_of(record):
            listing = self._listings[scope]
            listing.remove(position)
            if not listing:
                del self._listings[scope]
        self._uncount(record)
        if record.lane is not None and record.wake_at is not None:
            timers = self._timers[record.lane]
            timers.remove((record.wake_at, record.key, record.partition, record.space))
            if not timers:
                del self._timers[record.lane]
        if record.expires_at is not None:
            self._expiries.remove((record.expires_at, record.address))

    def _uncount(self, record: Record) -> None:
        for partition in (None, record.partition):
            counts = self._counts[record.space, partition]
            counts[record.tag] -= 1
            if not counts[record.tag]:
                del counts[record.tag]
            if not counts:
                del self._counts[record.space, partition]

    @staticmethod
    def _listings_of(record: Record) -> tuple[_Scope, ...]:
        space, partition, tag = record.space, record.partition, record.tag
        return (space, partition, None), (space, partition, tag), (space, None, None), (space, None, tag)


async def open_engine(url: str) -> Engine:
    if url != "memory:":
        raise CannotOpen(url, "a memory storage has no name and no options", 'write "memory:"')
    return MemoryEngine()
