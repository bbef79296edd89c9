"""Records, changes and results: the types of the storage contract, and the pure rule that decides a change.

The verbs are in `contract`. Times are integer microseconds since 1970 in UTC and always come from the caller:
no engine reads a clock to decide anything. The types contain no reference cycles, so the garbage collector
can skip them (`gc=False`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, NewType, TypeAlias

import msgspec

from .errors import StorageFailed

Micros: TypeAlias = int
"""A point in time, or a length of time, in microseconds."""

Space = NewType("Space", str)
"""A kind of record, such as tasks or accounts. Spaces are constants in the code, never data."""

Tag: TypeAlias = str
"""A short property of a record that is indexed and counted. The empty string is a tag like any other."""


class Address(NamedTuple):
    """The identity of a record, unique in the whole storage."""

    space: Space
    partition: str
    key: str


class Position(NamedTuple):
    """A position in the total order of a space. Positions compare as tuples.

    Keys are unique within a partition, so `partition` matters only in listings of all partitions.
    """

    order: Micros
    key: str
    partition: str


FIRST_POSITION = Position(-1, "", "")
"""A position before every record."""
LAST_POSITION = Position(2**62, "", "")
"""A position after every record."""


def is_live(expires_at: Micros | None, now: Micros) -> bool:
    return expires_at is None or now < expires_at


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored record, with everything that an engine knows about it."""

    space: Space
    partition: str
    """The group that the record belongs to. A commit changes records of one partition."""
    key: str
    order: Micros
    """The number by which listings are sorted. It never changes."""
    body: str
    """JSON text, returned exactly as it was written. Engines do not parse it."""
    version: int = 1
    """The number of the version: 1 when the record is inserted, and one more with each replace."""
    tag: Tag = ""
    expires_at: Micros | None = None
    """From this time on, only `purge` sees the record. None if it never expires."""
    lane: str | None = None
    """The timer queue in which the record waits until `wake_at`. Either both are set or neither."""
    wake_at: Micros | None = None

    @property
    def address(self) -> Address:
        return Address(self.space, self.partition, self.key)

    @property
    def position(self) -> Position:
        return Position(self.order, self.key, self.partition)

    @property
    def state(self) -> RecordState:
        return RecordState(self.version, self.order, self.tag)

    def is_live(self, now: Micros) -> bool:
        return is_live(self.expires_at, now)

    def replace_with(
        self,
        *,
        body: str,
        tag: Tag,
        expires_at: Micros | None = None,
        lane: str | None = None,
        wake_at: Micros | None = None,
    ) -> Replace:
        """Return the change that gives this record new values and the next version."""
        after = Record(
            space=self.space,
            partition=self.partition,
            key=self.key,
            order=self.order,
            body=body,
            version=self.version + 1,
            tag=tag,
            expires_at=expires_at,
            lane=lane,
            wake_at=wake_at,
        )
        return Replace(before=self, after=after)


# Changes. A replace or delete carries the whole record that its writer read, not only the version: an engine
# that keeps counters in separate items (DynamoDB) then knows the old tag without another read.


class _Insertion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    record: Record

    @property
    def address(self) -> Address:
        return self.record.address


class Insert(_Insertion, frozen=True, gc=False):
    """A change that creates a record. If its address is taken, the result is `Conflict`."""


class InsertIfAbsent(_Insertion, frozen=True, gc=False):
    """A change that creates a record. If its address is taken, nothing changes and the result is `Kept`."""


class _Modification(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    before: Record

    @property
    def address(self) -> Address:
        return self.before.address


class Replace(_Modification, frozen=True, kw_only=True, gc=False):
    """A change that writes `after` if `before` is still the stored record."""

    after: Record


class Delete(_Modification, frozen=True, gc=False):
    """A change that deletes `before` if it is still the stored record."""


Change: TypeAlias = Insert | InsertIfAbsent | Replace | Delete


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on a commit: at most `max_count` live records of the partition may have one of `tags`.

    Only a commit that raises the number can be refused, even if the number is already above the limit.
    """

    space: Space
    tags: frozenset[Tag]
    max_count: int


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The result of a change whose condition was met. `version` is the version that it wrote or deleted."""

    version: int


class Kept(msgspec.Struct, frozen=True, gc=False):
    """The result of an `InsertIfAbsent` whose address is taken. `version` is that of the stored record."""

    version: int


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The result of a change that found a different record at its address, or of an insert that found any.

    `actual` is the version of that record. It can equal the version that the writer expected if the record
    was deleted and inserted again, so do not draw conclusions from it.
    """

    actual: int


class Missing(msgspec.Struct, frozen=True, gc=False):
    """The result of a replace or delete that found no live record."""


ChangeResult: TypeAlias = Accepted | Kept | Conflict | Missing


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The result of a commit that was written: one result for each change, in order."""

    results: tuple[Accepted | Kept, ...]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The result of a commit that was not written.

    `results` has one result for each change; `Accepted` here means that this change was not the reason. If
    the guard was the reason, `guard_count` is the number of records that the commit would have reached.
    """

    results: tuple[ChangeResult, ...]
    guard_count: int | None = None


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `page`: records of a space, strictly after a position."""

    space: Space
    partition: str | None
    """None means all partitions."""
    after: Position | None
    limit: int
    tag: Tag | None
    descending: bool

    @property
    def start(self) -> Position:
        """The position after which the page starts: `after`, or a position before the whole listing."""
        return self.after or (LAST_POSITION if self.descending else FIRST_POSITION)


class Purged(NamedTuple):
    """A record that `purge` deleted."""

    space: Space
    partition: str
    key: str
    tag: Tag

    @property
    def address(self) -> Address:
        return Address(self.space, self.partition, self.key)


class RecordState(NamedTuple):
    """The fields of a stored record that determine whether a change to it is accepted."""

    version: int
    order: Micros
    tag: Tag


def decide(change: Change, stored: RecordState | None) -> ChangeResult:
    """Return the result of a change, given the live record at its address.

    A replace or delete needs the record that its writer read. The version alone does not identify it: a
    record that was deleted and inserted again starts at the same version.
    """
    if isinstance(change, Insert):
        return Accepted(change.record.version) if stored is None else Conflict(stored.version)
    if isinstance(change, InsertIfAbsent):
        return Accepted(change.record.version) if stored is None else Kept(stored.version)
    if stored is None:
        return Missing()
    before = change.before
    if stored != (before.version, before.order, before.tag):
        return Conflict(stored.version)
    return Accepted(before.version + 1 if isinstance(change, Replace) else before.version)


def accepted_results(results: tuple[ChangeResult, ...]) -> tuple[Accepted | Kept, ...] | None:
    """Return the results if all changes were accepted, otherwise None."""
    accepted = tuple([result for result in results if isinstance(result, (Accepted, Kept))])
    return accepted if len(accepted) == len(results) else None


def check_server_decision(
    changes: Sequence[Change],
    stored: Iterable[RecordState | None],
    *,
    guard_count: int | None,
    was_written: bool,
) -> Committed | Refused | StorageFailed:
    """Return the result of a commit that a server decided, or the error to raise.

    PostgreSQL and Redis have their own copies of `decide`. If the copies ever disagree, a caller must not get
    `Committed` for something that was not written. `stored` are the states that the server found,
    `guard_count` is the number for which its guard refused the commit, and `was_written` is its decision.
    """
    results = tuple(decide(change, state) for change, state in zip(changes, stored, strict=True))
    accepted = accepted_results(results)
    is_accepted = accepted is not None and guard_count is None
    if is_accepted != was_written:
        server, client = ("wrote", "refuses") if was_written else ("refused", "accepts")
        return StorageFailed(
            f"the server {server} a commit that this client {client} (its first record is "
            f"{changes[0].address}); read before writing again, and report this as a bug in perdure"
        )
    return Refused(results, guard_count) if accepted is None or not is_accepted else Committed(accepted)


def tag_deltas(change: Change, result: Accepted | Kept) -> Iterator[tuple[Space, Tag, int]]:
    """Yield the differences that an accepted change makes to the counters of its partition."""
    if isinstance(result, Kept):
        return
    before, after = record_before(change), record_after(change)
    if before is not None and after is not None and before.tag == after.tag:
        return
    if before is not None:
        yield before.space, before.tag, -1
    if after is not None:
        yield after.space, after.tag, 1


def guard_delta(
    guard: Guard, changes: Sequence[Change], results: Sequence[Accepted | Kept], now: Micros
) -> int:
    """Return by how much accepted changes alter the number of live records that a guard limits."""
    total = 0
    for change, result in zip(changes, results, strict=True):
        if isinstance(result, Accepted):
            after = record_after(change)
            total += _is_guarded(guard, after) and after is not None and after.is_live(now)
            total -= _is_guarded(guard, record_before(change))  # it is live: otherwise the result is Missing
    return total


def _is_guarded(guard: Guard, record: Record | None) -> bool:
    return record is not None and record.space == guard.space and record.tag in guard.tags


def record_before(change: Change) -> Record | None:
    """Return the record that a replace or delete requires, or None for an insert."""
    return change.before if isinstance(change, (Replace, Delete)) else None


def record_after(change: Change) -> Record | None:
    """Return the record that a change writes, or None for a delete."""
    if isinstance(change, Replace):
        return change.after
    return None if isinstance(change, Delete) else change.record
