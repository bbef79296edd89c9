"""The port through which claimed work is done, and the executor that does it in this process.

An executor is free in where it runs the work. It does not keep the lease: that lives in the storage, and
whoever does the work extends it, writes under it, and ends the task with it, as `Run` does.
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
    """A claimed task, what to run for it, and its place among the running."""

    claim: Claim
    function: Function
    slot: Slot


class Executor(ABC):
    """Does claimed work."""

    @abstractmethod
    async def submit(self, job: Job) -> None:
        """Do it. Returns when the run is over and what came of it is written, or cannot be any more.

        Raises only if the work was not begun: then it is handed back.
        """

    @abstractmethod
    def cancel(self, task_id: TaskId, why: Stop) -> None:
        """Make a run end, if it is here. Returns at once; repeating it changes nothing."""


class InProcessExecutor(Executor):
    """Coroutine functions in the event loop, plain ones in threads."""

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
