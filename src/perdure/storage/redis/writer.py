"""Writing: one call of one script for each commit, and for what is purged of a shard at a time.

Every key that the script may touch is among its keys. Were one not, a slot that is just being moved to
another node would leave a commit half done. That is possible because the keys of all indexes follow from the
address alone: tags, lanes and times are in the entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from ..errors import OutcomeUnknown, StorageError, StorageFailed
from ..record import (
    Address,
    Change,
    Committed,
    Delete,
    Done,
    Guard,
    Insert,
    Keep,
    Micros,
    Purged,
    Refused,
    Replace,
    Space,
    growth,
)
from ..shards import SHARDS, shard_of
from ..verdict import result_of
from .index_scan import Shelf, Walk
from .router import Call, Router
from .schema import Keys, decode_standing, decode_tag, digits, encode, names_in, overdue, standing
from .scripts import WRITE, Word

MOST_TOLD = 1024
"""Bytes of a message. One that would be longer says only that something has changed."""
MOST_PURGED = 100
"""Records that one call purges, so that the server is soon free for others."""


class Writer:
    """Writes in the name of `client`, which its messages begin with."""

    def __init__(self, router: Router, keys: Keys, client: bytes) -> None:
        self._router = router
        self._keys = keys
        self._client = client

    async def commit(
        self, changes: Sequence[Change], guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        call = _Call(self._keys, changes[0].address.partition)
        for change in changes:
            call.add(change, _growth(guard, change, now))
        (reply,) = await self._router.write([call.made(now, guard, self._client)])
        if isinstance(reply, Exception):
            raise reply
        was_written, over, *met = cast("tuple[int, int, *tuple[bytes, ...]]", reply)
        found = [decode_standing(change.address, was) for change, was in zip(changes, met, strict=True)]
        result = result_of(changes, found, over=over or None, was_written=bool(was_written))
        if isinstance(result, StorageFailed):
            raise result
        return result

    async def purge(
        self, until: Micros, limit: int, wake: Callable[[Iterable[Address]], None]
    ) -> list[Purged]:
        """Remove what had expired, and wake whoever watches it. What was removed before an error stays so."""
        purged: list[Purged] = []
        try:
            await self._purge(until, limit, purged)
        except StorageError as error:
            if not purged:
                raise
            reason = f"{len(purged)} records were removed, and perhaps others ({error})"
            raise OutcomeUnknown(reason) from error
        finally:
            wake(Address(each.space, each.partition, each.key) for each in purged)
        return purged

    async def _purge(self, until: Micros, limit: int, purged: list[Purged]) -> None:
        stretch = overdue(until)
        shelves = [Shelf(shard, self._keys.expiries(shard), stretch) for shard in range(SHARDS)]
        walk = Walk(self._router, shelves)
        while len(purged) < limit:
            wanted = limit - len(purged)
            found = [_address(entry) for _, entry in await walk.next(wanted)]
            await self._remove(found, until, purged)
            if len(found) < wanted:
                break

    async def _remove(self, addresses: Sequence[Address], until: Micros, purged: list[Purged]) -> None:
        """Remove those of these records that had expired by then, and add them to `purged` in this order."""
        batches = _batches(addresses)
        calls: list[Call] = []
        for batch in batches:
            call = _Call(self._keys, batch[0].partition)
            for address in batch:
                call.add_purge(address)
            calls.append(call.made(until, None, self._client))
        tags: dict[Address, str] = {}
        errors: list[StorageError] = []
        for batch, reply in zip(batches, await self._router.write(calls), strict=True):
            if isinstance(reply, StorageError):
                errors.append(reply)
                continue
            met = cast("list[bytes]", reply)[2:]
            tags.update((at, decode_tag(was)) for at, was in zip(batch, met, strict=True) if was)
        purged += [Purged(*address, tags[address]) for address in addresses if address in tags]
        if errors:
            raise errors[0]


class _Call:
    """A call of the script, put together change by change. All of it is in one shard."""

    def __init__(self, keys: Keys, partition: str) -> None:
        self._keys = keys
        self._shard = shard_of(partition)
        self._partition = partition
        self._scopes: dict[tuple[Space, str], int] = {}
        self._addresses: list[Address] = []
        self._words: list[Word] = []

    def add(self, change: Change, grows: int) -> None:
        match change:
            case Insert(record=record):
                self._add("insert", change.address, b"", grows, encode(record))
            case Keep(record=record):
                self._add("keep", change.address, b"", grows, encode(record))
            case Replace(before=before, after=after):
                self._add("replace", change.address, standing(before), grows, encode(after))
            case Delete(before=before):
                self._add("delete", change.address, standing(before), grows, b"")

    def add_purge(self, address: Address) -> None:
        self._add("purge", address, b"", 0, b"")

    def made(self, now: Micros, guard: Guard | None, client: bytes) -> Call:
        guarded: list[Word] = [0, 0, 0]
        if guard is not None:
            guarded = [self._scope(guard.space, self._partition), guard.at_most, len(guard.tags), *guard.tags]
        names = [name for space, partition in self._scopes for name in (partition, space)]
        words = [
            *(digits(now), digits(now + 1), self._keys.channel, _message(client, self._addresses)),
            *(len(self._scopes), *guarded, *names, *self._words),
        ]
        return self._shard, WRITE.call(self._touched(), words)

    def _add(self, kind: str, address: Address, expected: bytes, grows: int, value: bytes) -> None:
        scope = self._scope(address.space, address.partition)
        self._addresses.append(address)
        self._words += (kind, scope, address.key, expected, grows, value)

    def _scope(self, space: Space, partition: str) -> int:
        return self._scopes.setdefault((space, partition), len(self._scopes) + 1)

    def _touched(self) -> list[bytes]:
        indexes = [key for scope in self._scopes for key in self._keys.scope(*scope)]
        records = map(self._keys.record, self._addresses)
        return [self._keys.timers(self._shard), self._keys.expiries(self._shard), *indexes, *records]


def _growth(guard: Guard | None, change: Change, now: Micros) -> int:
    """What a change adds to the guarded count if it is done. The script knows whether it is."""
    return 0 if guard is None else growth(guard, [change], [Done(1)], now)


def _message(client: bytes, addresses: Iterable[Address]) -> bytes:
    text = b"\0".join([client, *(name.encode() for address in addresses for name in address)])
    return text if len(text) <= MOST_TOLD else client


def _address(entry: bytes) -> Address:
    key, partition, space = names_in(entry, 0)
    return Address(Space(space), partition, key)


def _batches(addresses: Iterable[Address]) -> list[list[Address]]:
    """The addresses of each shard, in bunches that one call may take."""
    of_shard: defaultdict[int, list[Address]] = defaultdict(list)
    for address in addresses:
        of_shard[shard_of(address.partition)].append(address)
    return [
        group[start : start + MOST_PURGED]
        for group in of_shard.values()
        for start in range(0, len(group), MOST_PURGED)
    ]
