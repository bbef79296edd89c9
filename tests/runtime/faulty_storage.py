"""Test doubles: a line to the storage that a test can cut, break, deafen and listen in on; a clock to move.

Nothing here knows the engine: a wire lies around any storage, and only one replica is on it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias, Unpack

from msgspec.structs import replace

from perdure.runtime import App, Runtime, RuntimeConfig
from perdure.runtime import lease as leases
from perdure.storage import (
    Address,
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    LanePosition,
    Micros,
    Record,
    Refused,
    Replace,
    Space,
    Storage,
    Watch,
)
from perdure.storage.errors import StorageBusy, StorageClosed, StorageFailed
from perdure.storage.time_types import system_clock, to_seconds
from perdure.tasks import Owner, Snapshot, Status
from perdure.tasks.task_snapshot import TASKS, lease_address

from ..conditions import wait_until
from ..forwarding_engine import ForwardingEngine
from .replicas import QUICK, UNHURRIED, Options, Replicas

ME = Owner.local()

STEADY_HEARTBEAT = replace(UNHURRIED, heartbeat_interval=0.5)
"""For work that lasts for some heartbeats, or whose writes fail for a while."""
SLOW_HEARTBEAT = replace(QUICK, heartbeat_interval=0.4)
"""Where recovery is feared: a lease lasts 1.2 seconds."""

Hook: TypeAlias = Callable[[Sequence[Change]], Awaitable[None]]


async def nothing(_: Sequence[Change]) -> None:
    """Leave the commit alone."""


class FaultyLink(ForwardingEngine):
    """One replica's line to the storage."""

    name = "wire"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.before: Hook = nothing
        """Awaited before each commit; what it raises is raised, and nothing is written."""
        self.after: Hook = nothing
        """Awaited after each commit; what it raises is raised, though all is written."""
        self.is_deaf = False
        """Whether watches never wake."""
        self.open_watches = 0
        self.looks = 0
        """How often it was asked what is due, and had its answer."""
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._is_dead = False

    def cut(self) -> None:
        """From now on calls hang, as in a process that is frozen, until the line is mended."""
        self._is_up.clear()

    def mend(self) -> None:
        self.before = self.after = nothing
        self._is_up.set()

    def hang_up_if_cut(self) -> None:
        """Whoever hangs, or calls from now on, hears that the storage is closed."""
        self._is_dead = not self._is_up.is_set()
        self._is_up.set()

    async def around(self, storage: Storage) -> Storage:
        self.storage = storage
        return Storage(self)

    async def line(self, verb: str) -> Storage:
        self.calls[verb] += 1
        await self._is_up.wait()
        if self._is_dead:
            raise StorageClosed("the line is dead")
        return self.storage

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        storage = await self.line("commit")
        await self.before(changes)
        result = await storage.commit(changes, guard=guard, now=now)
        await self.after(changes)
        return result

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        found = await super().due(lane, after=after, until=until, limit=limit, now=now)
        self.looks += 1
        return found

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        self.calls["watch"] += 1
        return TappedWatch(self, None if self.is_deaf else self.storage.watch(space, partition, key))


class TappedWatch(Watch):
    """A watch that is counted, and that never wakes where the wire is deaf."""

    def __init__(self, wire: FaultyLink, inner: Watch | None) -> None:
        self._wire = wire
        self._inner = inner
        wire.open_watches += 1

    async def changed(self) -> None:
        if self._inner is None:
            await asyncio.Event().wait()
        else:
            await self._inner.changed()

    async def close(self) -> None:
        self._wire.open_watches -= 1
        if self._inner is not None:
            await self._inner.close()


class Beats:
    """The heartbeats of one lease."""

    def __init__(self) -> None:
        self.begun = 0
        self.over = 0
        self._begun_at = 0.0

    def begin(self) -> None:
        self.begun += 1
        self._begun_at = asyncio.get_running_loop().time()

    @property
    def age(self) -> float:
        """Seconds since the last began."""
        return asyncio.get_running_loop().time() - self._begun_at


class Fair(FaultyLink):
    """A line that does not show who looks for lost work a lease whose heartbeat is late, or just comes.

    It is for those who live, who look dead where the machine stands still for a moment. They have
    `SLOW_HEARTBEAT`.
    """

    def __init__(self, living: dict[Address, Beats]) -> None:
        super().__init__()
        self._living = living

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        extended = [self._living.setdefault(each.address, Beats()) for each in changes if is_held(each)]
        for beats in extended:
            beats.begin()
        try:
            return await super().commit(changes, guard=guard, now=now)
        finally:
            for beats in extended:
                beats.over += 1

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        before = {address: beats.over for address, beats in self._living.items()}
        found = await super().due(lane, after=after, until=until, limit=limit, now=now)
        late = {
            address
            for address, beats in self._living.items()
            if before.get(address) != beats.begun
            or beats.age > 1.2 * to_seconds(SLOW_HEARTBEAT.heartbeat_interval)
        }
        return [each for each in found if each.address not in late]


def is_held(change: Change) -> bool:
    """Whether a lease is taken, or extended."""
    return isinstance(change, (Insert, Replace)) and leases.written(change).tag == leases.HELD


@asynccontextmanager
async def open_faulty(
    replicas: Replicas,
    wire: FaultyLink,
    app: App,
    config: RuntimeConfig = QUICK,
    **options: Unpack[Options],
) -> AsyncGenerator[Runtime]:
    """A replica on a wire. When the block is left the replica stops; a wire that is cut is hung up first."""
    subject = replicas.subject

    async def client() -> Storage:
        return await wire.around(await subject.another_client())

    async with AsyncExitStack() as stack:
        tapped = Replicas(replace(subject, second_client=client), stack)
        runtime = await tapped.start(app, config, **options)
        stack.callback(wire.hang_up_if_cut)  # the last callback is the first to be called
        yield runtime


class MovedClock:
    """A clock that goes as the true one does, from wherever it is set."""

    def __init__(self, ahead: Micros = 0) -> None:
        self.ahead = ahead

    def __call__(self) -> Micros:
        return system_clock() + self.ahead


async def lease_of(runtime: Runtime, task: Snapshot) -> Record | None:
    """The lease as it stands."""
    return await runtime.store.storage.get(lease_address(task.record), now=runtime.store.clock())


async def lease_of_process(runtime: Runtime, process: str) -> Record | None:
    """The lease of a process in which clients wait."""
    address = leases.attendance_address(process)
    return await runtime.store.storage.get(address, now=runtime.store.clock())


async def token_of(runtime: Runtime, task: Snapshot) -> int:
    """The fencing token: the version of a lease that is there."""
    lease = await lease_of(runtime, task)
    assert lease is not None
    return lease.version


async def several_heartbeats(runtime: Runtime, task: Snapshot, count: int = 3) -> None:
    """Return when the lease of a running task was extended so many times."""
    before = await token_of(runtime, task)

    async def are_over() -> bool:
        return await token_of(runtime, task) >= before + count

    await wait_until(are_over)


async def now(runtime: Runtime, task: Snapshot) -> Snapshot:
    """The task as it is by now."""
    return await runtime.store.get(task.task.owner, task.task.task_id)


async def until_released(runtime: Runtime, task: Snapshot) -> None:
    """Return when nobody holds the task any more."""

    async def is_released() -> bool:
        return not (await now(runtime, task)).task.is_claimed

    await wait_until(is_released)


async def until_status(runtime: Runtime, task: Snapshot, status: Status) -> None:
    """Return when the task has this status."""

    async def is_so() -> bool:
        return (await now(runtime, task)).task.status is status

    await wait_until(is_so)


def ends_a_task(changes: Sequence[Change]) -> bool:
    """Whether a commit removes a lease together with the last write of its task."""
    return any(change.address.space == TASKS for change in changes) and any(
        isinstance(change, Delete) for change in changes
    )


def creates_a_task(changes: Sequence[Change]) -> bool:
    return any(isinstance(change, Insert) and change.address.space == TASKS for change in changes)


def busy(_: Sequence[Change]) -> Awaitable[None]:
    """A hook: others hold the storage."""
    raise StorageBusy("others held the storage for too long")


def failed(_: Sequence[Change]) -> Awaitable[None]:
    """A hook: the engine fails, and says no more."""
    raise StorageFailed("the connection was lost")
