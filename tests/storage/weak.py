"""A memory engine that is as weak as the contract allows.

Layers above the storage use nothing but its seven verbs, so a layer that works on this engine relies on
nothing that the contract does not promise. Every weakness comes from a seed:

- Verbs across partitions lag by up to `lag` seconds, each record by its own delay (promises 11, 12, 13, 16).
- A watch misses some changes and sometimes wakes for nothing (promise 18).
- A verb lets other tasks run before and after it took effect, as every engine with a server or a thread does.
- The answer to a commit may be lost (OutcomeUnknown); half of these commits were written. A test says which
  commits its layer repeats by itself: `may_lose` is called with the changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count, islice
from random import Random
from typing import TypeAlias

from perdure.storage import (
    Address,
    Change,
    Committed,
    Guard,
    LanePosition,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Space,
    Tag,
    Watch,
)
from perdure.storage.errors import OutcomeUnknown
from perdure.storage.memory import MemoryEngine

LAG = 0.1
"""Seconds. Long enough for a test that ignores the lag to fail, short enough to wait for."""
MISSED_WAKE_UPS = 0.1
SPURIOUS_WAKE_UPS = 0.1
MAX_SPURIOUS_DELAY = 0.05
MAX_PAUSES = 2
LOST_ANSWERS = 0.03

MayLose: TypeAlias = Callable[[Sequence[Change]], bool]


def loses_nothing(_: Sequence[Change]) -> bool:
    """For callers that report an unknown outcome instead of repeating the commit."""
    return False


class _Index(MemoryEngine):
    """What verbs across partitions see: the records as they were a moment ago."""

    def __init__(self, lag: float, random: Random) -> None:
        super().__init__()
        self._lag = lag
        self._random = random
        self._times: list[tuple[float, int]] = []
        self._changes: dict[int, tuple[Address, Record | None]] = {}
        self._numbers = count()
        self._newest: dict[Address, float] = {}

    def enqueue(self, address: Address, record: Record | None) -> None:
        """Apply this change within the lag, after earlier changes of the same address."""
        time = asyncio.get_running_loop().time() + self._random.uniform(0, self._lag)
        self._newest[address] = max(time, self._newest.get(address, time))
        number = next(self._numbers)
        self._changes[number] = (address, record)
        heappush(self._times, (self._newest[address], number))

    def catch_up(self) -> _Index:
        """Apply the changes whose time has come."""
        now = asyncio.get_running_loop().time()
        while self._times and self._times[0][0] <= now:
            address, record = self._changes.pop(heappop(self._times)[1])
            before = self._records.get(address)
            if before is not None:
                self._remove(before)
            if record is not None:
                self._add(record)
        return self

    def overdue(self, until: Micros) -> Iterator[Record]:
        return self._expired(until)


class WeakMemoryEngine(MemoryEngine):
    """Keeps every promise of the contract except that it is durable, and promises nothing else."""

    def __init__(
        self,
        seed: object,
        *,
        lag: float = LAG,
        missed_wake_ups: float = MISSED_WAKE_UPS,
        may_lose: MayLose = loses_nothing,
    ) -> None:
        super().__init__()
        self.lag = lag
        self._missed_wake_ups = missed_wake_ups
        self._random = Random(str(seed))
        self._may_lose = may_lose
        self._index = _Index(lag, self._random)

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        await self._pause()
        found = await super().get(addresses, now=now)
        await self._pause()
        return found

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        await self._pause()
        is_lost = self._may_lose(changes) and self._random.random() < LOST_ANSWERS
        if is_lost and self._random.random() < 0.5:
            raise OutcomeUnknown("the commit was lost on purpose")
        result = await super().commit(changes, guard=guard, now=now)
        await self._pause()
        if is_lost:
            raise OutcomeUnknown("the answer was lost on purpose")
        return result

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        await self._pause()
        if request.partition is None:
            return await self._index.catch_up().page(request, now=now)
        return await super().page(request, now=now)

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        await self._pause()
        return await self._index.catch_up().due(lane, after=after, until=until, limit=limit, now=now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        await self._pause()
        if partition is None:
            return await self._index.catch_up().counts(space, partition, now=now)
        return await super().counts(space, partition, now=now)

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        await self._pause()
        seen = self._index.catch_up().overdue(until)
        overdue = list(islice((each for each in seen if self._records.get(each.address) == each), limit))
        for record in overdue:
            self._remove(record)
        self._watches.wake(record.address for record in overdue)
        return [Purged(*record.address, record.tag) for record in overdue]

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return _WeakWatch(super().watch(space, partition, key), self._missed_wake_ups, self._random)

    async def settle(self) -> None:
        """Return when the verbs across partitions see everything that was written before."""
        await asyncio.sleep(self.lag)

    async def _pause(self) -> None:
        for _ in range(self._random.randint(0, MAX_PAUSES)):
            await asyncio.sleep(0)

    def _add(self, record: Record) -> None:
        super()._add(record)
        self._index.enqueue(record.address, record)

    def _remove(self, record: Record) -> None:
        super()._remove(record)
        self._index.enqueue(record.address, None)


class _WeakWatch(Watch):
    def __init__(self, watch: Watch, missed_wake_ups: float, random: Random) -> None:
        self._watch = watch
        self._missed_wake_ups = missed_wake_ups
        self._random = random

    async def changed(self) -> None:
        if self._random.random() < SPURIOUS_WAKE_UPS:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._random.uniform(0, MAX_SPURIOUS_DELAY)):
                    await self._watch.changed()
            return
        await self._watch.changed()
        while self._random.random() < self._missed_wake_ups:
            await self._watch.changed()

    async def close(self) -> None:
        await self._watch.close()
