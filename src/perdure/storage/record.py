"""The words of the storage contract: a record, where it stands, how it changes, what a change is told.

Only types and the pure rule that judges a change; the verbs are in `contract`. Times are integer microseconds
since 1970 in UTC, and always come from the caller: nothing below this line reads a clock. The types hold no
cycles, so the garbage collector need not look at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, NewType, TypeAlias

import msgspec

Micros: TypeAlias = int
"""A point in time, or a span of it, in microseconds."""

Space = NewType("Space", str)
"""What kind of thing a record is. A space is a word in the code of the layer that owns it, never data."""

Tag: TypeAlias = str
"""A short facet of a record, indexed and counted. The empty tag is a tag like any other."""


class Address(NamedTuple):
    """Which record: unique over the whole storage."""

    space: Space
    partition: str
    key: str


class Position(NamedTuple):
    """A place in the total order of a space, comparable as a tuple.

    Within one partition keys are unique, so `partition` decides only between partitions.
    """

    order: Micros
    key: str
    partition: str


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One stored thing. Everything an engine knows of it is here."""

    space: Space
    partition: str
    """Who it belongs to. Commits are atomic within a partition."""
    key: str
    order: Micros
    """Where it stands in listings. Fixed at birth."""
    body: str
    """JSON text, returned as it came. No engine looks inside."""
    version: int = 1
    """1 at birth, one more with each replace."""
    tag: Tag = ""
    expires_at: Micros | None = None
    """From this instant on only `purge` sees the record. None: never."""
    lane: str | None = None
    """The timer queue that `wake_at` belongs to; both or neither."""
    wake_at: Micros | None = None

    @property
    def address(self) -> Address:
        return Address(self.space, self.partition, self.key)

    @property
    def position(self) -> Position:
        return Position(self.order, self.key, self.partition)

    @property
    def standing(self) -> Standing:
        return Standing(self.version, self.order, self.tag)

    def is_live(self, now: Micros) -> bool:
        return self.expires_at is None or now < self.expires_at

    def becoming(
        self,
        *,
        body: str,
        tag: Tag,
        expires_at: Micros | None = None,
        lane: str | None = None,
        wake_at: Micros | None = None,
    ) -> Replace:
        """The change that puts these values in the place of this record."""
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


# Changes. A replace or delete carries the record as its writer read it, not only the version: an engine
# whose counters live in other items (DynamoDB) then knows the old tag without reading first.


class Insert(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Bring a record into being; conflict where its address is taken."""

    record: Record

    @property
    def address(self) -> Address:
        return self.record.address


class Keep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Bring a record into being, or leave what is there as it is."""

    record: Record

    @property
    def address(self) -> Address:
        return self.record.address


class Replace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Put `after` in the place of `before`, if that is still what stands there."""

    before: Record
    after: Record

    @property
    def address(self) -> Address:
        return self.before.address


class Delete(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Remove `before`, if that is still what stands there."""

    before: Record

    @property
    def address(self) -> Address:
        return self.before.address


Change: TypeAlias = Insert | Keep | Replace | Delete


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """Refuse a commit that raises the number of live records of the partition with one of `tags` above
    `at_most`. One that does not raise it passes, though there may be too many already.
    """

    space: Space
    tags: frozenset[Tag]
    at_most: int


class Done(msgspec.Struct, frozen=True, gc=False):
    """The change met its condition; `version` is the record's after it (of a delete: the one removed)."""

    version: int


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A keep found its address taken, by a record of this version."""

    version: int


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """Another version stands there (or, for an insert, any)."""

    actual: int


class Missing(msgspec.Struct, frozen=True, gc=False):
    """Nothing stands there to replace or delete."""


Answer: TypeAlias = Done | Kept | Conflict | Missing


class Committed(msgspec.Struct, frozen=True, gc=False):
    """All of it is written. One answer per change, in their order."""

    answers: tuple[Done | Kept, ...]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Nothing of it is written.

    `answers` says what each change met: one that answers done here would have been done. `over` is the
    count that the guard saw, where every change met its condition and the guard alone refused.
    """

    answers: tuple[Answer, ...]
    over: int | None = None


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which records `page` answers: those of a space, strictly after a position."""

    space: Space
    partition: str | None
    """None: of all partitions."""
    after: Position | None
    limit: int
    tag: Tag | None
    descending: bool


class Purged(NamedTuple):
    """A record that `purge` removed."""

    space: Space
    partition: str
    key: str
    tag: Tag


class Standing(NamedTuple):
    """As much of a stored record as decides about a change to it."""

    version: int
    order: Micros
    tag: Tag


def judge(change: Change, stands: Standing | None) -> Answer:
    """What a change is told where this live record stands, or none.

    A replace or delete must meet the very record that its writer read. The version alone does not say so:
    a record that was deleted and born again begins at the same one.
    """
    if isinstance(change, Insert):
        return Done(change.record.version) if stands is None else Conflict(stands.version)
    if isinstance(change, Keep):
        return Done(change.record.version) if stands is None else Kept(stands.version)
    if stands is None:
        return Missing()
    before = change.before
    if stands != (before.version, before.order, before.tag):
        return Conflict(stands.version)
    return Done(before.version + 1 if isinstance(change, Replace) else before.version)


def accepted(answers: tuple[Answer, ...]) -> tuple[Done | Kept, ...] | None:
    """The same answers where none of them is a refusal, else None."""
    done: list[Done | Kept] = []
    for answer in answers:
        if not isinstance(answer, (Done, Kept)):
            return None
        done.append(answer)
    return tuple(done)


def tag_deltas(change: Change, answer: Done | Kept) -> Iterator[tuple[Space, Tag, int]]:
    """How an accepted change moves the stored counts of its partition."""
    if isinstance(answer, Kept):
        return
    before, after = before_of(change), after_of(change)
    if before is not None and after is not None and before.tag == after.tag:
        return
    if before is not None:
        yield before.space, before.tag, -1
    if after is not None:
        yield after.space, after.tag, 1


def growth(guard: Guard, changes: Sequence[Change], answers: Sequence[Done | Kept], now: Micros) -> int:
    """By how much accepted changes move the live count that a guard bounds."""
    total = 0
    for change, answer in zip(changes, answers, strict=True):
        if isinstance(answer, Done):
            after = after_of(change)
            total += _counts(guard, after) and after is not None and after.is_live(now)
            total -= _counts(guard, before_of(change))  # which is live, or the change would be missing
    return total


def _counts(guard: Guard, record: Record | None) -> bool:
    return record is not None and record.space == guard.space and record.tag in guard.tags


def before_of(change: Change) -> Record | None:
    """What a change expects to stand there."""
    return change.before if isinstance(change, (Replace, Delete)) else None


def after_of(change: Change) -> Record | None:
    """What a change leaves there."""
    if isinstance(change, Replace):
        return change.after
    return None if isinstance(change, Delete) else change.record
