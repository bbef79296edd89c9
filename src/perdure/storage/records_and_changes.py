"""The types of the storage contract: records, changes and results. `decide` accepts or refuses a change.

Times are integers, in microseconds since the Unix epoch. Times always come from the caller: no engine uses a
clock to make decisions. `gc=False` is safe because the structs contain no reference cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, NewType, TypeAlias

import msgspec

from .errors import StorageFailed

Micros: TypeAlias = int
"""A time in microseconds since the Unix epoch, or a duration in microseconds."""

Space = NewType("Space", str)
"""The name of a kind of record, such as `tasks` or `accounts`. Spaces are constants in the code."""

Tag: TypeAlias = str
"""A label of a record, such as the status of a task. Storages index and count records by tag. The empty
string is a valid tag.
"""


class Address(NamedTuple):
    """The address of a record, which is unique in the whole storage."""

    space: Space
    partition: str
    key: str


class Position(NamedTuple):
    """The position of a record in the sort order of its space. Positions are compared as tuples.

    Keys are unique within a partition, so `partition` matters only in listings across all partitions.
    """

    order: Micros
    key: str
    partition: str


FIRST_POSITION = Position(-1, "", "")
"""A position before every record."""
LAST_POSITION = Position(2**62, "", "")
"""A position after every record."""


class LanePosition(NamedTuple):
    """The position of a record in the sort order of its lane (timer queue).

    Positions are compared as tuples.
    """

    wake_at: Micros
    key: str
    partition: str
    space: Space


FIRST_LANE_POSITION = LanePosition(-1, "", "", Space(""))
"""A position before every record of a lane."""


def is_live(expires_at: Micros | None, now: Micros) -> bool:
    return expires_at is None or now < expires_at


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored record: its address, its body, and the fields by which an engine indexes it."""

    space: Space
    partition: str
    """The group that the record belongs to. All changes of a commit must be in one partition."""
    key: str
    order: Micros
    """The number by which listings are sorted. It never changes after the record is inserted."""
    body: str
    """JSON text, returned exactly as it was written. Engines do not parse it."""
    version: int = 1
    """The version number. It starts at 1 when the record is inserted. Each `Replace` increases it by one."""
    tag: Tag = ""
    expires_at: Micros | None = None
    """From this time on, only `purge` sees the record. None if the record never expires."""
    lane: str | None = None
    """The queue in which `due` finds the record from `wake_at` on. None if the record has no timer."""
    wake_at: Micros | None = None
    """The time at which the record becomes due in its lane. None if the record has no timer."""

    @property
    def address(self) -> Address:
        return Address(self.space, self.partition, self.key)

    @property
    def position(self) -> Position:
        return Position(self.order, self.key, self.partition)

    @property
    def lane_position(self) -> LanePosition:
        """The position of the record in its lane. It is valid only for records with a timer."""
        return LanePosition(self.wake_at or 0, self.key, self.partition, self.space)

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
        """Return a change that replaces this record. An omitted argument sets its field to None."""
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


# Changes. A replace or delete contains the whole record that the caller read, not only its version. An engine
# that stores counters in separate items (DynamoDB) then knows the old tag without another read.


class _Insertion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    record: Record

    @property
    def address(self) -> Address:
        return self.record.address


class Insert(_Insertion, frozen=True, gc=False):
    """A change that creates a record. If a live record exists at the address, the result is `Conflict`."""


class InsertIfAbsent(_Insertion, frozen=True, gc=False):
    """A change that creates a record.

    If a live record exists at the address, it is kept, and the result is `Kept`.
    """


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
    """A condition for a commit: afterwards, at most `max_count` live records may have a tag in `tags`.

    Only records in `space` and in the partition of the commit are counted. A commit that does not increase
    their number is accepted, even if the number already exceeds `max_count`.
    """

    space: Space
    tags: frozenset[Tag]
    max_count: int


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The result of a change that was accepted. `version` is the version that the change wrote or deleted."""

    version: int


class Kept(msgspec.Struct, frozen=True, gc=False):
    """The result of an `InsertIfAbsent` that found a live record. `version` is the version of that record."""

    version: int


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """The result of a replace or delete that found a different record, or of an insert that found a record.

    `actual` is the version of the stored record. If the record was deleted and inserted again, `actual` can
    equal the expected version, so do not compare the two versions.
    """

    actual: int


class Missing(msgspec.Struct, frozen=True, gc=False):
    """The result of a replace or delete that found no live record at the address of the change."""


ChangeResult: TypeAlias = Accepted | Kept | Conflict | Missing


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The result of a commit that was written: one result for each change, in order."""

    results: tuple[Accepted | Kept, ...]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The result of a commit that was not written.

    `results` has one result for each change. A change that is `Accepted` or `Kept` did not cause the refusal.
    If the guard caused the refusal, `guard_count` is the count that the commit would have reached.
    """

    results: tuple[ChangeResult, ...]
    guard_count: int | None = None


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `page`, which returns up to `limit` records after the position `after`."""

    space: Space
    partition: str | None
    """The partition to read, or None to read all partitions."""
    after: Position | None
    limit: int
    tag: Tag | None
    """The tag of the records to return, or None for all records."""
    descending: bool

    @property
    def start(self) -> Position:
        """The position after which the page starts: `after`, or a position before the whole listing."""
        return self.after or (LAST_POSITION if self.descending else FIRST_POSITION)


class Purged(NamedTuple):
    """The address and tag of a record that `purge` deleted."""

    space: Space
    partition: str
    key: str
    tag: Tag

    @property
    def address(self) -> Address:
        return Address(self.space, self.partition, self.key)


class RecordState(NamedTuple):
    """The fields of a stored record that determine whether a change to the record is accepted."""

    version: int
    order: Micros
    tag: Tag


def decide(change: Change, stored: RecordState | None) -> ChangeResult:
    """Return the result of `change`.

    `stored` is the state of the live record at the address of the change, or None if there is none. A replace
    or delete is accepted only if the stored record is still the one that the caller read. Comparing versions
    is not enough: a record that was deleted and inserted again can have the same version.
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
    """Return `results` if every change was accepted or kept, otherwise None."""
    accepted = tuple([result for result in results if isinstance(result, (Accepted, Kept))])
    return accepted if len(accepted) == len(results) else None


def check_server_decision(
    changes: Sequence[Change],
    stored: Iterable[RecordState | None],
    *,
    guard_count: int | None,
    was_written: bool,
) -> Committed | Refused | StorageFailed:
    """Compare the server's decision on a commit with `decide`. Return the result, or an error if they differ.

    PostgreSQL and Redis run their own copies of `decide`. If the copies ever disagree, a caller must not get
    `Committed` for a commit that was not written. `stored` contains the states that the server found,
    `guard_count` is set if the server's guard refused the commit, and `was_written` is the server's decision.
    """
    results = tuple(decide(change, state) for change, state in zip(changes, stored, strict=True))
    accepted = accepted_results(results)
    is_accepted = accepted is not None and guard_count is None
    if is_accepted != was_written:
        server, client = ("wrote", "refuses") if was_written else ("refused", "accepts")
        return StorageFailed(
            f"the server {server} a commit that this client {client} (first record: {changes[0].address}); "
            "read the records before you write again, and report this as a bug in perdure"
        )
    return Refused(results, guard_count) if accepted is None or not is_accepted else Committed(accepted)


def tag_deltas(change: Change, result: Accepted | Kept) -> Iterator[tuple[Space, Tag, int]]:
    """Yield `(space, tag, delta)` for each counter that an accepted change affects. `delta` is 1 or -1."""
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
    """Return the number by which the accepted changes increase the count that `guard` limits."""
    total = 0
    for change, result in zip(changes, results, strict=True):
        if isinstance(result, Accepted):
            after = record_after(change)
            total += _is_guarded(guard, after) and after is not None and after.is_live(now)
            total -= _is_guarded(guard, record_before(change))  # live, otherwise the result is Missing
    return total


def _is_guarded(guard: Guard, record: Record | None) -> bool:
    return record is not None and record.space == guard.space and record.tag in guard.tags


def record_before(change: Change) -> Record | None:
    """Return the record that a replace or delete expects to find, or None for an insert."""
    return change.before if isinstance(change, (Replace, Delete)) else None


def record_after(change: Change) -> Record | None:
    """Return the record that a change writes, or None for a delete."""
    if isinstance(change, Replace):
        return change.after
    return None if isinstance(change, Delete) else change.record
