"""A commit on its way: what it wants, and what it has learned of what stands where.

It begins with what its writer believes: that a new record's address is free, that an old record is as it was
read. DynamoDB accepts the commit if all of that is so, in one request; otherwise it tells what stands there
instead, and the commit is judged again by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..record import (
    Address,
    Answer,
    Change,
    Committed,
    Delete,
    Done,
    Guard,
    Insert,
    Keep,
    Kept,
    Micros,
    Refused,
    Replace,
    accepted,
    growth,
    judge,
    tag_deltas,
)
from ..shards import shard_of
from .counting import Stored
from .items import (
    Found,
    Item,
    Key,
    count_key,
    found_in,
    is_split,
    part_keys,
    record_key,
    total_key,
)
from .transaction import Transaction


class Pending:
    """One commit, until it is settled."""

    def __init__(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> None:
        self.changes = changes
        self.guard = guard
        self.now = now
        self.tries = 0
        self.contended = 0
        """How often a transaction of this commit was canceled because of items that concern all of it."""
        self.counted: Stored | None = None
        """The guarded counter, once the guard has stood in the way."""
        self._stands = [_believed(change) for change in changes]

    @property
    def partition(self) -> str:
        return self.changes[0].address.partition

    @property
    def addresses(self) -> list[Address]:
        return [change.address for change in self.changes]

    def keys(self) -> set[Key]:
        """Return the keys of the items that this commit writes or checks, but for the parts of bodies."""
        together = zip(self.changes, self.done(), strict=True)
        moved = {space for change, answer in together for space, _, _ in tag_deltas(change, answer)}
        counted = {address.space for address in self.addresses}
        if self.guard is not None:
            counted.add(self.guard.space)
        return {
            *map(record_key, self.addresses),
            *(count_key(space, self.partition) for space in counted),
            *(total_key(space, shard_of(self.partition)) for space in moved),
        }

    @property
    def does_away_with_parts(self) -> bool:
        """Whether a change ends a body in parts, of which only the table knows where they are."""
        return any(
            isinstance(change, (Replace, Delete)) and is_split(change.before.body) for change in self.changes
        )

    def learn(self, place: int, item: Item | None) -> None:
        """Take note of what stands where a change expected something else."""
        self._stands[place] = found_in(item)

    def stands(self, place: int) -> Found | None:
        return self._stands[place]

    def answers(self) -> tuple[Answer, ...]:
        return tuple(
            judge(change, None if stands is None else stands.standing(self.now))
            for change, stands in zip(self.changes, self._stands, strict=True)
        )

    def done(self) -> tuple[Done | Kept, ...]:
        """The answers, of a commit that is not refused."""
        return accepted(self.answers()) or ()

    def settled(self) -> Committed | Refused | None:
        """The result, where nothing need be written: a refusal, or that everything was kept."""
        answers = self.answers()
        done = accepted(answers)
        if done is None:
            return Refused(answers)
        return Committed(done) if all(isinstance(answer, Kept) for answer in done) else None

    def grows(self, guard: Guard | None) -> int:
        """By how much this commit raises the count that a guard bounds."""
        return 0 if guard is None else growth(guard, self.changes, self.done(), self.now)

    def write(self, transaction: Transaction) -> None:
        """Add to a transaction what this commit writes if what it believes is so."""
        together = zip(self.changes, self._stands, self.done(), strict=True)
        for place, (change, stands, answer) in enumerate(together):
            learn = partial(self.learn, place)
            match change:
                case Insert(record=record) | Keep(record=record):
                    if isinstance(answer, Kept) and stands is not None:
                        transaction.check(change.address, stands, self.now, learn)
                        continue
                    transaction.put(record, stands, self.now, learn)
                    if stands is not None:
                        transaction.forget_expired(change.address, stands.tag)
                case Replace(before=before, after=after):
                    transaction.put(after, stands, self.now, learn)
                    transaction.may_expire(before, self.now)
                case Delete(before=before):
                    transaction.delete(change.address, stands, self.now, learn)
                    transaction.may_expire(before, self.now)
            for space, tag, by in tag_deltas(change, answer):
                transaction.count(space, self.partition, tag, by)

    def left_behind(self) -> list[Key]:
        """The parts of bodies that nothing refers to once this is written."""
        return [
            key
            for stands, answer in zip(self._stands, self.done(), strict=True)
            if stands is not None and stands.body_id is not None and isinstance(answer, Done)
            for key in part_keys(stands.body_id, stands.body_parts)
        ]


def _believed(change: Change) -> Found | None:
    """What stands there if the writer is right; that it still lives is for the table to say."""
    if isinstance(change, (Insert, Keep)):
        return None
    before = change.before
    return Found(before.version, before.order, before.tag, expires_at=None)
