"""One run: an attempt at a task, from the claim to the one write that ends it or gives it back.

The function runs in a task of its own, so that it can be left behind when it does not heed a cancellation.
A run that lasts is attended: its lease is extended, and its task is watched for a cancel and for answers.
Most runs are short, and pay for none of that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from random import uniform
from typing import cast

import anyio.to_thread
import msgspec

from ..storage import Change, Committed, Record
from ..storage.errors import StorageError
from ..tasks import Failure, InputRequest, Snapshot, StoreConfig, Success, TaskRecord, TaskStore, edits
from ..tasks.errors import ConcurrentModification, InvalidValue, LeaseLost, NotFound, TaskError
from ..tasks.inputs import Input
from ..tasks.record import Outcome
from ..tasks.store import Edit
from . import lease as leases
from . import telemetry
from .cancellation import Cancellation
from .config import RuntimeConfig
from .endings import INTERNAL_ERROR, Stop, Unfinished, ask_new, pause_until_answered, run_again_or_end
from .errors import Again, Failed, Pause, TaskCancelled
from .function import Function, Result
from .lease import Holder
from .reporter import Reporter
from .slots import Slot
from .stopwatch import Stopwatch
from .task import Task
from .waiting import changed_within

log = logging.getLogger("perdure.runtime")

UNATTENDED = 0.05
"""Seconds after which a run is attended."""
WRITE_ATTEMPTS = 10


class Claim(msgspec.Struct, frozen=True):
    """A task that was claimed, and the lease that says so."""

    snapshot: Snapshot
    lease: Record
    holder: Holder


class Run:
    """Use `execute`, once, and `stop`."""

    def __init__(
        self, claim: Claim, function: Function, *, store: TaskStore, config: RuntimeConfig, slot: Slot
    ) -> None:
        self.snapshot = claim.snapshot
        self.attempt = claim.snapshot.task.attempts
        self.cancellation = Cancellation()
        self.reporter = Reporter(self, config.report_interval)
        self._lease = claim.lease
        self._next_lease: Record | None = None
        self._holder = claim.holder
        self._function = function
        self._store = store
        self._config = config
        self._stopwatch = Stopwatch(function.timeout, lambda: self.stop(Stop.TIMED_OUT))
        self._slot = slot
        self._waits = 0
        self._loop = asyncio.get_running_loop()
        self._lease_end = self._loop.time() + config.lease
        self._lock = asyncio.Lock()
        self._stop: Stop | None = None
        self._call: asyncio.Task[Result] | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._attendants: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._news = asyncio.Event()

    @property
    def limits(self) -> StoreConfig:
        return self._store.config

    # From beginning to end

    async def execute(self) -> None:
        """Run the function and write what came of it. Returns when that is done, or can no longer be."""
        self._call = self._loop.create_task(self._invoke())
        self._call.add_done_callback(lambda _: self._end())
        self._timers.append(self._loop.call_later(UNATTENDED, self.attend))
        self._stopwatch.start()
        try:
            await self._over
            await self._settle()
        finally:
            self._dismiss()

    def stop(self, why: Stop) -> None:
        """Make the run end: now, after its clean-up, or without it after the grace period. The first reason
        counts, but a lost lease always does.
        """
        if self._over.done():
            return
        if why is Stop.LEASE_LOST or self._stop is None:
            self._stop = why
        if not self.cancellation.request():
            return
        if self._function.is_async and self._call is not None:
            self._call.cancel()
        self._timers.append(self._loop.call_later(self._config.cancel_grace, self._abandon))

    def attend(self) -> None:
        """From now on extend the lease and watch the task."""
        if not self._attendants and not self._over.done():
            self._attendants = [self._loop.create_task(work) for work in (self._beat(), self._listen())]

    async def _invoke(self) -> Result:
        task = Task(self)
        handler = self._function.handler
        try:
            if self._function.is_async:
                return await cast("Awaitable[Result]", handler(task))
            limiter = anyio.CapacityLimiter(1)  # the slots bound the number of threads
            return await anyio.to_thread.run_sync(
                lambda: cast("Result", handler(task)), abandon_on_cancel=True, limiter=limiter
            )
        except SystemExit as error:  # would end the event loop, and all other work with it
            raise Failed(INTERNAL_ERROR, f"the function called exit({error.code})") from error

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _abandon(self) -> None:
        """It had its grace. It cannot be killed, but from now on nothing that it writes is accepted."""
        if not self._over.done():
            log.warning("task %s did not end in time and is abandoned", self.snapshot.task.task_id)
            if self._call is not None:
                self._call.cancel()
            self._end()

    def _dismiss(self) -> None:
        self.reporter.close()
        self._stopwatch.stop()
        for timer in self._timers:
            timer.cancel()
        for attendant in self._attendants:
            attendant.cancel()

    # What came of it

    async def _settle(self) -> None:
        """Write the end of the attempt, while the lease lasts."""
        edit = self._ending()
        while edit is not None:
            try:
                return await self._write_end(edit)
            except (LeaseLost, NotFound):
                return self._log_lost()
            except (StorageError, ConcurrentModification) as error:
                if self._loop.time() >= self._lease_end:
                    return self._log_lost(error)
                await asyncio.sleep(min(1.0, self._config.heartbeat / 4))
            except TaskError as error:  # a result that is too large, a question asked before
                edit = _finish(Failure.of(INTERNAL_ERROR, f"what came of it cannot be stored: {error}"))
        return self._log_lost()

    def _ending(self) -> Edit | None:
        """The edit that ends this attempt; none where the lease is lost."""
        if self._stop is Stop.LEASE_LOST:
            return None
        match self._came_of_it():
            case Unfinished() as attempt:
                return run_again_or_end(self._function, attempt)
            case Pause() as pause:
                return pause_until_answered(pause)
            case None:
                return lambda task, now, config: edits.cancel(task, now=now, config=config)
            case outcome:
                return _finish(outcome)

    def _came_of_it(self) -> Outcome | Unfinished | Pause | None:
        """An outcome, an attempt that came to nothing, a pause, or (None) a cancellation."""
        call = self._call
        if call is None or not call.done() or call.cancelled():
            return self._stopped()
        error = call.exception()
        if error is None:
            return _outcome_of(call.result())
        if self._stop is not None or isinstance(error, TaskCancelled):
            return self._stopped()
        return self._failed(error)

    def _stopped(self) -> Outcome | Unfinished | None:
        match self._stop:
            case Stop.TIMED_OUT:
                return Unfinished(reason=f"the function took longer than {self._function.timeout:g} seconds")
            case Stop.SHUT_DOWN:
                return Unfinished(reason="the worker was shut down before the task ended", counted=False)
            case None:
                return Failure.of(INTERNAL_ERROR, "the function was cancelled from within")
            case _:
                return None

    def _failed(self, error: BaseException) -> Outcome | Unfinished | Pause:
        match error:
            case Again(reason=reason, after=after):
                return Unfinished(reason=reason, after=after)
            case Failed(failure=failure):
                return failure
            case Pause() as pause:
                return pause
            case InvalidValue(field="arguments"):
                return Failure.of(-32602, str(error))
            case _:
                log.warning("task %s failed", self.snapshot.task.task_id, exc_info=error)
                return Failure.of(INTERNAL_ERROR, _said(error))

    async def _write_end(self, edit: Edit) -> None:
        async with self._lock:
            with telemetry.finishing(self.snapshot.task):
                await self._commit(edit)
        telemetry.ended(self.snapshot.task)

    def _log_lost(self, error: Exception | None = None) -> None:
        task = self.snapshot.task
        log.warning("task %s: the lease is lost, what came of attempt %d is dropped%s",
                    task.task_id, self.attempt, f" ({error})" if error else "")  # fmt: skip
        telemetry.dropped(task)

    # Writing, under the fence

    async def write(self, edit: Edit) -> None:
        """Write an edit of the task, if the lease is still ours; it is extended by the way."""
        async with self._lock:
            await self._commit(edit)

    async def _commit(self, edit: Edit) -> None:
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            try:
                following = await self._store.edit(
                    self.snapshot, self._with_report(edit), lease=self._lease_after
                )
            except ConcurrentModification:
                if attempt == WRITE_ATTEMPTS:
                    raise
                await self._read_again()
                await asyncio.sleep(uniform(0, 0.001 * 2**attempt))
            except LeaseLost:
                if attempt == WRITE_ATTEMPTS or not await self._holds():
                    self.stop(Stop.LEASE_LOST)
                    raise
            else:
                self._written(following)
                return

    def _with_report(self, edit: Edit) -> Edit:
        return lambda task, now, config: edit(self.reporter.apply(task, now, config), now, config)

    def _lease_after(self, following: Snapshot) -> Change:
        """What becomes of the lease when the task becomes this: while we hold the task, it is extended."""
        if not following.task.held:
            return leases.give_up(self._lease, following)
        change = self._holder.extend(self._lease)
        self._next_lease = change.after
        return change

    def _written(self, following: Snapshot) -> None:
        self.reporter.written()
        self._adopt(following)
        if self._next_lease is not None and following.task.held:
            self._extended(self._next_lease)

    def _extended(self, lease: Record) -> None:
        self._lease = lease
        self._next_lease = None
        self._lease_end = self._loop.time() + self._config.lease

    async def _holds(self) -> bool:
        """Whether the lease is ours though it is not what we wrote last: a write whose answer was lost."""
        found = await self._store.storage.get(self._lease.address, now=self._store.clock())
        if found is None or leases.holder_of(found) != self._holder.name:
            return False
        self._lease = found
        return True

    async def _read_again(self) -> None:
        task = self.snapshot.task
        found = await self._store.get(task.owner, task.task_id)
        if found.task.is_terminal:
            self.stop(Stop.LEASE_LOST)
            raise LeaseLost
        self._adopt(found)

    def _adopt(self, found: Snapshot) -> None:
        """Take note of what the task is by now."""
        if found.version < self.snapshot.version:
            return
        self.snapshot = found
        self._news.set()
        if found.task.cancel_requested_at is not None and not found.task.is_terminal:
            self.stop(Stop.CANCELLED)

    # Attending a run that lasts

    async def _beat(self) -> None:
        pause = self._config.heartbeat
        while True:
            await asyncio.sleep(pause * uniform(0.8, 1))
            try:
                await self._extend()
                pause = self._config.heartbeat
            except LeaseLost:
                return self.stop(Stop.LEASE_LOST)
            except StorageError as error:
                log.warning("task %s: no heartbeat: %s", self.snapshot.task.task_id, error)
                if self._loop.time() >= self._lease_end - self._config.clock_skew:
                    return self.stop(Stop.LEASE_LOST)
                pause = self._config.heartbeat / 4

    async def _extend(self) -> None:
        """A few hundred bytes, whatever the task holds, and no conflict with any writer of the task."""
        async with self._lock:
            while True:
                change = self._holder.extend(self._lease)
                result = await self._store.storage.commit([change], now=self._store.clock())
                if isinstance(result, Committed):
                    return self._extended(change.after)
                if not await self._holds():
                    raise LeaseLost

    async def _listen(self) -> None:
        record = self.snapshot.record
        with_poll = self._config.poll_interval
        async with self._store.storage.watch(record.space, record.partition, record.key) as watch:
            while True:
                try:
                    await self.look()
                    await changed_within(watch, with_poll * uniform(0.5, 1.5))
                except (StorageError, TaskError) as error:
                    log.debug("task %s cannot be read: %s", record.key, error)
                    await asyncio.sleep(with_poll)

    async def look(self) -> None:
        """See what others have written: a cancel, answers, variables, or that the task is gone."""
        found = await self._store.storage.get(self.snapshot.record.address, now=self._store.clock())
        if found is None:
            return self.stop(Stop.LEASE_LOST)
        if found.version > self.snapshot.version:
            snapshot = Snapshot.read(found)
            self._adopt(snapshot)
            if snapshot.task.is_terminal:
                self.stop(Stop.LEASE_LOST)
        return None

    # Input rounds

    async def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Input]:
        """Ask what was not asked before, and wait until all of these have their answer."""
        if any(key not in self.snapshot.task.inputs for key in requests):
            await self.write(lambda task, now, config: ask_new(task, requests, now, config))
        if self._lacks(requests):
            await self._wait_for(requests)
        return {key: self.snapshot.task.inputs[key] for key in requests}

    async def _wait_for(self, keys: Mapping[str, InputRequest]) -> None:
        """Without a slot, and off the clock of the function's timeout: people take their time."""
        self.attend()
        self._stopwatch.pause()
        self._waits += 1
        self._slot.give_back()
        try:
            while self._lacks(keys):
                self._news.clear()
                await self._news.wait()
        finally:
            self._waits -= 1
            self._stopwatch.resume()
        if not self._waits:
            await self._slot.regain()

    def _lacks(self, keys: Mapping[str, InputRequest]) -> bool:
        inputs = self.snapshot.task.inputs
        return any(key not in inputs or not inputs[key].is_answered for key in keys)


def _finish(outcome: Outcome) -> Edit:
    return lambda task, now, config: edits.finish(
        task, outcome, message=_last_words(task, outcome), now=now, config=config
    )


def _last_words(task: TaskRecord, outcome: Outcome) -> str | None:
    """What a success leaves as its message: what the function said last."""
    return task.status_message if isinstance(outcome, Success) else None


def _outcome_of(result: Result) -> Outcome:
    if isinstance(result, (Success, Failure)):
        return result
    try:
        return Success.of(result)
    except InvalidValue as error:
        return Failure.of(INTERNAL_ERROR, f"the function returned what JSON cannot express: {error}")


def _said(error: BaseException) -> str:
    """An exception in one line, in text that can be stored."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return text.encode(errors="replace").decode()[:4000]
