"""`Runtime`: tasks that run. Create them here, cancel, answer, wait for and watch them, from any process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, suppress

from msgspec import UNSET, UnsetType

from ..storage import Micros
from ..storage.errors import OutcomeUnknown, StorageFailed
from ..storage.time_types import Duration, to_milliseconds, to_seconds
from ..tasks import NewTask, Owner, Snapshot, Status, StoreConfig, TaskRecord, TaskStore, edits
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import MalformedAnswer
from ..tasks.inputs import InputError
from ..tasks.lifecycle import ACTIVE_STATUSES
from ..tasks.stored_task import LEASES, TASKS
from ..tasks.variables_and_checkpoint import check_from_client
from . import lease as leases
from . import telemetry
from .attendance import Attendance
from .config import RuntimeConfig
from .deadline import edit_with_lease
from .endings import Stop
from .errors import QueueFull
from .executor import Executor, InProcessExecutor
from .function import Function, Functions
from .waiting import look, states
from .worker import Worker

CANCEL_ATTEMPTS = 3
"""How often `cancel_now` tries to write, if it does not learn whether it has written."""
LOCAL = Owner.local()
"""Whose tasks are, where nobody else is named: the one user of a program."""


class Runtime:
    """Runs tasks of a store, within `running`. Without it, creates tasks for others to run."""

    def __init__(
        self,
        store: TaskStore,
        functions: Functions,
        config: RuntimeConfig = RuntimeConfig(),
        *,
        executor: Executor | None = None,
        name: str | None = None,
    ) -> None:
        telemetry.observer.look()
        self.store = store
        self.functions = functions
        self._config = config
        self._executor = executor or InProcessExecutor(store, config)
        self._worker = Worker(store, functions, self._executor, config, name=name)
        self.attendance = Attendance(store, config, self._worker.name)
        """The tasks for which clients wait in this process, and which end with it."""

    @property
    def name(self) -> str:
        """The worker, as it is named in leases."""
        return self._worker.name

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Runtime]:
        """Work within this block: claim, run, recover and sweep. Leaving it finishes or hands back."""
        async with self._worker.working():
            yield self

    async def submit(
        self,
        function: str,
        arguments: Mapping[str, JsonLike] = {},
        *,
        owner: Owner = LOCAL,
        ttl: Duration | None = None,
        idempotency_key: str | None = None,
    ) -> Snapshot:
        """Create a task that calls a function with these arguments. Here if there is room, else anywhere.

        A task that is not started within `ttl` expires. By default, the ttl is that of the store's settings.
        """
        new = NewTask(
            method="tools/call",
            params={"name": function, "arguments": arguments},
            ttl_ms=UNSET if ttl is None else to_milliseconds(ttl),
            function=function,
            idempotency_key=idempotency_key,
        )
        return await self.create(owner, new)

    async def get(self, owner: Owner, task_id: str) -> Snapshot:
        """The task as it is now."""
        return await self.store.get(owner, task_id)

    async def create(self, owner: Owner, new: NewTask) -> Snapshot:
        """Create a task for a function. When this returns it is stored, and in work or waiting for it."""
        function = self.functions.known(new.function or "")
        with telemetry.creating(function.name):
            snapshot = await self._create(owner, new, function)
            telemetry.created(snapshot.task)
        return snapshot

    async def _create(self, owner: Owner, new: NewTask, function: Function) -> Snapshot:
        function.check(None if isinstance(new.params, UnsetType) else new.params)
        slot = self._worker.reserve(function)
        if slot is not None:
            return await self._worker.create(owner, new, function, slot)
        await self._check_room()
        return await self.store.create(owner, new)

    async def _check_room(self) -> None:
        """May be exceeded by the creates in flight, as the store's own maximum."""
        most = self._config.max_queued
        if most is None:
            return
        now = self.store.clock()
        tasks, held = await asyncio.gather(
            self.store.storage.counts(TASKS, now=now), self.store.storage.counts(LEASES, now=now)
        )
        if sum(tasks.get(status, 0) for status in ACTIVE_STATUSES) - held.get(leases.HELD, 0) >= most:
            raise QueueFull(most)

    async def cancel(self, owner: Owner, task_id: str) -> Snapshot:
        """End a task that waits, at once; ask the worker of one that runs, wherever it is, to end it.

        Raises TerminalTask where the task has ended already.
        """
        return await self.store.update(owner, task_id, self._cancel)

    async def _cancel(self, snapshot: Snapshot) -> Snapshot:
        if not snapshot.task.is_claimed:
            return await self._end_as_cancelled(snapshot)
        flagged = await self.store.request_cancel(snapshot)
        self._executor.cancel(flagged.task.task_id, Stop.CANCELLED)
        return flagged

    async def cancel_now(self, owner: Owner, task_id: str) -> Snapshot:
        """End a task as cancelled at once, also one that runs: nothing that its run does counts any more.

        Raises TerminalTask if the task has ended already.
        """
        cancelled = await self._cancelled(owner, task_id)
        self._executor.cancel(cancelled.task.task_id, Stop.CANCELLED)
        return cancelled

    async def _cancelled(self, owner: Owner, task_id: str, attempts: int = CANCEL_ATTEMPTS) -> Snapshot:
        """Write that a task is cancelled. Doing that twice does no harm, so it is repeated if its outcome is
        unknown.
        """
        try:
            return await self.store.update(owner, task_id, self._end_as_cancelled)
        except OutcomeUnknown:
            read = await self.store.get(owner, task_id)
            if read.task.status is Status.CANCELLED:
                return read
            if attempts == 1:
                raise
        return await self._cancelled(owner, task_id, attempts - 1)

    async def _end_as_cancelled(self, snapshot: Snapshot) -> Snapshot:
        return await edit_with_lease(
            self.store, snapshot, lambda task, now, config: edits.cancel(task, now=now, config=config)
        )

    async def answer(
        self,
        owner: Owner,
        task_id: str,
        answers: Mapping[str, JsonLike],
        variables: Mapping[str, JsonLike] = {},
        *,
        attended_by: str | None = None,
    ) -> Snapshot:
        """Store answers to questions of the task, and set variables: all of it in one write, or nothing.

        With `attended_by`, the task ends with the process of this name from now on.

        After the last answer the task resumes, wherever it runs. Keys that are not outstanding are ignored.
        Raise MalformedAnswer if an answer does not match its form, and TerminalTask if the task has ended.
        """
        check_from_client(variables)

        def answered(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
            changed = task
            if variables:
                changed = edits.set_variables(changed, variables, now=now, config=config)
            if answers:
                changed = edits.answer(changed, answers, now=now, config=config)
            return changed if attended_by is None else edits.attend(changed, attended_by, now=now)

        def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
            try:
                return answered(task, now, config)
            except MalformedAnswer as error:
                raise (error.without_values() if task.is_encrypted else error) from None

        return await self.store.update(owner, task_id, lambda read: self.store.edit(read, edit))

    async def leave(
        self, owner: Owner, task_id: str, questions: Collection[str] = (), *, answer_within: Duration = 0
    ) -> Snapshot:
        """Let a task continue without the process that attended it.

        The questions with these keys must be answered within this time. Raise TerminalTask if the task has
        ended.
        """
        within = to_milliseconds(answer_within) * 1000

        def edit(task: TaskRecord, now: Micros, _: StoreConfig) -> TaskRecord:
            return edits.limit_questions(edits.attend(task, None, now=now), questions, now + within, now=now)

        return await self.store.update(owner, task_id, lambda read: self.store.edit(read, edit))

    async def fail_question(self, owner: Owner, task_id: str, key: str, error: InputError) -> Snapshot:
        """Store a JSON-RPC error as the answer to a question. Raise TerminalTask if the task has ended."""

        def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
            return edits.fail_question(task, key, error, now=now, config=config)

        return await self.store.update(owner, task_id, lambda read: self.store.edit(read, edit))

    async def wait(self, owner: Owner, task_id: str, timeout: Duration | None = None) -> Snapshot:  # noqa: ASYNC109
        """The task once it has ended. TimeoutError if it has not within so many seconds.

        One look is taken in any case, however little time there is.
        """
        snapshot = await self.store.get(owner, task_id)
        if snapshot.task.is_terminal:
            return snapshot
        async with asyncio.timeout(None if timeout is None else to_seconds(timeout)):
            job = self._worker.job_of(snapshot.task.task_id)
            if job is not None:  # it runs here, and needs no watching
                await asyncio.wait((job,))
                with suppress(StorageFailed):  # then it is read again below
                    snapshot = await look(self.store, owner, task_id) or snapshot
            if not snapshot.task.is_terminal:
                async with aclosing(self.watch(owner, task_id)) as seen:
                    async for state in seen:
                        snapshot = state  # the last one is the end
        return snapshot

    async def later(self, owner: Owner, snapshot: Snapshot, seconds: float) -> Snapshot:
        """The task after so many seconds, or as soon as it is seen to have changed."""
        task_id = snapshot.task.task_id
        job = self._worker.job_of(task_id)
        if job is not None:  # it runs here, and needs no watching
            await asyncio.wait((job,), timeout=seconds)
            return await self.store.get(owner, task_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), aclosing(self.watch(owner, task_id)) as seen:
                async for state in seen:
                    if state.version > snapshot.version:
                        return state
        return snapshot

    def watch(self, owner: Owner, task_id: str) -> AsyncGenerator[Snapshot]:
        """The task as it is now, and each state it is seen in from now on, up to its end."""
        return states(self.store, owner, task_id, to_seconds(self._config.queue_poll_interval))
