"""Operators see the tasks of all applications, and which applications there are."""

from __future__ import annotations

import pytest

from perdure.operating import ApplicationCounts, Operator
from perdure.operating.applications import count_applications
from perdure.operating.maintenance import check_storage
from perdure.storage import open_storage
from perdure.storage.kit import Subject
from perdure.tasks import InputKind, InputRequest, NewTask, Owner, Status, Success, TaskStore
from perdure.tasks.canonical_json import JsonLike
from perdure.tasks.encryption import Keyring

from .. import task_edits
from ..markers import strong_memory
from ..storage.engines import new_url
from ..tasks.samples import ANA, CALL, Clock, created

pytestmark = [pytest.mark.anyio, strong_memory("operators read across partitions, and each test at once")]

QUESTION = InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose name?"})


@pytest.fixture
async def renamed(subject: Subject, store: TaskStore, clock: Clock) -> TaskStore:
    """The store of another application on the storage, which is what a renamed server is."""
    return TaskStore(subject.storage, store.config, application="a/b: <new>", clock=clock)


def shown(found: ApplicationCounts) -> dict[str, dict[str, int]]:
    return {
        each.name: {status.value: count for status, count in each.counts.items() if count}
        for each in found.applications
    }


async def test_the_applications_of_a_storage_are_counted(
    store: TaskStore, renamed: TaskStore, operator: Operator
) -> None:
    made = await created(store, 3)
    await task_edits.finish(store, made[0], Success.of(1))
    await task_edits.finish(store, made[1], Success.of(1, error="failed"))
    await task_edits.ask(renamed, await renamed.create(Owner.anonymous(), CALL), {"name": QUESTION})
    found = await operator.applications()
    assert found.is_complete
    assert shown(found) == {
        "a/b: <new>": {"input_required": 1},
        "tests": {"working": 1, "completed": 1, "failed": 1},
    }
    assert [each.total for each in found.applications] == [1, 3]


async def test_a_count_is_bounded_and_starts_with_the_oldest_active_tasks(
    store: TaskStore, renamed: TaskStore, clock: Clock
) -> None:
    await created(store, 1)
    clock.advance(1)
    await created(renamed, 3)
    for limits in ({"max_records": 2}, {"max_chars": 400}):
        found = await count_applications(store.storage, **limits, now=clock.now)
        assert not found.is_complete
        assert shown(found) == {"a/b: <new>": {"working": 1}, "tests": {"working": 1}}


async def test_tasks_of_all_applications_are_listed_or_those_of_one(
    store: TaskStore, renamed: TaskStore, operator: Operator
) -> None:
    (old,) = await created(store, 1)
    (new,) = await created(renamed, 1)
    everything = (await operator.tasks()).tasks
    assert {task.task_id: task.application for task in everything} == {
        old.task.task_id: "tests",
        new.task.task_id: "a/b: <new>",
    }
    for application, expected in (("tests", [old]), ("a/b: <new>", [new]), ("other", [])):
        page = await operator.tasks(application=application)
        assert [task.task_id for task in page.tasks] == [each.task.task_id for each in expected]
    assert (await operator.tasks(application="tests", name="nothing")).tasks == ()


async def test_tasks_of_every_application_are_found_cancelled_and_answered(
    renamed: TaskStore, operator: Operator
) -> None:
    for owner in (ANA, Owner.local(), Owner.anonymous()):
        asked = await task_edits.ask(renamed, await renamed.create(owner, CALL), {"name": QUESTION})
        summary = (await operator.find(asked.task.task_id)).summary
        assert summary.application == "a/b: <new>"
        answer: JsonLike = {"action": "accept", "content": {}}
        answered = await operator.answer(summary.locator, summary.task_id, "name", answer)
        assert answered.status is Status.WORKING
        assert (await operator.cancel(summary.locator, summary.task_id)).status is Status.CANCELLED


async def test_a_purge_deletes_the_tasks_of_every_application(
    store: TaskStore, renamed: TaskStore, operator: Operator, clock: Clock
) -> None:
    for each in (store, renamed):
        await task_edits.finish(each, await each.create(ANA, NewTask(method="m")), Success.of(1))
    assert (await operator.purge(finished_before=clock.now)).finished == 2
    assert (await operator.tasks()).tasks == ()


async def test_doctor_counts_the_tasks_of_each_application(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = await new_url("sqlite", tmp_path_factory.mktemp("doctor"))
    async with await open_storage(url) as storage:
        for application, count in (("shop", 2), ("renamed", 1)):
            await created(TaskStore(storage, application=application), count)
    health = await check_storage(url, repair=False, keys=Keyring())
    assert {each.name: each.total for each in health.applications} == {"renamed": 1, "shop": 2}
