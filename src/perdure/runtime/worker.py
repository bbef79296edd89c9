"""A worker: begins runs, recovers what others lost, sweeps what expired, and stops in good order.

Any number of workers share a storage; each does all of this, a little apart from the others by chance.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from random import uniform

import anyio
from msgspec.structs import replace

from ..storage import Change, Micros, Record
from ..storage.errors import StorageClosed, StorageError, StorageFailed
from ..storage.time_types import to_seconds
from ..tasks import NewTask, Owner, Snapshot, TaskId, TaskStore, edits
from . import lease as leases
from . import telemetry
from .claiming import REFUSED, Claimer
from .config import RuntimeConfig
from .deadline import Deadlines
from .endings import Stop
from .executor import Executor, Job
from .function import Function, Functions
from .hold import Claim, find_out
from .intake import Intake
from .recovery import Recovery
from .slots import Slot, Slots

log = logging.getLogger("perdure.runtime")

DRAIN_LOOK = 0.1
"""Seconds between two looks at what still runs, while a worker is to end."""
SWEEP_PAUSE = 0.05
"""Seconds between two batches of one sweep, for others to get in."""
HAND_BACK_PAUSES = (0.0, 0.1, 0.5)
"""Seconds before each try to hand a task back. After that its lease has to run out."""
HANDED_BACK: Micros = 500_000
"""After which a task that could not be started is claimed again."""


class Worker:
    """Use it within `working`."""

    def __init__(
        self,
        store: TaskStore,
        functions: Functions,
        executor: Executor,
        config: RuntimeConfig,
        *,
        name: str | None = None,
    ) -> None:
        self._store = store
        self._functions = functions
        self._executor = executor
        self._config = config
        self._claimer = Claimer(store, config, name)
        self._slots = Slots(config.concurrency, config.max_waiting_runs)
        self._intake = Intake(store, functions, self._claimer, self._slots, config, self.begin)
        self._recovery = Recovery(store, functions, config, self._is_ours, self.name)
        self._deadlines = Deadlines(store, config)
        self._jobs: dict[asyncio.Task[None], Job] = {}
        self._newest: dict[TaskId, asyncio.Task[None]] = {}
        """A task may be run again here before its last run, which lost the lease, is over."""
        self._creating = 0
        self._created = asyncio.Event()
        self._is_working = False
        self._is_stopping = False
        self._surroundings = contextvars.Context()

    @property
    def name(self) -> str:
        return self._claimer.name

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """Work, until the block is left; then let finish what runs, or hand it back."""
        scope = anyio.CancelScope()
        # in a task of their own, so that errors of the block reach the user as they are
        steps = asyncio.create_task(self._take_steps(scope))
        drain = 0.0
        self._is_working, self._is_stopping = True, False
        self._surroundings = contextvars.copy_context()
        try:
            yield
            drain = to_seconds(self._config.drain_timeout)
        finally:
            self._is_working = False
            with anyio.CancelScope(shield=True):
                scope.cancel()
                await steps
                await self._drain(drain)

    async def _take_steps(self, scope: anyio.CancelScope) -> None:
        with scope:
            async with anyio.create_task_group() as steps:
                for step in (
                    self._intake.listen,
                    self._intake.claim_and_wait,
                    self._recovery.look,
                    self._deadlines.check_questions,
                    self._deadlines.audit,
                    self._sweep,
                ):
                    steps.start_soon(self._repeat, step)

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Whatever goes wrong in a step, the next may succeed."""
        while True:
            try:
                await step()
            except StorageClosed:
                return
            except Exception:
                log.exception("a step of worker %s failed", self.name)
                await asyncio.sleep(uniform(0.5, 1.5))

    async def _drain(self, seconds: float) -> None:
        """Let what runs end by itself for so long, then stop it; what may be run again is handed back."""
        if self._creating:  # a create that is under way begins a run
            with suppress(TimeoutError):
                await asyncio.wait_for(self._created.wait(), self._config.lease)
        await self._let_end(seconds)
        self._is_stopping = True
        for job in self._jobs.values():
            self._stop(job)
        if self._jobs:
            await asyncio.wait(
                self._jobs, timeout=to_seconds(self._config.cancel_grace) + 2 * self._config.lease
            )
        for job in self._jobs.values():  # the storage does not answer; others will recover it
            log.warning("task %s was not handed back in time", job.claim.snapshot.task.task_id)

    async def _let_end(self, seconds: float) -> None:
        """What waits for a client, from before or only by now, may wait for days, and is stopped."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._jobs and (left := deadline - loop.time()) > 0:
            for job in self._jobs.values():
                if not job.slot.is_taken and job.function.restart:
                    self._stop(job)
            await asyncio.wait(self._jobs, timeout=min(left, DRAIN_LOOK))

    def _stop(self, job: Job) -> None:
        self._executor.cancel(job.claim.snapshot.task.task_id, Stop.SHUT_DOWN)

    # Beginning a run

    def reserve(self, function: Function) -> Slot | None:
        """A place for a run that is to begin at once; None where there is none."""
        return self._slots.take(function) if self._is_working else None

    async def create(self, owner: Owner, new: NewTask, function: Function, slot: Slot) -> Snapshot:
        """Create a task that is in work from the start, and begin it."""
        self._creating += 1
        self._created.clear()
        try:
            return await self._create(owner, new, function, slot)
        finally:
            self._creating -= 1
            if not self._creating:
                self._created.set()

    async def _create(self, owner: Owner, new: NewTask, function: Function, slot: Slot) -> Snapshot:
        holder = self._claimer.new_holder()
        claims: list[Claim] = []

        def lease(first: Snapshot) -> Change:
            change = holder.take(first, None)
            claims.append(Claim(first, leases.written(change), holder))
            return change

        try:
            snapshot = await self._store.create(owner, new, lease=lease)
        except BaseException as error:
            if claims and isinstance(error, (asyncio.CancelledError, StorageFailed)):
                job = Job(claims[0], function, slot)
                self._spawn(self._begin_if_created(job), job)
            else:
                slot.give_back()
            raise
        if snapshot is claims[0].snapshot:
            self.begin(Job(claims[0], function, slot))
        else:  # the idempotency key stands for an earlier task
            slot.give_back()
        return snapshot

    def begin(self, job: Job) -> None:
        """Run a claimed task."""
        self._spawn(self._perform(job), job)

    def _spawn(self, work: Coroutine[None, None, None], job: Job) -> None:
        """Do this beside everything else; the worker does not stop before it is done.

        A run sees the context variables of the worker, not those of the request that created its task: they
        would be gone when it is run again.
        """
        surroundings = telemetry.within_current_trace(self._surroundings)
        doing = asyncio.get_running_loop().create_task(work, context=surroundings)
        self._jobs[doing] = job
        self._newest[job.claim.snapshot.task.task_id] = doing
        doing.add_done_callback(self._forget)

    def _forget(self, done: asyncio.Task[None]) -> None:
        task_id = self._jobs.pop(done).claim.snapshot.task.task_id
        if self._newest.get(task_id) is done:
            del self._newest[task_id]

    def _is_ours(self, lease: Record) -> bool:
        """Whether it is the lease of a run in this process, or of the process itself."""
        if leases.is_attendance(lease):
            return lease.key == self.name or lease.key.startswith(f"{self.name}~")
        return any(job.claim.holder.holds(lease) for job in self._jobs.values())

    def job_of(self, task_id: TaskId) -> asyncio.Task[None] | None:
        """What runs here for this task, to wait for; not to be cancelled."""
        return self._newest.get(task_id)

    async def _perform(self, job: Job) -> None:
        try:
            if self._is_stopping:
                await self._hand_back(job.claim, "the worker was shut down before the task began")
            else:
                await self._executor.submit(job)
        except Exception as error:
            log.exception("task %s could not be run", job.claim.snapshot.task.task_id)
            await self._hand_back(job.claim, f"it could not be started: {error}")
        finally:
            job.slot.give_back()

    async def _hand_back(self, claim: Claim, reason: str) -> None:
        """The executor did not take it: let another worker try, or this one a little later.

        A commit that fails is repeated. If it was written all the same, the repetition is refused.
        """
        for pause in HAND_BACK_PAUSES:
            await asyncio.sleep(pause)
            try:
                await self._release(claim, reason)
            except (StorageClosed, *REFUSED) as error:
                log.warning("task %s was not handed back: %s", claim.snapshot.task.task_id, error)
            except StorageError as error:
                log.warning("task %s could not be handed back: %s", claim.snapshot.task.task_id, error)
                continue
            return

    async def _release(self, claim: Claim, reason: str) -> None:
        await self._store.edit(
            claim.snapshot,
            lambda task, now, config: edits.release(
                task, reason=reason, run_at=now + HANDED_BACK, now=now, config=config
            ),
            lease=lambda following: leases.give_up(claim.lease, following),
        )

    async def _begin_if_created(self, job: Job) -> None:
        """A create whose answer was lost may have been written, and then its task says that it is in work."""
        claim = await find_out(job.claim, self._store)
        if claim is None:
            job.slot.give_back()
        else:
            await self._perform(replace(job, claim=claim))

    # Upkeep

    async def _sweep(self) -> None:
        await asyncio.sleep(to_seconds(self._config.purge_interval) * uniform(0.5, 1.5))
        more = True
        while more:
            with telemetry.sweeping():
                swept = await self._store.purge()
                telemetry.swept(len(swept.purged))
            more = swept.more
            await asyncio.sleep(SWEEP_PAUSE)
