"""Commits: alone where one item is all that changes, otherwise in transactions that neighbours share.

Commits of one line go one transaction after another, so those of one process never stand in each other's way;
whatever waits meanwhile goes together with the next. If a transaction is refused, each of its commits learns
what stood in its way. Those that are refused for good are told so; the others go again. If a transaction is
canceled because others change some of its items, the commits that do not concern these go without the rest:
one partition's conflicts fail no commit of another.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias
from uuid import uuid4

from ..batcher import Batcher, copy_error
from ..errors import OutcomeUnknown, StorageBusy, StorageError, StorageUnavailable
from ..record import (
    Address,
    Change,
    Committed,
    Guard,
    Micros,
    Refused,
    Replace,
    record_after,
)
from ..shards import shard_of
from .guards import Guards, Scope, guarded_by, have_room
from .items import MOST_INLINE, Key, is_split, item_of_record, record_key, whole
from .purge import remove_parts
from .table import STANDINGS, Contended, NotAsExpected, Table, pause
from .transaction import Pending, Transaction, condition

LINES = 16
"""Transactions under way at once. With more of them fewer commits go together."""
MOST_ITEMS = 100
"""Of one transaction."""
BYTES_OF_A_HUNDREDTH = 40_000
"""Of the 4 MB of one transaction."""
MOST_NAMES = 4_000
"""Bytes of an item without its body, at the most."""
MOST_TRIES = 20
"""How often a commit may find that something has changed again."""

_Result: TypeAlias = Committed | Refused | Exception


class Writer:
    """Belongs to one event loop. `on_commit` is called for every commit that was written."""

    def __init__(self, table: Table, on_commit: Callable[[Iterable[Address]], None]) -> None:
        self._table = table
        self._on_commit = on_commit
        self._guards = Guards(table, on_commit)
        self._lines = [
            Batcher(self._write, max_items=MOST_ITEMS, weight=_weight, max_weight=MOST_ITEMS)
            for _ in range(LINES)
        ]

    async def commit(
        self, changes: Sequence[Change], guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        pending = Pending(changes, guard, now)
        if len(changes) == 1 and (result := await self._replace_alone(pending, changes[0])) is not None:
            return result
        return await self._lines[shard_of(pending.partition) % LINES].submit(pending)

    async def close(self) -> None:
        for line in self._lines:
            await line.close()

    # Alone

    async def _replace_alone(self, pending: Pending, change: Change) -> Committed | Refused | None:
        """Where no counter moves, one conditional write does it. None: it takes a transaction.

        Made again after a lost answer, it may meet itself; it knows itself by its mark.
        """
        if not isinstance(change, Replace) or change.before.tag != change.after.tag:
            return None
        if is_split(change.before.body) or is_split(change.after.body):
            return None
        mark = {"S": uuid4().hex}
        item = item_of_record(change.after, {**whole(change.after.body), "written_as": mark})
        try:
            await self._table.put(item, condition(pending.stands(0), pending.now))
        except NotAsExpected as refused:
            stands = refused.reasons[0].get("Item") or {}
            if not refused.lost:
                pending.learn(0, stands)
                return pending.settled()
            if stands.get("written_as") != mark:
                name = self._table.location.name
                raise OutcomeUnknown(
                    f"{name}: the answer to a write was lost; others wrote since"
                ) from refused
        return self._written(pending)

    # Together

    async def _write(self, group: Sequence[Pending]) -> list[_Result]:
        await self._find_parts(group)
        results: dict[Pending, _Result] = {
            pending: result for pending in group if (result := pending.settled()) is not None
        }
        waiting = deque([[pending for pending in group if pending not in results]])
        while waiting:
            together, later = _compatible(waiting.popleft())
            if later:
                waiting.append(later)
            if not together:
                continue
            try:
                waiting += await self._try(together, results)
            except StorageError as error:
                if len(together) > 1 and not _concerns_all(error):
                    waiting += [[pending] for pending in together]
                else:
                    results.update((pending, copy_error(error)) for pending in together)
        return [results[pending] for pending in group]

    async def _try(self, together: Sequence[Pending], results: dict[Pending, _Result]) -> list[list[Pending]]:
        """Commit these, if what they believe is so; otherwise those that are to go again."""
        transaction = Transaction(self._table)
        for pending in together:
            pending.write(transaction)
        self._guards.hold(transaction, together)
        is_shared = len({pending.partition for pending in together}) > 1
        try:
            is_written = await transaction.commit(is_shared=is_shared)
        except Contended as contended:
            return await self._separate(together, transaction.named_by(contended.reasons))
        if is_written:
            results.update((pending, self._written(pending)) for pending in together)
            await remove_parts(self._table, [key for pending in together for key in pending.left_behind()])
            return []
        again: list[Pending] = []
        for pending in together:
            result = pending.settled() or self._given_up(pending)
            if result is None and len(together) == 1:
                result = await self._guards.make_room(pending)
            if result is None:
                again.append(pending)
            else:
                results[pending] = result
        return _apart(again)

    async def _separate(self, together: Sequence[Pending], contended: set[Key]) -> list[list[Pending]]:
        """Return the groups in which these go again: the others first, then those of the contended items.

        If all of them are concerned, they are tried again together, and at last each partition by itself.
        """
        concerned = [pending for pending in together if not contended.isdisjoint(pending.keys())]
        others = [pending for pending in together if pending not in concerned]
        if concerned and others:
            return [others, concerned]
        for pending in together:
            pending.contended += 1
        tries = max(pending.contended for pending in together)
        if tries < self._table.location.options.attempts:
            await pause(tries)
            return [list(together)]
        partitions: defaultdict[str, list[Pending]] = defaultdict(list)
        for pending in together:
            partitions[pending.partition].append(pending)
        return list(partitions.values())

    async def _find_parts(self, group: Sequence[Pending]) -> None:
        """Look where parts of bodies are. If that shows a refusal, each change must know what it met."""
        for pending in group:
            if pending.does_away_with_parts:
                keys = [record_key(address) for address in pending.addresses]
                found = await self._table.get(keys, STANDINGS)
                for place, key in enumerate(keys):
                    pending.learn(place, found.get(key))

    def _written(self, pending: Pending) -> Committed:
        self._on_commit(pending.addresses)
        self._guards.written(pending)
        return Committed(pending.done())

    def _given_up(self, pending: Pending) -> StorageBusy | None:
        pending.tries += 1
        if pending.tries < MOST_TRIES:
            return None
        return StorageBusy(f"{self._table.location.name}: others kept changing the same records")


def _compatible(group: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Those that one transaction can hold, and the others: each record once, and each counter one guard."""
    taken: set[Address] = set()
    guards: dict[Scope | None, Guard | None] = {}
    together: list[Pending] = []
    later: list[Pending] = []
    for pending in group:
        scope = guarded_by(pending)
        is_same = scope is None or guards.get(scope, pending.guard) == pending.guard
        if is_same and taken.isdisjoint(pending.addresses):
            taken.update(pending.addresses)
            guards[scope] = pending.guard
            together.append(pending)
        else:
            later.append(pending)
    return together, later


def _apart(again: Sequence[Pending]) -> list[list[Pending]]:
    """Those that a guard has no room for together go one by one; the others stay together."""
    crowds: defaultdict[Scope | None, list[Pending]] = defaultdict(list)
    for pending in again:
        crowds[None if pending.counted is None else guarded_by(pending)].append(pending)
    together = crowds.pop(None, [])
    alone: list[list[Pending]] = []
    for crowd in crowds.values():
        if have_room(crowd):
            together += crowd
        else:
            alone += [[pending] for pending in crowd]
    return [together, *alone] if together else alone


def _weight(pending: Pending) -> int:
    """Its share of a transaction in hundredths, by items or by bytes."""
    afters = map(record_after, pending.changes)
    sizes = [len(after.body.encode()) for after in afters if after is not None]
    parts = sum(-(-size // MOST_INLINE) for size in sizes if size > MOST_INLINE)
    items = len(pending.changes) + parts + 2 * len({change.address.space for change in pending.changes}) + 1
    return max(items, (sum(sizes) + items * MOST_NAMES) // BYTES_OF_A_HUNDREDTH + 1)


def _concerns_all(error: StorageError) -> bool:
    """Whether the others would fare no better alone."""
    return isinstance(error, (OutcomeUnknown, StorageBusy, StorageUnavailable))
