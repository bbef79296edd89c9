"""Slots: a worker and a function run as many as they may, and who waits for an answer lends its own."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest

from perdure.runtime import InputFailed, Runtime, Task
from perdure.tasks import InputKind, Snapshot, Status
from perdure.tasks.inputs import InputError

from ..conditions import wait_until
from ..markers import row
from .apps import run_all
from .faulty_storage import ME, STEADY_HEARTBEAT, several_heartbeats, until_status
from .replicas import Replicas, new_app, value_of, with_concurrency

pytestmark = pytest.mark.anyio


class Crowd:
    """How many are at work, now and at most."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def enter(self, name: str) -> None:
        for each in (name, "all"):
            self.now[each] += 1
            self.most[each] = max(self.most[each], self.now[each])

    def leave(self, name: str) -> None:
        self.now.subtract([name, "all"])

    async def work(self, name: str) -> None:
        self.enter(name)
        await asyncio.sleep(0.01)
        self.leave(name)

    async def work_until(self, name: str, many: str, count: int) -> None:
        """Work until so many were at it together, and so long that more might come."""
        self.enter(name)
        await wait_until(lambda: self.most[many] >= count)
        await asyncio.sleep(0.2)
        self.leave(name)


@row(65)
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_worker_runs_as_many_as_it_may_and_no_more(replicas: Replicas, where: str) -> None:
    app, crowd = new_app(), Crowd()

    @app.function()
    async def work() -> None:
        await crowd.work_until("work", "work", 3)

    worker = await replicas.start(app, with_concurrency(3))
    creator = worker if where == "here" else await replicas.start(app, work=False)
    await run_all(creator, ["work"] * 15)
    assert crowd.most["work"] == 3


@row(65)
async def test_a_function_has_its_own_limit_within_its_workers(replicas: Replicas) -> None:
    app, crowd = new_app(), Crowd()

    @app.function(concurrency=2)
    async def narrow() -> None:
        await crowd.work_until("narrow", "narrow", 2)

    @app.function()
    async def wide() -> None:
        await crowd.work_until("wide", "all", 5)

    creator = await replicas.start(app, work=False)
    made = [await creator.submit(name) for name in ["narrow"] * 8 + ["wide"] * 12]
    await replicas.start(app, with_concurrency(5))
    for each in made:
        await creator.wait(ME, each.task.task_id, 60)
    assert (crowd.most["narrow"], crowd.most["all"]) == (2, 5)


class Asking:
    """One slot: a task asks and waits, another works, and the first is answered while the other works."""

    def __init__(self) -> None:
        self.app = new_app()
        self.crowd = Crowd()
        self.order: list[str] = []
        self.go_on = asyncio.Event()
        self.tasks: list[Task] = []

        @self.app.function(concurrency=1)
        async def work(name: str, task: Task) -> None:
            self.crowd.enter("work")
            if name == "asks":
                await self._ask(task)
            elif name == "waits":
                await self.go_on.wait()
            self.order.append(name)
            self.crowd.leave("work")

    async def _ask(self, task: Task) -> None:
        self.tasks.append(task)
        self.crowd.leave("work")
        await task.elicit("Whose?", key="whose")
        self.crowd.enter("work")

    async def begin(self, runtime: Runtime) -> tuple[Snapshot, Snapshot]:
        """The one that asks, once it waits, and the one that has taken its slot."""
        asks = await runtime.submit("work", {"name": "asks"})
        await until_status(runtime, asks, Status.INPUT_REQUIRED)
        waits = await runtime.submit("work", {"name": "waits"})
        await wait_until(lambda: self.crowd.now["work"] == 1)
        return asks, waits

    async def answer(self, runtime: Runtime, asks: Snapshot) -> None:
        """Return when the run that asked has heard of the answer."""
        await runtime.answer(ME, asks.task.task_id, {"whose": {"action": "decline"}})
        await wait_until(lambda: self.tasks[0].questions["whose"].is_answered)


@row(65)
async def test_a_run_that_waits_for_an_answer_lends_its_slot_and_gets_one_back(replicas: Replicas) -> None:
    asking = Asking()
    runtime = await replicas.start(asking.app, STEADY_HEARTBEAT)
    asks, waits = await asking.begin(runtime)
    await asking.answer(runtime, asks)
    await several_heartbeats(runtime, asks, 1)
    assert asking.order == []  # answered, and still waiting for the slot that it lent
    asking.go_on.set()
    for each in (waits, asks):
        await runtime.wait(ME, each.task.task_id, 60)
    assert asking.order == ["waits", "asks"]
    assert asking.crowd.most["work"] == 1


@row(65)
async def test_who_was_answered_comes_before_who_has_not_begun(replicas: Replicas) -> None:
    asking = Asking()
    runtime = await replicas.start(asking.app, STEADY_HEARTBEAT)
    asks, waits = await asking.begin(runtime)
    late = [await runtime.submit("work", {"name": "late"}) for _ in range(3)]
    await asking.answer(runtime, asks)
    await several_heartbeats(runtime, asks, 1)
    asking.go_on.set()
    for each in (waits, asks, *late):
        await runtime.wait(ME, each.task.task_id, 60)
    assert asking.order == ["waits", "asks", "late", "late", "late"]
    assert asking.crowd.most["work"] == 1


@row(65)
async def test_a_run_that_gives_up_waiting_takes_a_slot_again_before_it_continues(replicas: Replicas) -> None:
    app, crowd = new_app(), Crowd()
    scopes, released = list[anyio.CancelScope](), asyncio.Event()

    @app.function()
    async def asks(task: Task) -> str:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await task.elicit("?", {"type": "object", "properties": {}})
        crowd.enter("asks")
        crowd.leave("asks")
        return "gave up"

    @app.function()
    async def works() -> None:
        crowd.enter("works")
        await released.wait()
        crowd.leave("works")

    runtime = await replicas.start(app, with_concurrency(1))
    first = await runtime.submit("asks")
    await until_status(runtime, first, Status.INPUT_REQUIRED)
    second = await runtime.submit("works")
    await wait_until(lambda: crowd.now["works"] == 1)
    scopes[0].cancel()
    await asyncio.sleep(0.2)
    assert crowd.most["asks"] == 0
    released.set()
    assert value_of(await runtime.wait(ME, first.task.task_id, 60)) == "gave up"
    await runtime.wait(ME, second.task.task_id, 60)
    assert crowd.most["all"] == 1


@pytest.mark.parametrize("timeout", [0, 0.05])
async def test_a_question_without_an_answer_in_time_is_withdrawn(replicas: Replicas, timeout: float) -> None:  # noqa: ASYNC109
    app = new_app()

    @app.function()
    async def asks(task: Task) -> str:
        late = InputError(code=-1, message="too late")
        with pytest.raises(InputFailed, match="too late"):
            await task.ask_one(InputKind.ELICITATION, {"message": "?"}, timeout=timeout, timeout_error=late)
        return ", ".join(str(each.is_answered) for each in task.questions.values())

    runtime = await replicas.start(app)
    made = await runtime.submit("asks")
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == "True"
