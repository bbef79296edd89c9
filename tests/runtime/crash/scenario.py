"""The storm: starts processes, kills and freezes them, lets a healthy one finish, and gathers the evidence.

What happens is drawn from one seed; what it meets, no seed decides.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from perdure.runtime.lease import LEASES
from perdure.storage import Insert, Record, Space, Storage, open_storage
from perdure.storage.time_types import system_clock, to_seconds
from perdure.tasks.lifecycle import ACTIVE_STATUSES
from perdure.tasks.task_snapshot import TASKS

from ...conditions import wait_until_stopped
from ...fork_server import DEVNULL, PIPE, ForkedProcess, spawn
from ...storage.engines import new_url
from . import journal
from .functions import QUICK, beating
from .journal import Began, Cancelled, Complained, Event, Fault, Heard, Journal, Struck
from .process import Orders, Role
from .recording_engine import Doom, Moment

ROOT = Path(__file__).parents[3]
CAST: tuple[Role, ...] = ("worker", "worker", "server", "server", "client", "client")
MOMENTS: tuple[Moment, ...] = ("before", "during", "after")
DRAINED_WITHIN = 120.0
"""Seconds after which a task that has not ended is called stuck."""
DISMISSED_WITHIN = 30.0
PROBES = Space("probes")
PATIENCE = {"sqlite": "?busy_timeout=300", "redis": "&timeout=60"}
"""Options of engines that give up sooner than others."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen."""

    url: str
    folder: Path
    """For the journals, and for what the processes print before they die."""
    seed: int
    seconds: float
    kills: int
    """Besides those that processes arrange for themselves."""
    cast: tuple[Role, ...] = CAST
    doomed: float = 1 / 3
    """The part of the processes that die at a commit of their own."""
    heartbeat: float = to_seconds(QUICK.heartbeat_interval)
    broken: str | None = None

    @property
    def lease(self) -> float:
        return beating(self.heartbeat).lease


async def new_storage(engine: str, folder: Path) -> str:
    """Of one of the five, as patient as a process may be frozen: it must not find that all took too long."""
    return await new_url(engine, folder) + PATIENCE.get(engine, "")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be judged."""

    events: list[Event]
    tasks: dict[str, Record]
    """Every task in the storage, at the very end."""
    drained: dict[str, Record]
    """The same when all of them had ended, before a frozen worker went on."""
    leases: list[Record]
    findings: tuple[str, ...]
    """Of the storage about itself."""


async def run(plan: Plan) -> Evidence:
    """Everything, in its order."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    async with await open_storage(plan.url) as storage, ProcessPool(plan).on_stage() as troupe:
        await strike(troupe, plan)
        sleeper = await troupe.freeze_one(storage)
        await troupe.kill_all_but(sleeper)
        drainer = await troupe.start("drainer")
        await drained(storage, troupe.journal)
        before = await everything(storage, TASKS)
        troupe.thaw(sleeper)
        await asyncio.sleep(3 * plan.lease + storage.lag)  # in which it would write what it still wants to
        await troupe.dismiss(drainer)
        return await collect_evidence(storage, plan.folder, by_key(before))


async def strike(troupe: ProcessPool, plan: Plan) -> None:
    """Kill, and now and then freeze or dismiss, whatever the victim is doing. On a machine so slow that
    the processes died before they did anything, go on.
    """
    chance = Random(f"strikes {plan.seed}")
    for number in range(5 * plan.kills):
        if number >= plan.kills and has_met_enough(journal.read(plan.folder)):
            return
        await asyncio.sleep(plan.seconds / plan.kills * chance.uniform(0.5, 1.5))
        if troupe.awake:
            troupe.kill(chance.choice(troupe.awake))
        if troupe.awake and chance.random() < 0.3:
            troupe.freeze_a_while(chance.choice(troupe.awake), plan.lease * chance.uniform(1.2, 4))
        if troupe.awake and chance.random() < 0.2:
            troupe.ask_to_end(chance.choice(troupe.awake))


def has_met_enough(events: list[Event]) -> bool:
    """The storm met what it is there for: tasks of lost workers that were begun again, some that were
    cancelled, an answer. Flaky ones are begun again without it.
    """
    begun_again = {
        event.task
        for event in events
        if isinstance(event, Began) and event.attempt > 1 and event.function != "flaky"
    }
    cancelled = {event.task for event in events if isinstance(event, Cancelled)}
    heard = any(isinstance(event, Heard) for event in events)
    return len(begun_again) >= 3 and len(cancelled) >= 3 and heard


class ProcessPool:
    """The processes. Whoever dies is replaced, until the storm is over."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._chance = Random(f"troupe {plan.seed}")
        self.journal = Journal(plan.folder, "storm")
        self._processes: dict[str, ForkedProcess] = {}
        self._asleep: set[str] = set()
        self._dismissed: set[str] = set()
        self._started = 0
        self._is_over = False
        self._attendants: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def on_stage(self) -> AsyncGenerator[ProcessPool]:
        try:
            for role in self._plan.cast:
                await self.start(role)
            yield self
        finally:
            await self.kill_all_but(None)
            await asyncio.gather(*self._attendants, return_exceptions=True)

    async def start(self, role: Role) -> str:
        self._started += 1
        is_healthy = role == "drainer"
        orders = Orders(
            role=role,
            name=f"{role}-{self._started}",
            url=self._plan.url,
            folder=str(self._plan.folder),
            seed=self._chance.getrandbits(32),
            heartbeat=self._plan.heartbeat,
            doom=None if is_healthy else self._doom(),
            broken=None if is_healthy else self._plan.broken,
        )
        self._processes[orders.name] = await self._spawn(orders)
        self._attend(self._replace(role, orders.name))
        if self._is_over and not is_healthy:
            self.kill(orders.name)
        return orders.name

    async def _spawn(self, orders: Orders) -> ForkedProcess:
        command = ("-m", "tests.runtime.crash.process", msgspec.json.encode(orders).decode())
        with (self._plan.folder / "stderr.txt").open("ab") as complaints:
            return await spawn(*command, cwd=ROOT, stdin=PIPE, stdout=DEVNULL, stderr=complaints)

    def _doom(self) -> Doom | None:
        if self._chance.random() >= self._plan.doomed:
            return None
        return Doom(self._chance.randint(1, 200), self._chance.choice(MOMENTS))

    async def _replace(self, role: Role, name: str) -> None:
        code = await self._processes[name].wait()
        del self._processes[name]
        self._asleep.discard(name)
        if code != -signal.SIGKILL and (code != 0 or name not in self._dismissed):
            self.journal.add(Complained(text=f"{name} ended by itself with {code}"))
        if not self._is_over:
            await self.start(role)

    def _attend(self, work: Coroutine[None, None, None]) -> None:
        attendant = asyncio.create_task(work)
        self._attendants.add(attendant)
        attendant.add_done_callback(self._attendants.discard)

    @property
    def awake(self) -> list[str]:
        return [name for name in self._processes if name not in self._asleep]

    # Striking

    def kill(self, name: str) -> None:
        self._strike(name, "killed", signal.SIGKILL)

    def freeze_a_while(self, name: str, seconds: float) -> None:
        self._freeze(name)
        asyncio.get_running_loop().call_later(seconds, self.thaw, name)

    async def freeze_one(self, storage: Storage) -> str:
        """Freeze a worker for good, and not while it holds a lock that others wait for."""
        while True:
            await asyncio.sleep(0.02)
            for name in [each for each in self.awake if each.startswith("worker") and self._is_at_work(each)]:
                process = self._processes.get(name)
                if process is None:  # it has ended while another was frozen
                    continue
                self._freeze(name)
                await wait_until_stopped(process.pid)
                if name in self._processes and await others_can_write(storage):
                    return name
                self.thaw(name)

    def _is_at_work(self, name: str) -> bool:
        """Who is still connecting would give up."""
        path = self._plan.folder / f"{name}.jsonl"
        return path.exists() and path.stat().st_size > 0

    async def kill_all_but(self, survivor: str | None) -> None:
        self._is_over = True
        for name in self._processes.keys() - {survivor}:
            self.kill(name)
        while self._processes.keys() - {survivor}:  # noqa: ASYNC110 - one may just be starting
            await asyncio.sleep(0.01)

    def ask_to_end(self, name: str) -> None:
        """As a redeploy does: what runs may end, or is given back."""
        stdin = self._processes[name].stdin
        if stdin is not None and name not in self._dismissed:
            self._dismissed.add(name)
            self.journal.add(Struck(victim=name, how="dismissed"))
            stdin.close()

    async def dismiss(self, name: str) -> None:
        """Let a process end in good order, and see that it does."""
        process = self._processes[name]
        self.ask_to_end(name)
        try:
            async with asyncio.timeout(DISMISSED_WITHIN):
                await process.wait()
        except TimeoutError:
            self.journal.add(Complained(text=f"{name} was told to stop, and did not"))

    def _freeze(self, name: str) -> None:
        self._asleep.add(name)
        self._strike(name, "frozen", signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        if name in self._asleep and name in self._processes:
            self._asleep.discard(name)
            self._strike(name, "thawed", signal.SIGCONT)

    def _strike(self, name: str, how: Fault, number: signal.Signals) -> None:
        process = self._processes.get(name)
        if process is not None and process.returncode is None:
            self.journal.add(Struck(victim=name, how=how))
            process.send_signal(number)


# The storage, from outside


async def others_can_write(storage: Storage) -> bool:
    key = str(system_clock())
    probe = Record(space=PROBES, partition="probes", key=key, order=0, body="{}")
    try:
        async with asyncio.timeout(1):
            await storage.commit([Insert(record=probe)], now=system_clock())
    except TimeoutError:
        return False
    return True


async def drained(storage: Storage, record: Journal) -> None:
    """Wait until every task has ended."""
    deadline = asyncio.get_running_loop().time() + DRAINED_WITHIN
    while active := await count_active(storage):
        if asyncio.get_running_loop().time() > deadline:
            record.add(Complained(text=f"{active} tasks did not end within {DRAINED_WITHIN:g} s"))
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(storage.lag)


async def count_active(storage: Storage) -> int:
    counts = await storage.counts(TASKS, now=system_clock())
    return sum(counts.get(status, 0) for status in ACTIVE_STATUSES)


async def collect_evidence(storage: Storage, folder: Path, before: dict[str, Record]) -> Evidence:
    """All there is to judge by now."""
    return Evidence(
        events=journal.read(folder),
        tasks=by_key(await everything(storage, TASKS)),
        drained=before,
        leases=await everything(storage, LEASES),
        findings=(await storage.maintain()).findings,
    )


async def everything(storage: Storage, space: Space) -> list[Record]:
    found: list[Record] = []
    while page := await storage.page(
        space, limit=500, now=system_clock(), after=found[-1].position if found else None
    ):
        found += page
    return found


def by_key(records: list[Record]) -> dict[str, Record]:
    return {record.key: record for record in records}
