"""One run: an attempt at a task, from the claim to the one write that ends it or gives it back.

The function runs in a task of its own, so that it can be left behind when it does not heed a cancellation.
A run that lasts is attended: its lease is extended, and its task is watched for a cancel and for answers.
Most runs are short, and pay for none of that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from math import inf
from random import uniform
from typing import cast

import anyio
from msgspec.structs import replace

from ..storage.errors import StorageError
from ..storage.time_types import to_seconds
from ..tasks import (
    InputRequest,
    LogLevel,
    Snapshot,
    Status,
    StoreConfig,
    TaskStore,
    edits,
    expiry_and_deadlines,
)
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import ClaimLost
from ..tasks.inputs import Input, InputError, check_repeated
from ..tasks.store import Edit
from ..tasks.task_log import log_entry
from . import telemetry
from .cancellation import Cancellation
from .config import RuntimeConfig
from .endings import Stop, ask_new, check_askable, ending_of, said_by
from .errors import InputFailed, TaskCancelled, TooManyWaiting, exited, is_signal, loggable
from .function import Function, Result
from .hold import Claim, Hold
from .reporter import Reporter
from .settlement import Settlement
from .slots import Slot
from .stopwatch import Stopwatch
from .task import Task, set_current_task
from .threads import call_in_thread
from .waiting import changed_within

log = logging.getLogger("perdure.runtime")

UNATTENDED = 0.05
"""Seconds after which a run is attended."""


class Run:
    """Use `execute`, once, and `stop`. The rest is for the function's `Task`."""

    def __init__(
        self, claim: Claim, function: Function, *, store: TaskStore, config: RuntimeConfig, slot: Slot
    ) -> None:
        self.attempt = claim.snapshot.task.attempts
        self.cancellation = Cancellation()
        self.reporter = Reporter(self, to_seconds(config.report_interval))
        self._hold = Hold(claim, store, self._changed)
        self._function = function
        self._store = store
        self._config = config
        self._stopwatch = Stopwatch(function.timeout, lambda: self.stop(Stop.TIMED_OUT))
        self._slot = slot
        self._waits = 0
        self._loop = asyncio.get_running_loop()
        self._stop: Stop | None = None
        self._call: asyncio.Task[Result] | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._attendants: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._news = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        """The task, as last seen."""
        return self._hold.snapshot

    @property
    def limits(self) -> StoreConfig:
        return self._store.config

    @property
    def has_retries(self) -> bool:
        """Whether the task is run again if this attempt fails."""
        return self.snapshot.task.failures < self._function.retries

    # From beginning to end

    async def execute(self) -> None:
        """Run the function and write what came of it. Returns when that is done, or can no longer be."""
        if self._hold.is_overdue and not await self._still_holds():
            return self._log_lost(None)
        log.debug("task %s: attempt %d at %s", self.snapshot.task.task_id, self.attempt, self._function.name)
        self._call = self._loop.create_task(self._invoke())
        self._call.add_done_callback(self._end)
        if self.cancellation.is_requested:
            self._call.cancel()
        self._timers.append(self._loop.call_later(UNATTENDED, self.attend))
        self._stopwatch.start()
        try:
            await self._over
            await self._settle(self._call)
        finally:
            self._dismiss()

    async def _still_holds(self) -> bool:
        """Whether the task is ours, though the process was held up between the claim and the beginning."""
        try:
            await self._hold.extend()
        except (ClaimLost, StorageError):
            return False
        return True

    def stop(self, why: Stop) -> None:
        """Make the run end: with the clean-up that its function does, or without, after the grace period.

        The first reason counts, but a lost lease always does.
        """
        if self._over.done():
            return
        if why is Stop.LEASE_LOST or self._stop is None:
            self._stop = why
        if not self.cancellation.request():
            return
        self._news.set()
        if self._call is not None:
            self._call.cancel()
        self._timers.append(self._loop.call_later(to_seconds(self._config.cancel_grace), self._abandon))

    async def _invoke(self) -> Result:
        task = Task(self)
        set_current_task(task)
        handler = self._function.handler
        try:
            if self._function.is_async:
                return await cast("Awaitable[Result]", handler(task))
            return await call_in_thread(lambda: cast("Result", handler(task)))
        except SystemExit as error:
            raise exited(error) from error

    def _end(self, call: asyncio.Task[Result]) -> None:
        if not call.cancelled():
            call.exception()  # seen, also where nobody waits for it any more
        if not self._over.done():
            self._over.set_result(None)

    def _abandon(self) -> None:
        """It had its grace. It cannot be killed, but from now on nothing that it writes is accepted."""
        if self._call is not None and not self._over.done():
            log.warning("task %s did not end in time and is abandoned", self.snapshot.task.task_id)
            self._over.set_result(None)
            self._call.cancel()

    def _dismiss(self) -> None:
        self.reporter.close()
        self._stopwatch.stop()
        for timer in self._timers:
            timer.cancel()
        for attendant in self._attendants:
            attendant.cancel()

    async def _settle(self, call: asyncio.Task[Result]) -> None:
        """Write what came of it, for as long as a lease lasts."""
        edit = ending_of(call, self._stop, self._function)
        self._log_error(call)
        if edit is None:
            return self._log_lost(None)
        settlement = Settlement(self._hold, self._with_report(edit))
        try:
            with telemetry.finishing(self.snapshot.task):
                pause = min(1.0, to_seconds(self._config.heartbeat_interval) / 4)
                await settlement.write(within=self._config.lease, pause=pause)
        except Exception as error:
            return self._log_lost(error)
        return self._log_end()

    def _log_end(self) -> None:
        task = self.snapshot.task
        telemetry.ended(task)
        what = task.effective_status.value if task.is_terminal else "given back"
        log.debug("task %s: attempt %d is over, the task is %s", task.task_id, self.attempt, what)

    def _log_error(self, call: asyncio.Task[Result]) -> None:
        """An exception of the function, unless it was meant for us."""
        error = call.exception() if call.done() and not call.cancelled() else None
        if error is not None and not is_signal(error):
            task, name = self.snapshot.task, self._function.name
            shown = loggable(error, is_encrypted=task.is_encrypted)
            log.warning("task %s: %s raised in attempt %d", task.task_id, name, self.attempt, exc_info=shown)

    def _log_lost(self, problem: Exception | None) -> None:
        task = self.snapshot.task
        telemetry.dropped(task)
        if task.status is Status.CANCELLED:
            log.info("task %s was cancelled; the result of attempt %d is dropped", task.task_id, self.attempt)
            return
        why = "" if problem is None else f" ({loggable(problem, is_encrypted=task.is_encrypted)})"
        log.warning(
            "task %s: the lease is lost, what came of attempt %d is dropped%s",
            task.task_id,
            self.attempt,
            why,
        )

    # Writing

    async def write(self, edit: Edit) -> None:
        """Write an edit of the task for its function, unless the run is over."""
        if self._over.done():
            raise ClaimLost
        try:
            await self._hold.write(self._with_report(edit))
        except ClaimLost:
            self.stop(Stop.LEASE_LOST)
            raise
        self.reporter.written()

    async def log(self, level: LogLevel, message: JsonLike, logger: str | None) -> None:
        """Add an entry to the log of the task."""
        entry = log_entry(
            self._store.clock(), level, message, logger, max_length=self.limits.max_message_length
        )
        await self.reporter.log(entry)

    def _with_report(self, edit: Edit) -> Edit:
        """The edit, together with what the function has reported meanwhile."""
        return lambda task, now, config: edit(self.reporter.apply(task, now, config), now, config)

    def _changed(self) -> None:
        self._news.set()
        if self.snapshot.task.cancel_requested_at is not None:
            self.stop(Stop.CANCELLED)

    # Attending a run that lasts

    def attend(self) -> None:
        """From now on extend the lease and watch the task."""
        if not self._attendants and not self._over.done():
            self._attendants = [
                self._loop.create_task(self._persist(work)) for work in (self._beat, self._listen)
            ]

    async def _persist(self, work: Callable[[], Awaitable[None]]) -> None:
        """Whatever goes wrong, begin again; only a lost lease ends it."""
        while True:
            try:
                await work()
            except ClaimLost:
                return self.stop(Stop.LEASE_LOST)
            except Exception as error:
                log.warning("task %s: %s", self.snapshot.task.task_id, said_by(error))
                await asyncio.sleep(to_seconds(self._config.heartbeat_interval) / 4)

    async def _beat(self) -> None:
        """Extend the lease at each heartbeat, and sooner again when that failed."""
        pause = interval = to_seconds(self._config.heartbeat_interval)
        while True:
            await asyncio.sleep(pause * uniform(0.8, 1))
            pause = interval if await self._is_extended() else interval / 4

    async def _is_extended(self) -> bool:
        """Where a lease runs out unheard, the run ends if others may run the task again meanwhile."""
        try:
            await self._hold.extend()
        except StorageError as error:
            log.warning("task %s: no heartbeat: %s", self.snapshot.task.task_id, error)
            if self._hold.age >= self._config.lease and self._function.restart:
                raise ClaimLost from error
            return False
        return True

    async def _listen(self) -> None:
        record = self.snapshot.record
        async with self._store.storage.watch(record.space, record.partition, record.key) as watch:
            while True:
                await self._hold.look()
                await changed_within(watch, to_seconds(self._config.queue_poll_interval) * uniform(0.5, 1.5))

    # Input rounds

    async def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Input]:
        """Ask what was not asked before, and wait until all of these have their answer.

        If too many runs wait already, this one is suspended, and run again when it is answered.
        """
        check_repeated(self.snapshot.task.inputs, requests)
        if self._function.input_deadline is not None:
            requests = {key: self._with_deadline(each) for key, each in requests.items()}
        if self._lacks(requests):
            with self._slot.reserve_wait() as may_wait:
                await self._ask_and_wait(requests, may_wait=may_wait)
        answered = {key: self.snapshot.task.inputs[key] for key in requests}
        for key, each in answered.items():
            if each.error is not None:
                raise InputFailed(key, each.error)
        return answered

    async def withdraw(self, key: str, request: InputRequest, error: InputError) -> None:
        """Answer an open question with an error. If there was no time to store it, it is stored with that."""
        await self.write(
            lambda task, now, config: edits.fail_question(
                ask_new(task, {key: request}, now, config), key, error, now=now, config=config
            )
        )

    def _with_deadline(self, request: InputRequest) -> InputRequest:
        deadline = self._function.input_deadline if request.deadline is None else request.deadline
        return replace(request, deadline=deadline)

    def check_askable(self, requests: Mapping[str, InputRequest]) -> None:
        """Raise ClientCannotAnswer if the client of the task cannot be asked what is new of this."""
        task = self.snapshot.task
        check_askable(task, {key: each for key, each in requests.items() if key not in task.inputs})

    async def _ask_and_wait(self, requests: Mapping[str, InputRequest], *, may_wait: bool) -> None:
        if not (may_wait or self._function.restart):
            raise TooManyWaiting(self._config.max_waiting_runs)
        if any(key not in self.snapshot.task.inputs for key in requests):
            await self.write(lambda task, now, config: ask_new(task, requests, now, config))
        if self._lacks(requests):
            if not may_wait:
                self.stop(Stop.SUSPENDED)
            await self._wait_for(requests)

    async def _wait_for(self, keys: Collection[str]) -> None:
        """Without a slot, and off the clock of the function's timeout: people take their time."""
        self.attend()
        self._stopwatch.pause()
        self._waits += 1
        try:
            self._slot.give_back()
            while self._lacks(keys):
                if self._over.done():  # the function has returned, and left this behind
                    raise ClaimLost
                if self.cancellation.is_requested:  # a coroutine is cancelled besides, a thread is not
                    raise TaskCancelled
                await self._until_changed_or_overdue()
        finally:
            await self._work_on()

    async def _until_changed_or_overdue(self) -> None:
        """Return when there is news of the task; stop the run if a question is past its deadline."""
        self._news.clear()
        deadline = expiry_and_deadlines.question_deadline(self.snapshot.task)
        left = inf if deadline is None else (deadline - self._store.clock()) / 1_000_000
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(left, to_seconds(self._config.queue_poll_interval)))):
                await self._news.wait()
        if self._is_unanswered:
            await self._refresh()  # an answer may have come in time, without a wake-up
            if self._is_unanswered:
                self.stop(Stop.UNANSWERED)

    @property
    def _is_unanswered(self) -> bool:
        return expiry_and_deadlines.is_past_deadline(self.snapshot.task, self._store.clock())

    async def _refresh(self) -> None:
        try:
            await self._hold.look()
        except ClaimLost:
            self.stop(Stop.LEASE_LOST)
        except StorageError as error:
            log.warning("task %s: %s", self.snapshot.task.task_id, error)

    async def _work_on(self) -> None:
        """Take a slot again, also where the function itself gave up waiting, and let the clock run."""
        try:
            if self._waits == 1 and not self.cancellation.is_requested:
                with anyio.CancelScope(shield=True):  # a timeout of the function must not skip the wait
                    await self._slot.regain()
        finally:
            self._waits -= 1
            self._stopwatch.resume()

    def _lacks(self, keys: Collection[str]) -> bool:
        inputs = self.snapshot.task.inputs
        return any(key not in inputs or not inputs[key].is_answered for key in keys)
