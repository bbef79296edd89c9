"""Removing what has expired: records, their counts, and what was left of large bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from ..errors import StorageBusy, StorageError
from ..record import Address, Micros
from ..shards import shard_of
from .items import Item, Key, Overdue, overdue_in, part_keys
from .table import Table
from .transaction import Transaction

MOST_REMOVED = 30
"""Records of one transaction. Each may move a counter and a total of its own, and 100 items are allowed."""
MOST_TRIES = 20
"""How often such a transaction may find that something has changed again."""


async def remove(
    table: Table,
    overdue: Iterable[Overdue],
    until: Micros,
    on_removed: Callable[[Sequence[Overdue]], None],
) -> None:
    """Remove those that are still there and still expired, and tell which they were as soon as they are gone.

    An index may show a record twice, while it moves in it.
    """
    each_once = {each.address: each for each in overdue}.values()
    neighbours = sorted(each_once, key=lambda each: (shard_of(each.address.partition), each.address))
    for start in range(0, len(neighbours), MOST_REMOVED):
        removed = await _remove_together(table, neighbours[start : start + MOST_REMOVED], until)
        on_removed(removed)
        await remove_parts(table, [key for each in removed for key in _parts_of(each)])


def earliest(overdue: Overdue) -> tuple[Micros, Address]:
    """To sort by."""
    return overdue.expires_at, overdue.address


async def remove_parts(table: Table, keys: Sequence[Key]) -> None:
    """Remove parts of bodies that nothing refers to. If that fails, `maintain` finds them later."""
    with suppress(StorageError):
        await table.delete(keys)


async def _remove_together(table: Table, overdue: Sequence[Overdue], until: Micros) -> Sequence[Overdue]:
    """In one transaction, which is made anew as often as it meets something that has changed."""
    left = dict(enumerate(overdue))

    def learn(place: int, item: Item | None) -> None:
        overdue = overdue_in(item) if item else None
        if overdue is not None and overdue.expires_at <= until:
            left[place] = overdue
        else:
            del left[place]

    for _ in range(MOST_TRIES):
        if not left:
            return ()
        transaction = Transaction(table)
        for place, each in left.items():
            transaction.purge(each, until, partial(learn, place))
        if await transaction.commit():
            return list(left.values())
    raise StorageBusy(f"{table.location.name}: others kept changing what was to be purged")


def _parts_of(overdue: Overdue) -> list[Key]:
    return [] if overdue.body_id is None else part_keys(overdue.body_id, overdue.body_parts)
