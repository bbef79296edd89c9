"""Intake: a worker claims queued tasks while it has free slots, and avoids collisions with other workers.

Without collisions, a worker claims the oldest tasks first. After each collision, it chooses at random from a
larger number of the oldest tasks, so that workers rarely try to claim the same task. It still claims many
tasks at once, because a storage engine groups these commits. Claiming fewer tasks was slower in measurements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum, auto
from random import sample, shuffle, uniform

import anyio

from ..storage import Record
from ..storage.errors import NotReadableHere
from ..storage.time_types import to_seconds
from ..tasks import TaskStore
from ..tasks.edits import run_lane
from ..tasks.errors import TaskError
from ..tasks.task_snapshot import TASKS
from .claims import REFUSED, AttendantLate, Claimer
from .config import RuntimeConfig
from .executor import Job
from .function import Function, Functions
from .lane import ERROR_PAUSE, Lane
from .slots import Slots

log = logging.getLogger("perdure.runtime")

MAX_CLAIMS_AT_ONCE = 16
"""Maximum number of tasks that are claimed together, so that an engine can group the commits."""
MAX_SPREAD = 64
COLLISION_DELAY = 0.004
"""Maximum number of seconds for which a worker waits after a collision with another worker."""
MIN_READ_INTERVAL = 0.025
"""Minimum number of seconds between two reads of empty queues; a millisecond is added for each queue."""
READ_JITTER = 0.01
"""Maximum number of seconds by which the reads of workers that wake up together are spread."""


class Intake:
    """Claims queued tasks while there are free slots."""

    def __init__(
        self,
        store: TaskStore,
        functions: Functions,
        claimer: Claimer,
        slots: Slots,
        config: RuntimeConfig,
        start: Callable[[Job], None],
    ) -> None:
        self._store = store
        self._functions = functions
        self._claimer = claimer
        self._slots = slots
        self._poll_interval = to_seconds(config.queue_poll_interval)
        self._heartbeat = to_seconds(config.heartbeat_interval)
        self._start = start
        self._spread = 0
        self._lanes: dict[str, Lane] = {}
        self._is_starved = False
        self._not_readable: list[tuple[str, NotReadableHere]] = []
        """The tasks that were found unreadable since the last log line, and why."""
        self._wake = asyncio.Event()
        slots.on_free = self._slot_freed

    async def listen(self) -> None:
        """Wake `claim_and_wait` when a change by any process may have made a task due. Never returns."""
        async with self._store.storage.watch(TASKS, only_lanes=True) as watch:
            while True:
                await watch.changed()
                self._wake.set()
                await asyncio.sleep(MIN_READ_INTERVAL)  # however often the storage changes

    async def claim_and_wait(self) -> None:
        """Claim queued tasks until no task or no slot is left. Then wait until there may be both."""
        loop = asyncio.get_running_loop()
        await self._claim_all()
        looked_at = loop.time()
        await self._woken()
        if not self._is_starved:
            rest = looked_at + MIN_READ_INTERVAL + 0.001 * len(self._functions) - loop.time()
            await asyncio.sleep(max(0.0, rest) + uniform(0, READ_JITTER))

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
        """Claim tasks of each function in turn, until no task or no slot is left."""
        rest = list(self._functions.values())
        try:
            while rest:
                shuffle(rest)
                rest = [function for function in rest if await self._claim_some(function)]
        finally:
            self._log_not_readable()
        self._is_starved = any(self._slots.free(function) < 1 for function in self._functions.values())

    def _log_not_readable(self) -> None:
        """Log the tasks that this process cannot read, which may be many: one line for each kind of error."""
        tasks, self._not_readable = self._not_readable, []
        for kind in dict.fromkeys(type(error) for _, error in tasks):
            (key, error), *others = [each for each in tasks if type(each[1]) is kind]
            which = f"{len(others) + 1} tasks, such as {key}," if others else f"task {key}"
            log.warning("leaving %s for other workers: %s", which, error)

    async def _claim_some(self, function: Function) -> bool:
        """Claim tasks for the free slots. Return whether there may be more to claim."""
        room = min(self._slots.free(function), MAX_CLAIMS_AT_ONCE)
        if room < 1:
            return False
        waiting = await self._lane_of(function).due(self._store.clock(), room + self._spread)
        chosen = sample(waiting, min(room, len(waiting))) if self._spread else waiting[:room]
        results = await self._claim_each(chosen, function)
        is_crowded = _ClaimResult.LOST in results
        self._adapt(is_crowded=is_crowded)
        await asyncio.sleep(uniform(0, COLLISION_DELAY) if is_crowded else 0)
        return is_crowded or _ClaimResult.DONE in results or _ClaimResult.NOT_READABLE in results

    def _lane_of(self, function: Function) -> Lane:
        if function.name not in self._lanes:  # functions may be added while a worker runs
            name = run_lane(self._store.application, function.name)
            self._lanes[function.name] = Lane(self._store.storage, name)
        return self._lanes[function.name]

    async def _claim_each(self, chosen: Sequence[Record], function: Function) -> list[_ClaimResult]:
        """Claim these tasks concurrently. Claimed tasks are started even if this call is cancelled."""
        results: list[_ClaimResult | BaseException] = []
        with anyio.CancelScope(shield=True):
            claims = (self._claim(each, function) for each in chosen)
            results += await asyncio.gather(*claims, return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error
        return [each for each in results if isinstance(each, _ClaimResult)]

    def _adapt(self, *, is_crowded: bool) -> None:
        """Choose from more tasks after a collision, and from one fewer without a collision."""
        self._spread = min(MAX_SPREAD, 2 * self._spread + 8) if is_crowded else max(0, self._spread - 1)

    async def _claim(self, waiting: Record, function: Function) -> _ClaimResult:
        """Claim a task and start it."""
        slot = self._slots.take(function)
        if slot is None:
            return _ClaimResult.POSTPONED
        lane = self._lane_of(function)
        if self._store.storage.lag:
            lane.skip(waiting, 2 * self._store.storage.lag)
        try:
            claim = await self._claimer.claim(waiting, function)
        except BaseException as error:
            slot.release()
            return self._refused(waiting, lane, error)
        if claim is None:
            slot.release()
        else:
            self._start(Job(claim, function, slot))
        return _ClaimResult.DONE

    def _refused(self, waiting: Record, lane: Lane, error: BaseException) -> _ClaimResult:
        """Return the result of a claim that raised this error."""
        if isinstance(error, REFUSED):
            return _ClaimResult.LOST
        if isinstance(error, AttendantLate):
            lane.skip(waiting, self._heartbeat)
            return _ClaimResult.POSTPONED
        if isinstance(error, NotReadableHere):
            self._not_readable.append((waiting.key, error))
            lane.skip(waiting)
            return _ClaimResult.NOT_READABLE
        if not isinstance(error, TaskError):
            raise error
        log.error("could not claim task %s", waiting.key, exc_info=error)
        lane.skip(waiting, ERROR_PAUSE)
        return _ClaimResult.POSTPONED


class _ClaimResult(Enum):
    """The result of an attempt to claim a task."""

    DONE = auto()
    """The task was claimed, or was ended because it must not run."""
    LOST = auto()
    """Another worker was faster."""
    POSTPONED = auto()
    """The task cannot be claimed now. An immediate retry would not help."""
    NOT_READABLE = auto()
    """This process cannot read the task. It is skipped, so the tasks behind it can be claimed."""
