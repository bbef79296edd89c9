"""A process that dies at any of its steps: before it asks, or after the answer came and before it is used.

After that nothing it does has any effect, as after `kill -9`: its hold stays until it runs out.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.feeds import FeedPage, FeedStore, Profile
from perdure.storage import Change, Committed, Guard, Micros, Refused, Storage
from perdure.storage.errors import OutcomeUnknown, StorageUnavailable

from ..forwarding_engine import ForwardingEngine
from .simulation import WorldSource


class SimulatedCrash(BaseException):
    """No code of a dead process runs."""


class CrashPoint:
    """How many steps are left. Each question has two: before it, and after its answer."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def step(self, *, after: bool = False) -> None:
        if self._left == 0:
            self.end(after=after)
        else:
            self._left -= 1

    def end(self, *, after: bool) -> None:
        raise SimulatedCrash


class Trouble(CrashPoint):
    """One request fails, and the run continues."""

    def end(self, *, after: bool) -> None:
        self._left = -1
        raise OutcomeUnknown("the answer was lost") if after else StorageUnavailable("the line was cut")


class CrashingEngine(ForwardingEngine):
    def __init__(self, storage: Storage, life: CrashPoint) -> None:
        self.storage = storage
        self._life = life

    async def line(self, verb: str) -> Storage:
        self._life.step()
        return self.storage

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        answer = await super().commit(changes, guard=guard, now=now)
        self._life.step(after=True)
        return answer


class CrashingSource:
    """The source, as seen by a mortal."""

    name = "mortal"

    def __init__(self, source: WorldSource, life: CrashPoint) -> None:
        self._source = source
        self._life = life

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        self._life.step()
        page = await self._source.page(account_id, limit=limit, cursor=cursor, etag=etag)
        self._life.step()
        return page

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        return await self._source.profiles(actors)


def crashing_store(store: FeedStore, life: CrashPoint) -> FeedStore:
    return FeedStore(Storage(CrashingEngine(store.storage, life)), clock=store.clock)
