"""The work of the crash test. Each function notes what it does, and leaves a trail in the task's variables.

Each write of an attempt appends one entry to the trail as the attempt knows it. So the final trail tells
which attempt's writes counted, and whether one overwrote another's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from random import Random
from types import TracebackType
from typing import Self

import anyio.from_thread
import msgspec

from perdure.runtime import App, Retry, RuntimeConfig, Task, TaskFailed
from perdure.storage.time_types import to_seconds
from perdure.tasks import StoreConfig
from perdure.tasks.canonical_json import JsonLike
from perdure.tasks.config import DAY_SECONDS
from perdure.tasks.errors import ClaimLost, TerminalTask

from . import journal
from .journal import Began, Denied, Ended, Entry, Heard, Journal, Wrote

QUICK = RuntimeConfig(
    concurrency=24,
    heartbeat_interval=0.15,
    clock_skew=0.0,
    cancel_grace=0.3,
    drain_timeout=0.1,
    report_interval=0.05,
    queue_poll_interval=0.2,
    purge_interval=1.0,
)
"""A lease lasts 0.45 seconds."""
LASTING = StoreConfig(ttl=DAY_SECONDS, retention=DAY_SECONDS, max_tasks_per_owner=30)
"""Nothing is forgotten before it was judged, and no more waits than workers can do in a while."""

REFUSED = (ClaimLost, TerminalTask)


def beating(heartbeat: float) -> RuntimeConfig:
    return msgspec.structs.replace(QUICK, heartbeat_interval=heartbeat)


class Kind(msgspec.Struct, frozen=True):
    """A function, how often it may be run again, and how many questions it asks."""

    call: Callable[..., object]
    retries: int = 0
    restart: bool = True
    questions: int = 0
    often: int = 2
    """How often it is chosen, compared with others."""


def app_on(url: str, to: Journal, heartbeat: float = to_seconds(QUICK.heartbeat_interval)) -> App:
    """The program that all processes share."""
    RunLog.journal = to
    app = App(url, store=LASTING, runtime=beating(heartbeat), application="tests")
    for name, kind in KINDS.items():
        app.function(name=name, retries=kind.retries, restart=kind.restart, backoff=0.02)(kind.call)
    return app


Result = Mapping[str, JsonLike]


class RunLog:
    """What one attempt notes of itself, from its beginning to its end, and the trail that it leaves."""

    journal: Journal

    def __init__(self, task: Task, function: str) -> None:
        self._task = task
        self._function = function
        self._trail = msgspec.convert(task.variables.get("trail") or [], list[Entry])

    def __enter__(self) -> Self:
        self.journal.add(
            Began(task=self._task.id, function=self._function, attempt=self._task.attempt, trail=self._trail)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        how = "returned" if kind is None else kind.__name__
        self.journal.add(Ended(task=self._task.id, attempt=self._task.attempt, how=how))

    @property
    def length(self) -> int:
        """Of the trail, earlier attempts' included."""
        return len(self._trail)

    async def step(self) -> None:
        """One checkpoint, which the next attempt will see."""
        number = self.length + 1
        trail = [*self._trail, (self._task.attempt, number, self.journal.who)]
        called = journal.now()
        try:
            await self._task.set_variables({"trail": trail})
        except REFUSED as error:
            self.journal.add(
                Denied(task=self._task.id, attempt=self._task.attempt, error=type(error).__name__)
            )
            raise
        self._trail = trail
        self.journal.add(Wrote(task=self._task.id, attempt=self._task.attempt, number=number, called=called))

    async def ask(self, question: str) -> None:
        answer = await self._task.elicit(question)
        said = msgspec.json.encode((answer.data or {})["said"]).decode()
        self.journal.add(Heard(task=self._task.id, attempt=self._task.attempt, answer=said))

    def result(self, n: int) -> Result:
        return {"argument": n, "attempt": self._task.attempt, "by": self.journal.who, "trail": self._trail}


async def quick(n: int, task: Task) -> Result:
    with RunLog(task, "quick") as diary:
        return diary.result(n)


async def steps(n: int, task: Task) -> Result:
    """Takes 50 to 500 ms, with checkpoints, and goes on where the last attempt was lost."""
    with RunLog(task, "steps") as diary:
        await _take_steps(n, diary)
        return diary.result(n)


async def once(n: int, task: Task) -> Result:
    """The same, but is never begun twice."""
    with RunLog(task, "once") as diary:
        await _take_steps(n, diary)
        return diary.result(n)


async def _take_steps(n: int, diary: RunLog) -> None:
    chance = Random(n)
    for _ in range(chance.randint(2, 5)):
        await asyncio.sleep(chance.uniform(0.025, 0.1))
        await diary.step()


async def asking(n: int, task: Task) -> Result:
    """Asks two questions, with work before, between and after."""
    with RunLog(task, "asking") as diary:
        await diary.step()
        await diary.ask("Whose name goes on it?")
        await diary.step()
        await asyncio.sleep(Random(n).uniform(0, 0.1))
        await diary.ask("And in which colour?")
        await diary.step()
        return diary.result(n)


async def asking_once(n: int, task: Task) -> Result:
    with RunLog(task, "asking_once") as diary:
        await diary.ask("Shall I?")
        await diary.step()
        return diary.result(n)


def plain(n: int, task: Task) -> Result:
    """Runs in a thread, and looks now and then whether it should end."""
    chance = Random(n)
    with RunLog(task, "plain") as diary:
        for _ in range(chance.randint(1, 3)):
            time.sleep(chance.uniform(0.02, 0.1))
            task.check_cancelled()
            anyio.from_thread.run(diary.step)
        return diary.result(n)


def plain_asking(n: int, task: Task) -> Result:
    """Waits in its thread for an answer."""
    with RunLog(task, "plain_asking") as diary:
        anyio.from_thread.run(diary.step)
        anyio.from_thread.run(diary.ask, "Which one?")
        return diary.result(n)


async def stubborn(n: int, task: Task) -> Result:
    """Does not heed a cancellation for a while, and goes on writing when its lease is lost."""
    chance = Random(n)
    with RunLog(task, "stubborn") as diary:
        for _ in range(chance.randint(3, 12)):
            try:
                await asyncio.sleep(chance.uniform(0.02, 0.08))
                await diary.step()
            except (asyncio.CancelledError, *REFUSED):
                continue
        return diary.result(n)


async def flaky(n: int, task: Task) -> Result:
    """Asks to be run again, twice."""
    with RunLog(task, "flaky") as diary:
        await diary.step()
        if task.attempt < 3:
            raise Retry("busy", after=Random(n).uniform(0, 0.2))
        return diary.result(n)


async def failing(n: int, task: Task) -> Result:
    with RunLog(task, "failing") as diary:
        await diary.step()
        raise TaskFailed(-32001, f"not {n}")


async def patient(n: int, task: Task) -> Result:
    """For tests that must meet it in the middle: its first attempt does not end by itself."""
    with RunLog(task, "patient") as diary:
        await _take_many_steps(task, diary)
        return diary.result(n)


async def patient_once(n: int, task: Task) -> Result:
    with RunLog(task, "patient_once") as diary:
        await _take_many_steps(task, diary)
        return diary.result(n)


async def _take_many_steps(task: Task, diary: RunLog) -> None:
    enough = diary.length + 5
    while task.attempt == 1 or diary.length < enough:
        await asyncio.sleep(0.05)
        await diary.step()


KINDS = {
    "quick": Kind(quick, often=3),
    "steps": Kind(steps, often=6),
    "once": Kind(once, restart=False, often=4),
    "asking": Kind(asking, questions=2, often=4),
    "asking_once": Kind(asking_once, restart=False, questions=1),
    "plain": Kind(plain, often=3),
    "plain_asking": Kind(plain_asking, questions=1),
    "stubborn": Kind(stubborn, often=3),
    "flaky": Kind(flaky, retries=3),
    "failing": Kind(failing, often=1),
    "patient": Kind(patient, often=0),
    "patient_once": Kind(patient_once, restart=False, often=0),
}


def choose(chance: Random) -> str:
    [name] = chance.choices(list(KINDS), [kind.often for kind in KINDS.values()])
    return name
