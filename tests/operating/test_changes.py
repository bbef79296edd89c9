"""What an operator does to other people's tasks follows the rules that hold for them."""

from __future__ import annotations

import pytest

from perdure.operating import NoOpenQuestion, Operator, outcome_json
from perdure.runtime import App, Task
from perdure.runtime.lease import Holder
from perdure.storage.kit import Subject
from perdure.storage.time_types import DAY, SECOND
from perdure.tasks import Json, NewTask, Owner, Snapshot, Status, Success, TaskStore
from perdure.tasks.errors import MalformedAnswer, NotFound, TerminalTask

from .. import task_edits
from ..markers import once, strong_memory
from ..tasks.samples import ANA, BOB, Clock, created
from .conftest import close
from .test_queries import QUESTION

pytestmark = [pytest.mark.anyio, strong_memory("operators read across partitions, and each test at once")]

ACCEPTED: Json = {"action": "accept", "content": {"name": "Ana"}}


async def place_of(operator: Operator, snapshot: Snapshot) -> tuple[str, str]:
    row = (await operator.find(snapshot.task.task_id)).summary
    return row.locator, row.task_id


async def asking(store: TaskStore, owner: Owner = ANA) -> Snapshot:
    (task,) = await created(store, 1, owner)
    return await task_edits.ask(store, task, {"q": QUESTION})


# Cancelling


@pytest.mark.parametrize("owner", [ANA, Owner.local(), Owner.anonymous()], ids=lambda owner: owner.kind)
async def test_a_task_that_waits_is_cancelled_at_once(
    store: TaskStore, operator: Operator, owner: Owner
) -> None:
    (task,) = await created(store, 1, owner)
    place = await place_of(operator, task)
    assert (await operator.cancel(*place)).status is Status.CANCELLED
    assert (await store.get(owner, task.task.task_id)).task.status is Status.CANCELLED
    with pytest.raises(TerminalTask):
        await operator.cancel(*place)


async def test_the_worker_of_a_task_that_runs_is_asked_to_end_it(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    new = NewTask(method="tools/call", function="f")
    task = await store.create(
        ANA, new, lease=lambda task: Holder("w#1", "tests", SECOND, clock).take(task, None)
    )
    row = await operator.cancel(*await place_of(operator, task))
    assert (row.status, row.display_status) == (Status.WORKING, "cancelling")
    assert (await store.get(ANA, task.task.task_id)).task.cancel_requested_at == clock.now


# Answering


async def test_an_answer_resumes_the_task(store: TaskStore, operator: Operator) -> None:
    task = await asking(store)
    row = await operator.answer(*await place_of(operator, task), "q", ACCEPTED)
    assert (row.status, row.open_questions) == (Status.WORKING, 0)
    answered = (await store.get(ANA, task.task.task_id)).task.inputs["q"]
    assert answered.is_answered


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "accept", "content": {}},
        {"action": "accept", "content": {"name": 7}},
        {"action": "perhaps"},
        "Ana",
    ],
    ids=str,
)
@once
async def test_an_answer_that_is_not_what_the_form_asks_for_changes_nothing(
    store: TaskStore, operator: Operator, wrong: Json
) -> None:
    task = await asking(store)
    with pytest.raises(MalformedAnswer):
        await operator.answer(*await place_of(operator, task), "q", wrong)
    assert await store.get(ANA, task.task.task_id) == task


async def test_what_was_not_asked_cannot_be_answered(store: TaskStore, operator: Operator) -> None:
    task = await asking(store)
    place = await place_of(operator, task)
    with pytest.raises(NoOpenQuestion, match="open questions are 'q'"):
        await operator.answer(*place, "other", ACCEPTED)
    await operator.answer(*place, "q", {"action": "decline"})
    with pytest.raises(NoOpenQuestion, match="no question is open"):
        await operator.answer(*place, "q", ACCEPTED)
    await operator.cancel(*place)
    with pytest.raises(TerminalTask):
        await operator.answer(*place, "q", ACCEPTED)


async def test_a_running_task_is_answered_and_another_cancelled_from_outside(subject: Subject) -> None:
    app = App(subject.storage, application="tests")

    @app.function
    async def sign(task: Task) -> Json:
        return ((await task.elicit("Whose name?", {"type": "object"})).data or {})["name"]

    operator = Operator(await subject.another_client())
    async with app.open() as runtime:
        signed, dropped = [await runtime.submit("sign", owner=ANA) for _ in range(2)]
        for each in (signed, dropped):
            async for state in runtime.watch(ANA, each.task.task_id):
                if state.task.outstanding:
                    break
        seen = await operator.find(signed.task.task_id)
        assert seen.summary.is_claimed
        await operator.answer(seen.summary.locator, seen.summary.task_id, seen.questions[0].key, ACCEPTED)
        await operator.cancel(*await place_of(operator, dropped))
        ended = [await runtime.wait(ANA, each.task.task_id, 30) for each in (signed, dropped)]
    assert outcome_json(ended[0].task.outcome) == {"result": "Ana"}
    assert ended[1].task.status is Status.CANCELLED
    await close(subject, operator.storage)


# Removing


async def test_what_has_expired_is_counted_first_and_removed_then(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    await created(store, 3)
    clock.advance(2 * DAY)
    await created(store, 2, BOB)
    for _ in range(2):  # counting is not removing
        counted = await operator.purge(dry_run=True)
        assert (counted.expired, counted.finished) == (3, 0)
    assert (await operator.stats()).expired == 3
    assert (await operator.purge()).expired == 3
    assert (await operator.purge()).expired == 0
    assert (await operator.counts())[Status.WORKING] == 2


async def test_only_tasks_that_ended_before_a_time_are_removed_by_it(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    early, failed, late, running = await created(store, 4)
    await task_edits.finish(store, early, Success.of(1))
    await task_edits.finish(store, failed, Success.of(1, error="no disk"))
    clock.advance(SECOND)
    time = clock.now
    clock.advance(SECOND)
    await task_edits.cancel(store, late)
    assert (await operator.purge(finished_before=time, dry_run=True)).finished == 2
    assert (await operator.purge(finished_before=time)).finished == 2
    for removed in (early, failed):
        with pytest.raises(NotFound):
            await store.get(ANA, removed.task.task_id)
    for kept in (late, running):
        await store.get(ANA, kept.task.task_id)
