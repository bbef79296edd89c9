"""`Runtime` creates, runs, cancels, watches and waits for tasks, and answers their questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, suppress

from msgspec import UnsetType

from ..storage import Micros
from ..storage.errors import OutcomeUnknown, StorageFailed
from ..storage.time_types import Duration, to_milliseconds, to_seconds
from ..tasks import NewTask, Owner, Snapshot, Status, StoreConfig, TaskRecord, TaskStore, edits
from ..tasks.canonical_json import JsonLike
from ..tasks.errors import MalformedAnswer
from ..tasks.inputs import InputError
from ..tasks.lifecycle import ACTIVE_STATUSES
from ..tasks.task_snapshot import LEASES, TASKS
from ..tasks.variables_and_checkpoint import check_from_client
from . import lease as leases
from . import telemetry
from .attendance import Attendance
from .config import RuntimeConfig
from .deadline import edit_with_lease
from .endings import Stop
from .errors import QueueFull
from .executor import Executor, InProcessExecutor
from .function import Functions
from .waits import look, states
from .worker import Worker

CANCEL_ATTEMPTS = 3
"""Maximum number of times that `cancel_now` tries to write if the outcome of a write is unknown."""
LOCAL = Owner.local()
"""The owner of tasks that are created without one: the only user of a program."""


class Runtime:
    """Creates tasks, and runs them within `running`. Otherwise, other processes run the tasks."""

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
        """The lease for tasks whose clients wait in this process. These tasks end with the process."""

    @property
    def name(self) -> str:
        """The name of this worker in leases."""
        return self._worker.name

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Runtime]:
        """Claim, run, recover and purge tasks within this block.

        At its end, let active runs finish for a while, and then hand back the tasks of the others.
        """
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
        """Create a task that calls a function with these arguments.

        The task runs in this process if there is a free slot, and otherwise in any process that has one. A
        task that is not started within `ttl` expires. By default, the ttl is that of the function or, if it
        has none, of the store's settings.
        """
        known = self.functions.known(function)
        new = NewTask(
            method="tools/call",
            params={"name": function, "arguments": arguments},
            ttl_ms=known.ttl_ms if ttl is None else to_milliseconds(ttl),
            operators_answer=known.operators_answer,
            function=function,
            idempotency_key=idempotency_key,
        )
        return await self.create(owner, new)

    async def get(self, owner: Owner, task_id: str) -> Snapshot:
        """Return the current state of a task."""
        return await self.store.get(owner, task_id)

    async def create(self, owner: Owner, new: NewTask) -> Snapshot:
        """Create a task for a function. When this returns, the task is stored, and is running or queued."""
        function = self.functions.known(new.function or "")
        with telemetry.creating(function.name):
            function.check(None if isinstance(new.params, UnsetType) else new.params)
            slot = self._worker.reserve(function)
            if slot is not None:
                snapshot = await self._worker.create(owner, new, function, slot)
            else:
                await self._check_room()
                snapshot = await self.store.create(owner, new)
            telemetry.created(snapshot.task)
        return snapshot

    async def _check_room(self) -> None:
        """Raise QueueFull if too many tasks are queued. Concurrent calls can exceed the limit a little."""
        limit = self._config.max_queued
        if limit is None:
            return
        now = self.store.clock()
        tasks, held = await asyncio.gather(
            self.store.storage.counts(TASKS, now=now), self.store.storage.counts(LEASES, now=now)
        )
        if sum(tasks.get(status, 0) for status in ACTIVE_STATUSES) - held.get(leases.HELD, 0) >= limit:
            raise QueueFull(limit)

    async def cancel(self, owner: Owner, task_id: str) -> Snapshot:
        """Cancel a task. A queued task ends at once; a running task ends when its worker has stopped it.

        Raise TerminalTask if the task has ended already.
        """
        return await self.store.update(owner, task_id, self._cancel)

    async def _cancel(self, snapshot: Snapshot) -> Snapshot:
        if not snapshot.task.is_claimed:
            return await self._end_as_cancelled(snapshot)
        flagged = await self.store.request_cancel(snapshot)
        self._executor.cancel(flagged.task.task_id, Stop.CANCELLED)
        return flagged

    async def cancel_now(self, owner: Owner, task_id: str) -> Snapshot:
        """Cancel a task at once, even if it is running. What its run does after that is discarded.

        Raise TerminalTask if the task has ended already.
        """
        cancelled = await self._cancelled(owner, task_id)
        self._executor.cancel(cancelled.task.task_id, Stop.CANCELLED)
        return cancelled

    async def _cancelled(self, owner: Owner, task_id: str, attempts: int = CANCEL_ATTEMPTS) -> Snapshot:
        """Write that a task is cancelled. If the outcome of the write is unknown, repeat it."""
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
        """Store answers to questions of the task, and set variables, in one write.

        After the last answer, the task resumes in any process. Answers to questions that are not open are
        ignored. With `attended_by`, the task is cancelled if the process with this name stops or is lost.
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

        The questions with the keys `questions` must be answered within `answer_within`. Raise TerminalTask if
        the task has ended.
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
        """Return the task once it has ended. Raise TimeoutError if it has not ended within `timeout`.

        The task is read at least once, however short the timeout is.
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
                        snapshot = state  # the last one is the ended task
        return snapshot

    async def later(self, owner: Owner, snapshot: Snapshot, seconds: float) -> Snapshot:
        """Return the task after a number of seconds, or as soon as it has changed."""
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
        """Yield the current state of a task, and each newer state that is read, until the task has ended."""
        return states(self.store, owner, task_id, to_seconds(self._config.queue_poll_interval))
