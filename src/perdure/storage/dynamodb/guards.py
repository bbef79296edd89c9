"""Guards: bounds on how many records a partition may hold, kept by a condition on its counter.

DynamoDB cannot add in a condition, so a guard over several tags becomes a bound for each of them, shared out
by what was last seen. The sum is never exceeded; a share may be too small though there is room, and then the
refusal tells the true counts for another try.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from ..record import Address, Guard, Refused, Space, Tag, tag_deltas
from .counters import Stored, below, look, stored_in
from .items import Item, Overdue
from .purge import MOST_REMOVED, remove
from .table import Table
from .transaction import Pending, Transaction

MOST_REMEMBERED = 10_000
"""Counters whose last known state is kept."""

Scope: TypeAlias = tuple[Space, str]


class Guards:
    """What is known of guarded counters, by one process."""

    def __init__(self, table: Table, on_commit: Callable[[Iterable[Address]], None]) -> None:
        self._table = table
        self._on_commit = on_commit
        self._seen: dict[Scope, Mapping[Tag, int]] = {}

    def hold(self, transaction: Transaction, together: Sequence[Pending]) -> None:
        """Let each counter refuse what its guard does not admit. No two guards here have one counter."""
        guarded: defaultdict[Scope, list[Pending]] = defaultdict(list)
        for pending in together:
            pending.counted = None
            scope = guarded_by(pending)
            if scope is not None:
                guarded[scope].append(pending)
        for scope, pendings in guarded.items():
            self._hold_one(transaction, scope, pendings, together)

    def _hold_one(
        self,
        transaction: Transaction,
        scope: Scope,
        guarded: Sequence[Pending],
        together: Sequence[Pending],
    ) -> None:
        guard = guarded[0].guard
        if guard is None:
            return
        here = [pending for pending in together if pending.partition == scope[1]]
        room = guard.max_count - sum(max(0, pending.grows(guard)) for pending in here)
        bounds = shares(room, self._seen.get(scope, {}), guard.tags) or shares(room, {}, guard.tags)

        def learn(item: Item | None) -> None:
            stored = stored_in(item)
            self._remember(scope, stored.counts)
            for pending in guarded:
                pending.counted = stored

        transaction.only_if(*scope, below(bounds or dict.fromkeys(guard.tags, -1)), learn)

    def written(self, pending: Pending) -> None:
        """Keep up with what we did ourselves."""
        scope = guarded_by(pending)
        if scope is None:
            return
        counts = dict(self._seen.get(scope, {}))
        for change, answer in zip(pending.changes, pending.done(), strict=True):
            for space, tag, by in tag_deltas(change, answer):
                if space == scope[0]:
                    counts[tag] = max(0, counts.get(tag, 0) + by)
        self._remember(scope, counts)

    async def make_room(self, pending: Pending) -> Refused | None:
        """Where a guard stood in the way: purge what is overdue, or refuse. None: try again."""
        guard, scope = pending.guard, guarded_by(pending)
        if guard is None or scope is None or pending.counted is None or have_room([pending]):
            return None
        stored, overdue = await look(self._table, *scope, pending.now, pending.counted)
        self._remember(scope, stored.counts)
        pending.counted = stored
        if have_room([pending]):
            return None
        counted = [each for each in overdue if each.tag in guard.tags]
        if not counted:
            return Refused(pending.results(), guard_count=_sum(guard, stored) + pending.grows(guard))
        lacking = _sum(guard, stored) + pending.grows(guard) - guard.max_count
        enough = counted[: max(lacking, MOST_REMOVED)]  # others wait meanwhile; the rest is for `purge`
        await remove(self._table, enough, pending.now, self._note)
        return None

    def _note(self, removed: Sequence[Overdue]) -> None:
        self._on_commit(each.address for each in removed)

    def _remember(self, scope: Scope, counts: Mapping[Tag, int]) -> None:
        if len(self._seen) >= MOST_REMEMBERED:
            self._seen.clear()
        self._seen[scope] = counts


def guarded_by(pending: Pending) -> Scope | None:
    """The counter that bounds this commit, if one does."""
    if pending.guard is None or pending.grows(pending.guard) <= 0:
        return None
    return pending.guard.space, pending.partition


def have_room(pendings: Sequence[Pending]) -> bool:
    """Whether the counter that stood in the way admits all of these. They have one guard."""
    guard, stored = pendings[0].guard, pendings[0].counted
    if guard is None or stored is None:
        return True
    return _sum(guard, stored) + sum(pending.grows(guard) for pending in pendings) <= guard.max_count


def shares(room: int, counts: Mapping[Tag, int], tags: Iterable[Tag]) -> dict[Tag, int] | None:
    """A bound for each tag, so that all together are `room` and each leaves some to what was last seen.

    None: there is no room.
    """
    names = sorted(tags)
    spare = room - sum(counts.get(tag, 0) for tag in names)
    if spare < 0:
        return None
    share, rest = divmod(spare, len(names))
    return {tag: counts.get(tag, 0) + share + (n < rest) for n, tag in enumerate(names)}


def _sum(guard: Guard, stored: Stored) -> int:
    return sum(stored.counts.get(tag, 0) for tag in guard.tags)
