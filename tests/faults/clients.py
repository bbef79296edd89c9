"""The clients: each reads and writes a few records that all of them want, and notes the results.

The order of a record follows from its key and its tag from its version, so that the version alone decides
whether a replace or delete meets what it expects: that is what the kit's checker knows of.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

from perdure.storage import (
    Address,
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Record,
    Refused,
    Space,
    Storage,
)
from perdure.storage.errors import StorageBusy, StorageFailed, StorageUnavailable
from perdure.storage.kit.sample_records import NOW

from .journal import Counted, Journal, Lost, clock

T = TypeVar("T")

THINGS = Space("things")
QUOTA = Space("quota")
"""The space of records that a guard bounds."""
WITNESSES = Space("witnesses")
"""Records that are written once, by a commit that wants to be recognised, and never changed."""
SPACES = (THINGS, QUOTA, WITNESSES)

LANE = "lane"
"""In which records of an odd version wait, but for witnesses."""
TAGS = ("blue", "red")
BOUND = 2
GUARD = Guard(space=QUOTA, tags=frozenset(TAGS), max_count=BOUND)

PLACES = [(space, f"k{n}", n) for space in (THINGS, QUOTA) for n in range(4)]
IN_USE = 3
"""Partitions at a time."""
MAX_CALLS = 500
MAX_UNKNOWN = 5
"""Beyond which a partition is left alone. Where much is unknown, it takes long to see if all is explained."""

SIZES = (*[0] * 80, 1_000, 1_000, 10_000, 100_000, 400_000)
"""Bytes more than a body needs. Some take several pieces on the way, and on DynamoDB several items."""
MAX_PAUSE_SECONDS = 0.01
_NOT_WRITTEN = (StorageUnavailable, StorageBusy)


class Partition:
    """One that is in use, and how worn it is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.unknown: Counter[Address] = Counter()

    def addresses(self, chance: Random, most: int) -> list[Address]:
        places = chance.sample(PLACES, chance.randint(1, most))
        return [Address(space, self.name, key) for space, key, _ in places]

    @property
    def is_used_up(self) -> bool:
        return self.calls > MAX_CALLS or max(self.unknown.values(), default=0) > MAX_UNKNOWN


class SharedState:
    """What the clients of a scenario have in common: where they meet, and what they note."""

    def __init__(self, hangs: float) -> None:
        self.hangs = hangs
        """Seconds after which a call is said to hang."""
        self.journal = Journal()
        self.partitions: list[str] = []
        """All that were ever used."""
        self._in_use = [self._new() for _ in range(IN_USE)]

    def any_partition(self, chance: Random) -> Partition:
        """One of those in use. One that is worn is replaced by a new one."""
        at = chance.randrange(IN_USE)
        if self._in_use[at].is_used_up:
            self._in_use[at] = self._new()
        self._in_use[at].calls += 1
        return self._in_use[at]

    def _new(self) -> Partition:
        self.partitions.append(f"p{len(self.partitions)}")
        return Partition(self.partitions[-1])


class Client:
    """One of several users of a storage."""

    def __init__(self, name: str, storage: Storage, company: SharedState, chance: Random) -> None:
        self.name = name
        self.wakings = 0
        self._storage = storage
        self._company = company
        self._journal = company.journal
        self._chance = chance
        self._known: dict[Address, Record] = {}
        self._writes = 0

    async def act(self, is_running: Callable[[], bool]) -> None:
        """Read and write until the scenario ends."""
        while is_running():
            partition = self._company.any_partition(self._chance)
            drawn = self._chance.random()
            if drawn < 0.05:
                await self._count(partition)
            elif drawn < 0.4:
                await self.read(partition.addresses(self._chance, most=4))
            else:
                await self._write(partition)
            await asyncio.sleep(self._chance.uniform(0, MAX_PAUSE_SECONDS))

    async def listen(self) -> None:
        """Be woken, again and again, until cancelled."""
        try:
            async with self._storage.watch(THINGS) as watch:
                while True:
                    await watch.changed()
                    self.wakings += 1
        except Exception as error:  # a watch has nothing to raise while its storage is open
            self._journal.complaints.append(f"the watch of {self.name} met {error!r}")

    async def insert(self, address: Address) -> bool:
        """Write a new record with a name that begins so; whether it was acknowledged, and can be read."""
        self._writes += 1
        at = address._replace(key=f"{address.key} {self._writes}")
        result = await self.commit([Insert(record=new_record(at, f'"{at.key}"'))])
        return isinstance(result, Committed) and await self.read([at])

    async def read(self, addresses: Sequence[Address]) -> bool:
        """Whether it was answered."""
        called = clock()
        records = await self._try(self._storage.get_many(addresses, now=NOW))
        if isinstance(records, Lost):
            return False
        self._journal.saw(addresses, records, called)
        for address, record in zip(addresses, records, strict=True):
            self._learn(address, record)
        return True

    async def _count(self, partition: Partition) -> None:
        counts = await self._try(self._storage.counts(QUOTA, partition.name, now=NOW))
        if not isinstance(counts, Lost):
            self._journal.counted.append(Counted(partition=partition.name, number=sum(counts.values())))

    async def _write(self, partition: Partition) -> None:
        addresses = partition.addresses(self._chance, most=self._chance.choice((1, 3)))
        if self._chance.random() < 0.7:
            await self.read(addresses)
        self._writes += 1
        changes = [self._change(address) for address in addresses]
        if is_witnessed := self._chance.random() < 0.4:
            changes = [self._witness(partition, "first"), *changes, self._witness(partition, "last")]
        result = await self.commit(changes)
        if result is Lost.UNKNOWN and not is_witnessed:
            partition.unknown.update(addresses)

    async def commit(self, changes: Sequence[Change]) -> Committed | Refused | Lost:
        guard = GUARD if any(map(_needs_guard, changes)) else None
        called = clock()
        result = await self._try(self._storage.commit(changes, guard=guard, now=NOW))
        self._journal.wrote(changes, guard, result, called)
        for change in changes:
            is_done = isinstance(result, Committed) and not isinstance(change, InsertIfAbsent)
            self._learn(change.address, after(change) if is_done else None)
        return result

    def _change(self, address: Address) -> Change:
        known = self._known.get(address)
        drawn = self._chance.random()
        name = f'"{self.name} {self._writes} {address.space} {address.key}"'
        body = name + " " * self._chance.choice(SIZES)
        if known is None or drawn < 0.1:
            record = new_record(address, body)
            return InsertIfAbsent(record=record) if self._chance.random() < 0.3 else Insert(record=record)
        if drawn < 0.4:
            return Delete(before=known)
        version = known.version + 1
        lane, wake_at = (LANE, version) if version % 2 else (None, None)
        return known.replace_with(body=body, tag=tag_of(version), lane=lane, wake_at=wake_at)

    def _witness(self, partition: Partition, which: str) -> Insert:
        key = f"{self.name} {self._writes} {which}"
        return Insert(record=new_record(Address(WITNESSES, partition.name, key), f'"{key}"'))

    def _learn(self, address: Address, record: Record | None) -> None:
        if record is None:
            self._known.pop(address, None)
        elif address.space != WITNESSES:
            self._known[address] = record

    async def _try(self, call: Awaitable[T]) -> T | Lost:
        """The answer, or how it was lost. What may not be raised is complained about."""
        timeout = asyncio.timeout(self._company.hangs)
        try:
            async with timeout:
                return await call
        except _NOT_WRITTEN as error:
            self._journal.errors[type(error).__name__] += 1
            return Lost.REFUSED
        except StorageFailed as error:
            self._journal.errors[type(error).__name__] += 1
        except Exception as error:  # whatever it is, it should not be
            what = "hangs" if timeout.expired() else f"met {error!r} at {_where(error)}"
            self._journal.complaints.append(f"{self.name} {what}")
        return Lost.UNKNOWN


def new_record(address: Address, body: str) -> Record:
    order = next((n for _, key, n in PLACES if key == address.key), 0)
    lane, wake_at = (None, None) if address.space == WITNESSES else (LANE, 1)
    return Record(
        space=address.space,
        partition=address.partition,
        key=address.key,
        order=order,
        body=body,
        tag=tag_of(1),
        lane=lane,
        wake_at=wake_at,
    )


def tag_of(version: int) -> str:
    """Every other replace leaves the tag as it is."""
    return TAGS[version // 2 % 2]


def after(change: Change) -> Record | None:
    """What stands there if the change is done."""
    match change:
        case Insert(record=record) | InsertIfAbsent(record=record):
            return record
        case Delete():
            return None
        case _:
            return change.after


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def _needs_guard(change: Change) -> bool:
    return isinstance(change, (Insert, InsertIfAbsent)) and change.address.space == QUOTA
