"""`Run`: one attempt at a task, from its claim to the write that ends or releases the task.

The function runs in an asyncio task of its own, so that it can be abandoned if it ignores a cancellation.
A run that takes longer than a moment is attended: its lease is renewed, and its task is watched for answers
and for a cancellation. Short runs, which are frequent, need none of this.
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

from ..storage.errors import StorageError
from ..storage.exception_text import type_and_text_of
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
from .endings import Stop, ask_new, check_askable, ending_of
from .errors import InputFailed, TaskCancelled, TooManyWaiting, exited, is_signal, loggable
from .function import Function, Result
from .hold import Claim, Hold
from .reporter import Reporter
from .settlement import Settlement
from .slots import Slot
from .stopwatch import Stopwatch
from .task import Task, set_current_task
from .threads import call_in_thread
from .waits import changed_within

log = logging.getLogger("perdure.runtime")

UNATTENDED = 0.05
"""Seconds after which a run is attended."""


class Run:
    """One attempt. Call `execute` once, and `stop` to end it early. The function's `Task` uses the rest."""

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
        """The newest known state of the task."""
        return self._hold.snapshot

    @property
    def limits(self) -> StoreConfig:
        return self._store.config

    @property
    def has_retries(self) -> bool:
        """Whether the task is run again if this attempt fails."""
        return self.snapshot.task.failures < self._function.retries

    # From start to end

    async def execute(self) -> None:
        """Run the function and store its outcome. Return when that is done, or is no longer possible."""
        if self._hold.is_overdue and not await self._still_holds():
            return self._log_lost(None)
        log.log(
            logging.DEBUG
            if self.attempt == 1
            else logging.INFO,  # a repeated attempt is rare, and of interest
            "task %s: starting attempt %d of function %s",
            self.snapshot.task.task_id,
            self.attempt,
            self._function.name,
        )
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
        """Return whether the claim still exists, although the process was delayed since it was made."""
        try:
            await self._hold.extend()
        except (ClaimLost, StorageError):
            return False
        return True

    def stop(self, why: Stop) -> None:
        """Cancel the function. If it has not ended after the grace period, abandon it.

        The first reason is kept, unless the claim is lost later.
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
            call.exception()  # else asyncio logs that it was never retrieved
        if not self._over.done():
            self._over.set_result(None)

    def _abandon(self) -> None:
        """Stop waiting for the function, which cannot be killed. Its later writes are refused."""
        if self._call is not None and not self._over.done():
            log.warning(
                "task %s: the function did not stop within the grace period (cancel_grace); "
                "its later writes are refused",
                self.snapshot.task.task_id,
            )
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
        """Store the outcome of the call. If a write fails, try again, for up to the duration of a lease."""
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
        what = task.effective_status.value if task.is_terminal else "released"
        log.debug("task %s: attempt %d ended; the task is %s", task.task_id, self.attempt, what)

    def _log_error(self, call: asyncio.Task[Result]) -> None:
        """Log an exception of the function, unless it is meant for the runtime."""
        error = call.exception() if call.done() and not call.cancelled() else None
        if error is not None and not is_signal(error):
            task, name = self.snapshot.task, self._function.name
            shown = loggable(error, is_encrypted=task.is_encrypted)
            log.warning(
                "task %s: function %s raised an exception in attempt %d",
                task.task_id,
                name,
                self.attempt,
                exc_info=shown,
            )

    def _log_lost(self, problem: Exception | None) -> None:
        task = self.snapshot.task
        telemetry.dropped(task)
        if task.status is Status.CANCELLED:
            log.info("task %s was cancelled; discarding the result of attempt %d", task.task_id, self.attempt)
            return
        why = "the claim was lost: the lease has expired, or another process has changed the task"
        if problem is not None:
            why = type_and_text_of(loggable(problem, is_encrypted=task.is_encrypted))
        log.warning(
            "task %s: no outcome was stored for attempt %d: %s",
            task.task_id,
            self.attempt,
            why,
        )

    # Writing

    async def write(self, edit: Edit) -> None:
        """Write an edit of the task for its function. Raise ClaimLost if the run is over."""
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
        """Return an edit that also stores what the function has reported."""
        return lambda task, now, config: edit(self.reporter.apply(task, now, config), now, config)

    def _changed(self) -> None:
        self._news.set()
        if self.snapshot.task.cancel_requested_at is not None:
            self.stop(Stop.CANCELLED)

    # Attending a run that takes longer

    def attend(self) -> None:
        """Start to renew the lease and to watch the task."""
        if not self._attendants and not self._over.done():
            self._attendants = [
                self._loop.create_task(self._persist(work)) for work in (self._beat, self._listen)
            ]

    async def _persist(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, and run it again after an error, until this task is cancelled or the claim is lost."""
        while True:
            try:
                await work()
            except ClaimLost:
                return self.stop(Stop.LEASE_LOST)
            except Exception as error:
                log.warning(
                    "task %s: could not renew the lease or watch for changes; trying again: %s",
                    self.snapshot.task.task_id,
                    type_and_text_of(error),
                )
                await asyncio.sleep(to_seconds(self._config.heartbeat_interval) / 4)

    async def _beat(self) -> None:
        """Renew the lease at each heartbeat. After a failure, try again sooner."""
        pause = interval = to_seconds(self._config.heartbeat_interval)
        while True:
            await asyncio.sleep(pause * uniform(0.8, 1))
            pause = interval if await self._is_extended() else interval / 4

    async def _is_extended(self) -> bool:
        """Renew the lease. Return whether that succeeded.

        Raise ClaimLost if it has not succeeded for so long that another worker may run the task again.
        """
        try:
            await self._hold.extend()
        except StorageError as error:
            log.warning("task %s: could not renew the lease: %s", self.snapshot.task.task_id, error)
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
        """Ask the questions that are new, and wait until all of them are answered.

        If too many runs are waiting, end this run. The task runs again when its questions are answered.
        """
        check_repeated(self.snapshot.task.inputs, requests)
        requests = self._function.with_deadlines(requests)
        if self._lacks(requests):
            with self._slot.reserve_wait() as may_wait:
                await self._ask_and_wait(requests, may_wait=may_wait)
        answered = {key: self.snapshot.task.inputs[key] for key in requests}
        for key, each in answered.items():
            if each.error is not None:
                raise InputFailed(key, each.error)
        return answered

    async def withdraw(self, key: str, request: InputRequest, error: InputError) -> None:
        """Answer an open question with an error. If the question was not stored yet, store both."""
        await self.write(
            lambda task, now, config: edits.fail_question(
                ask_new(task, {key: request}, now, config), key, error, now=now, config=config
            )
        )

    def check_askable(self, requests: Mapping[str, InputRequest]) -> None:
        """Raise ClientCannotAnswer if the client of the task cannot be asked one of the new questions."""
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
        """Wait for answers. Meanwhile, use no slot and pause the function's timeout: users may take long."""
        self.attend()
        self._stopwatch.pause()
        self._waits += 1
        try:
            self._slot.release()
            while self._lacks(keys):
                if self._over.done():  # the function has returned without awaiting this
                    raise ClaimLost
                if self.cancellation.is_requested:  # a coroutine is also cancelled, a thread is not
                    raise TaskCancelled
                await self._until_changed_or_overdue()
        finally:
            await self._work_on()

    async def _until_changed_or_overdue(self) -> None:
        """Return when the task may have changed. Stop the run if a question is past its deadline."""
        self._news.clear()
        deadline = expiry_and_deadlines.question_deadline(self.snapshot.task)
        left = inf if deadline is None else (deadline - self._store.clock()) / 1_000_000
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(left, to_seconds(self._config.queue_poll_interval)))):
                await self._news.wait()
        if self._is_unanswered:
            await self._refresh()  # an answer may have come in time, without a notification
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
            log.warning("could not read task %s: %s", self.snapshot.task.task_id, error)

    async def _work_on(self) -> None:
        """Take a slot again, even if the function itself stopped waiting, and resume the timeout."""
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
