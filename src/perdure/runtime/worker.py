"""`Worker` claims and runs tasks, recovers the tasks of lost workers, and purges expired records.

Any number of workers can share a storage. Each does all of this, at random times.
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
from .claims import REFUSED, Claimer
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
"""Seconds between two checks of the active runs while a worker stops."""
PURGE_PAUSE = 0.05
"""Seconds between two batches of a purge, so that other writes are not delayed."""
HAND_BACK_PAUSES = (0.0, 0.1, 0.5)
"""Seconds before each attempt to hand a task back. If all fail, the task waits until its lease expires."""
HANDED_BACK: Micros = 500_000
"""Microseconds until a task that could not be started can be claimed again."""


class Worker:
    """Runs tasks within `working`."""

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
        self._recovery = Recovery(store, functions, config, self._is_ours, self._claimer.attendants)
        self._deadlines = Deadlines(store, config)
        self._jobs: dict[asyncio.Task[None], Job] = {}
        self._newest: dict[TaskId, asyncio.Task[None]] = {}
        """The newest run of each task. An older run, which has lost its claim, may still be active."""
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
        """Run tasks until the block ends; then let the active runs finish, or hand their tasks back."""
        scope = anyio.CancelScope()
        # in a task of their own, so that errors of the block are not wrapped
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
                    self._purge,
                ):
                    steps.start_soon(self._repeat, step)

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step, even after an error, until the storage is closed."""
        while True:
            try:
                await step()
            except StorageClosed:
                return
            except Exception:
                log.exception("worker %s: a background job failed; retrying", self.name)
                await asyncio.sleep(uniform(0.5, 1.5))

    async def _drain(self, seconds: float) -> None:
        """Let active runs finish within this time, and stop the rest. Hand back tasks that may run again."""
        if self._creating:  # a task that is being created is run here
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
        for job in self._jobs.values():  # the storage does not answer; other workers will recover the task
            log.warning(
                "task %s was not released in time; another worker will recover it",
                job.claim.snapshot.task.task_id,
            )

    async def _let_end(self, seconds: float) -> None:
        """Wait for the active runs. Stop those that wait for a client, which can take days."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._jobs and (left := deadline - loop.time()) > 0:
            for job in self._jobs.values():
                if not job.slot.is_taken and job.function.restart:
                    self._stop(job)
            await asyncio.wait(self._jobs, timeout=min(left, DRAIN_LOOK))

    def _stop(self, job: Job) -> None:
        self._executor.cancel(job.claim.snapshot.task.task_id, Stop.SHUT_DOWN)

    # Starting runs

    def reserve(self, function: Function) -> Slot | None:
        """Return a slot for a run that starts at once. Return None if there is none, or no tasks run here."""
        return self._slots.take(function) if self._is_working else None

    async def create(self, owner: Owner, new: NewTask, function: Function, slot: Slot) -> Snapshot:
        """Create a task that is claimed from the start, and run it."""
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
            snapshot = await self._store.create(owner, new, lease=lease, worker=self.name)
        except BaseException as error:
            if claims and isinstance(error, (asyncio.CancelledError, StorageFailed)):
                job = Job(claims[0], function, slot)
                self._spawn(self._begin_if_created(job), job)
            else:
                slot.release()
            raise
        if snapshot is claims[0].snapshot:
            self.begin(Job(claims[0], function, slot))
        else:  # the idempotency key belongs to an earlier task
            slot.release()
        return snapshot

    def begin(self, job: Job) -> None:
        """Run a claimed task."""
        self._spawn(self._perform(job), job)

    def _spawn(self, work: Coroutine[None, None, None], job: Job) -> None:
        """Do work in the background. When the worker stops, it waits for this work.

        A run has the context variables of the worker, and not those of the request that created its task,
        which a later attempt could not have.
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
        """Return whether a lease is that of a run in this process, or of the process itself."""
        if leases.is_attendance(lease):
            return lease.key == self.name or lease.key.startswith(f"{self.name}~")
        return any(job.claim.holder.holds(lease) for job in self._jobs.values())

    def job_of(self, task_id: TaskId) -> asyncio.Task[None] | None:
        """Return the asyncio task of a run in this process, or None. The caller must not cancel it."""
        return self._newest.get(task_id)

    async def _perform(self, job: Job) -> None:
        try:
            if self._is_stopping:
                await self._hand_back(job.claim, "the worker was shut down before the task started")
            else:
                await self._executor.submit(job)
        except Exception as error:
            log.exception("could not start task %s; handing it back", job.claim.snapshot.task.task_id)
            await self._hand_back(job.claim, f"the worker could not start the task: {error}")
        finally:
            job.slot.release()

    async def _hand_back(self, claim: Claim, reason: str) -> None:
        """Return a task that was not started to its queue, for another worker, or for this one later.

        A write that fails is repeated. If it was stored after all, the repetition is refused.
        """
        for pause in HAND_BACK_PAUSES:
            await asyncio.sleep(pause)
            try:
                await self._release(claim, reason)
            except (StorageClosed, *REFUSED) as error:
                log.warning(
                    "stopped trying to return task %s to the queue: %s", claim.snapshot.task.task_id, error
                )
            except StorageError as error:
                log.warning("could not return task %s to the queue: %s", claim.snapshot.task.task_id, error)
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
        """Run a claimed task if it was stored, which is unknown because the response was lost."""
        claim = await find_out(job.claim, self._store)
        if claim is None:
            job.slot.release()
        else:
            await self._perform(replace(job, claim=claim))

    # Purging

    async def _purge(self) -> None:
        await asyncio.sleep(to_seconds(self._config.purge_interval) * uniform(0.5, 1.5))
        more = True
        while more:
            with telemetry.purging():
                purged = await self._store.purge()
                telemetry.purged(len(purged.purged))
            more = purged.more
            await asyncio.sleep(PURGE_PAUSE)
