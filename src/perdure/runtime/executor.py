"""`Executor`, the interface for running claimed tasks, and the executor that runs them in this process.

An executor may run a task anywhere. The code that runs the task has to renew its lease, include the lease in
every write of the task, and end or release the task and its lease in the same commit, as `Run` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from ..tasks import TaskId, TaskStore
from . import telemetry
from .config import RuntimeConfig
from .endings import Stop
from .function import Function
from .hold import Claim
from .run import Run
from .slots import Slot


class Job(msgspec.Struct, frozen=True):
    """A claimed task, the function to run for it, and the slot of the run."""

    claim: Claim
    function: Function
    slot: Slot


class Executor(ABC):
    """Runs claimed tasks."""

    @abstractmethod
    async def submit(self, job: Job) -> None:
        """Run a task. Return when the run has ended, and its outcome is stored or can no longer be stored.

        Raise an error only if the function was not started; the task is then handed back.
        """

    @abstractmethod
    def cancel(self, task_id: TaskId, why: Stop) -> None:
        """Stop the run of a task if this executor has one. Return at once. Repeated calls change nothing."""


class InProcessExecutor(Executor):
    """Runs coroutine functions in the event loop, and plain functions in threads."""

    def __init__(self, store: TaskStore, config: RuntimeConfig) -> None:
        self._store = store
        self._config = config
        self._runs: dict[TaskId, Run] = {}

    async def submit(self, job: Job) -> None:
        task = job.claim.snapshot.task
        run = Run(job.claim, job.function, store=self._store, config=self._config, slot=job.slot)
        self._runs[task.task_id] = run
        telemetry.began(task)
        try:
            with telemetry.running(task):
                await run.execute()
        finally:
            telemetry.stopped(task)
            if self._runs.get(task.task_id) is run:  # not a later run of the same task
                del self._runs[task.task_id]

    def cancel(self, task_id: TaskId, why: Stop) -> None:
        run = self._runs.get(task_id)
        if run is not None:
            run.stop(why)
