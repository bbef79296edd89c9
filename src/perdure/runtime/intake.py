"""Intake: what a worker takes from the queues, when, and how it keeps out of the other workers' way.

A worker that is alone takes the oldest first. One that meets others chooses by chance from ever more of the
oldest, so that a crowd does not run at the same tasks. It goes on taking many at once, because an engine
groups them: taking fewer was tried, and was slower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum, auto
from random import sample, shuffle, uniform

import anyio

from ..storage import Address, Record
from ..storage.errors import NotReadableHere
from ..storage.limits import MAX_PAGE_RECORDS
from ..storage.time_types import to_seconds
from ..tasks import TaskStore
from ..tasks.edits import run_lane
from ..tasks.errors import TaskError
from ..tasks.stored_task import TASKS
from .claiming import REFUSED, AttendantSilent, Claimer
from .config import RuntimeConfig
from .executor import Job
from .function import Function, Functions
from .slots import Slots

log = logging.getLogger("perdure.runtime")

AT_ONCE = 16
"""Claims that are made together, so that an engine can group them."""
MOST_SPREAD = 64
BROKEN = 30.0
"""Seconds for which a task that cannot be claimed is passed over."""
NOT_READABLE_PAUSE = 3600.0
"""Seconds for which a task is ignored that a newer version of perdure wrote, or whose key is missing."""
COLLIDED = 0.004
"""Seconds for which a worker that met another waits, at most."""
GAP = 0.025
"""Seconds between two looks at empty queues, at least; a millisecond more for each queue."""
APART = 0.01
"""Seconds by which workers that are woken together look apart."""


class Intake:
    """Claims what waits, while there are slots."""

    def __init__(
        self,
        store: TaskStore,
        functions: Functions,
        claimer: Claimer,
        slots: Slots,
        config: RuntimeConfig,
        begin: Callable[[Job], None],
    ) -> None:
        self._store = store
        self._functions = functions
        self._claimer = claimer
        self._slots = slots
        self._poll_interval = to_seconds(config.queue_poll_interval)
        self._heartbeat = to_seconds(config.heartbeat_interval)
        self._begin = begin
        self._spread = 0
        self._avoided: dict[tuple[Address, int], float] = {}
        self._is_starved = False
        self._wake = asyncio.Event()
        slots.on_free = self._slot_freed

    async def listen(self) -> None:
        """Note when a task may have become due, in this process or another. Never returns."""
        async with self._store.storage.watch(TASKS, only_lanes=True) as watch:
            while True:
                await watch.changed()
                self._wake.set()
                await asyncio.sleep(GAP)  # a storage that changes all the time wakes us now and then

    async def claim_and_wait(self) -> None:
        """Claim what there is and there is room for, then wait until there may be more."""
        loop = asyncio.get_running_loop()
        await self._claim_all()
        looked_at = loop.time()
        await self._woken()
        if not self._is_starved:
            rest = looked_at + GAP + 0.001 * len(self._functions) - loop.time()
            await asyncio.sleep(max(0.0, rest) + uniform(0, APART))

    async def _woken(self) -> None:
        try:
            async with asyncio.timeout(self._poll_interval * uniform(0.5, 1.5)):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _slot_freed(self) -> None:
        if self._is_starved:
            self._wake.set()

    async def _claim_all(self) -> None:
        """Some of each function, in turn, until nothing is left or there is no room."""
        rest = list(self._functions.values())
        while rest:
            shuffle(rest)
            rest = [function for function in rest if await self._claim_some(function)]
        self._is_starved = any(self._slots.free(function) < 1 for function in self._functions.values())

    async def _claim_some(self, function: Function) -> bool:
        """Claim as many as there are slots for; whether it is worth while to go on."""
        room = min(self._slots.free(function), AT_ONCE)
        if room < 1:
            return False
        waiting = await self._waiting(function, room + self._spread)
        chosen = sample(waiting, min(room, len(waiting))) if self._spread else waiting[:room]
        met = await self._claim_each(chosen, function)
        is_crowded = _Met.OTHERS in met
        self._adapt(is_crowded=is_crowded)
        await asyncio.sleep(uniform(0, COLLIDED) if is_crowded else 0)
        return is_crowded or _Met.NOBODY in met or _Met.NOT_READABLE in met

    async def _waiting(self, function: Function, count: int) -> list[Record]:
        """The oldest that wait for this function, without those that we tried in vain or just took."""
        now = self._store.clock()
        limit = min(MAX_PAGE_RECORDS, count + len(self._avoided))
        lane = run_lane(self._store.application, function.name)
        found = await self._store.storage.due(lane, until=now, limit=limit, now=now)
        if not self._avoided:
            return found
        at = asyncio.get_running_loop().time()
        self._avoided = {place: until for place, until in self._avoided.items() if until > at}
        return [each for each in found if (each.address, each.version) not in self._avoided][:count]

    async def _claim_each(self, chosen: Sequence[Record], function: Function) -> list[_Met]:
        """Claim all of these at once. Whatever happens, a claim that is made is begun."""
        met: list[_Met | BaseException] = []
        with anyio.CancelScope(shield=True):
            claims = (self._claim(each, function) for each in chosen)
            met += await asyncio.gather(*claims, return_exceptions=True)
        for error in met:
            if isinstance(error, BaseException):
                raise error
        return [each for each in met if isinstance(each, _Met)]

    def _avoid(self, waiting: Record, seconds: float) -> None:
        """Do not try this version of it for so long: the index may lag, or the task may be broken."""
        if seconds:
            self._avoided[waiting.address, waiting.version] = asyncio.get_running_loop().time() + seconds

    def _adapt(self, *, is_crowded: bool) -> None:
        """Choose from more at each collision, from a little less without."""
        self._spread = min(MOST_SPREAD, 2 * self._spread + 8) if is_crowded else max(0, self._spread - 1)

    async def _claim(self, waiting: Record, function: Function) -> _Met:
        """Claim this one and begin it."""
        slot = self._slots.take(function)
        if slot is None:
            return _Met.TROUBLE
        self._avoid(waiting, 2 * self._store.storage.lag)
        try:
            claim = await self._claimer.claim(waiting, function)
        except BaseException as error:
            slot.give_back()
            return self._refused(waiting, error)
        if claim is None:
            slot.give_back()
        else:
            self._begin(Job(claim, function, slot))
        return _Met.NOBODY

    def _refused(self, waiting: Record, error: BaseException) -> _Met:
        """What a claim met that failed."""
        if isinstance(error, REFUSED):
            return _Met.OTHERS
        if isinstance(error, AttendantSilent):
            self._avoid(waiting, self._heartbeat)
            return _Met.TROUBLE
        if isinstance(error, NotReadableHere):
            log.warning("task %s is left to other workers: %s", waiting.key, error)
            self._avoid(waiting, NOT_READABLE_PAUSE)
            return _Met.NOT_READABLE
        if not isinstance(error, TaskError):
            raise error
        log.error("task %s cannot be claimed", waiting.key, exc_info=error)
        self._avoid(waiting, BROKEN)
        return _Met.TROUBLE


class _Met(Enum):
    """Whom a claim met."""

    NOBODY = auto()
    OTHERS = auto()
    """Another worker was quicker."""
    TROUBLE = auto()
    """No use in trying again at once."""
    NOT_READABLE = auto()
    """This process cannot read the task, and what waits behind it can be claimed."""
