"""Storages that are wrong on purpose: a check that never fails proves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from perdure.storage import (
    Accepted,
    Change,
    Committed,
    Guard,
    Insert,
    InsertIfAbsent,
    LanePosition,
    MaintenanceReport,
    Micros,
    PageRequest,
    Record,
    Refused,
    Replace,
    Space,
    Storage,
    Tag,
    Watch,
)
from perdure.storage.errors import OutcomeUnknown, StorageUnavailable
from perdure.storage.watch import WatchRegistry

from ..forwarding_engine import ForwardingEngine


class Broken(ForwardingEngine):
    """Right, but for every twelfth commit or so."""

    often = 0.08

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._chance = Random(1)

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        if self._chance.random() < self.often:
            return await self.wrong(changes, guard, now)
        return await super().commit(changes, guard=guard, now=now)

    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        return await super().commit(changes, guard=guard, now=now)


class SwallowsWhatItAcknowledges(Broken):
    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        return Committed(tuple(Accepted(_version(change)) for change in changes))


class RepeatsAWrite(Broken):
    """As a driver does that takes a lost answer for a lost request."""

    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        await self.storage.commit(changes, guard=guard, now=now)
        return await self.storage.commit(changes, guard=guard, now=now)


class WritesAgainOnTop(Broken):
    """As a client does that reads first, and then takes its own write for another's."""

    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        result = await self.storage.commit(changes, guard=guard, now=now)
        again = [_again(change) for change in changes if isinstance(change, Replace)]
        if again and isinstance(result, Committed):
            await self.storage.commit(again, now=now)
        return result


class IsUnavailableThoughItWrote(Broken):
    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        await self.storage.commit(changes, guard=guard, now=now)
        raise StorageUnavailable("it was written all the same")


class LeavesHalfACommit(Broken):
    """Reports that the outcome is unknown."""

    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        await self.storage.commit(changes[: (len(changes) + 1) // 2], guard=guard, now=now)
        raise OutcomeUnknown("half of it was written")


class ForgetsTheGuard(Broken):
    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        return await self.storage.commit(changes, guard=None, now=now)


class RaisesWhatTheDriverRaises(Broken):
    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        raise ConnectionResetError


class HangsNowAndThen(Broken):
    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        return await asyncio.Future()


class NeverRecovers(Broken):
    """From the first fault on."""

    async def wrong(self, changes: Sequence[Change], guard: Guard | None, now: Micros) -> Committed | Refused:
        self.often = 1.0
        raise StorageUnavailable("forever")


class GoesDeaf(Broken):
    """A watch hears nothing, ever."""

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return Watch(WatchRegistry(), (space, partition, key))


class CountsOneTooMany(Broken):
    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        counts = await super().counts(space, partition, now=now)
        return {tag: number + (partition is None) for tag, number in counts.items()}


class ListsTooLittle(Broken):
    """Over all partitions."""

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        found = await super().page(request, now=now)
        return [record for record in found if request.partition is not None or record.key != "k1"]


class ForgetsATimer(Broken):
    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        return (await super().due(lane, after=after, until=until, limit=limit, now=now))[1:]


class FindsSomething(Broken):
    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        return MaintenanceReport(findings=("a counter is wrong",))


def _version(change: Change) -> int:
    """Return the result of a change that was accepted."""
    if isinstance(change, (Insert, InsertIfAbsent)):
        return 1
    return change.before.version + isinstance(change, Replace)


def _again(change: Replace) -> Replace:
    return change.after.replace_with(body=change.after.body, tag=change.before.tag)
