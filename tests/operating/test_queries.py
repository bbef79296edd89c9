"""What an operator sees of the tasks of all owners, and what is never shown."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from perdure.operating import AmbiguousId, IdTooShort, Operator, TaskSummary, outcome_json
from perdure.runtime.lease import Holder
from perdure.storage import MAX_PAGE_BYTES, Record
from perdure.storage.kit.sample_records import insert_each
from perdure.storage.time_types import SECOND
from perdure.tasks import (
    Failure,
    InputKind,
    InputRequest,
    NewTask,
    Owner,
    Progress,
    Status,
    Success,
    TaskId,
    TaskStore,
    edits,
)
from perdure.tasks.errors import InvalidCursor, InvalidValue, NotFound
from perdure.tasks.task_snapshot import TASKS

from .. import task_edits
from ..markers import strong_memory
from ..tasks.samples import ANA, BOB, CALL, Clock, created

pytestmark = [pytest.mark.anyio, strong_memory("operators read across partitions, and each test at once")]

SECRET = "the-subject-of-a-token"  # noqa: S105 - tests check that it is not printed
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
QUESTION = InputRequest(
    kind=InputKind.ELICITATION, params={"message": "Whose name?", "requestedSchema": FORM}
)


async def walked(
    operator: Operator, limit: int, *, statuses: Sequence[Status] | None = None, name: str | None = None
) -> list[TaskSummary]:
    """All rows, page by page."""
    page = await operator.tasks(statuses=statuses, name=name, limit=limit)
    rows = list(page.tasks)
    while page.next_cursor is not None:
        page = await operator.tasks(statuses=statuses, name=name, limit=limit, after=page.next_cursor)
        rows += page.tasks
    return rows


# Lists


async def test_everybodys_tasks_are_listed_the_newest_first_and_each_once(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    ids: list[str] = []
    for owner in (ANA, BOB, Owner.local(), Owner.anonymous(), ANA, BOB):
        clock.advance(SECOND)
        ids += [each.task.task_id for each in await created(store, 1, owner)]
    for limit in (1, 2, 5, 6, 50):
        assert [row.task_id for row in await walked(operator, limit)] == ids[::-1]


async def test_no_task_is_missed_beside_large_ones_of_another_status(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    """The page of one status ends before its time, while that of the other reaches further back."""
    large = NewTask(method="tools/call", params={"text": "x" * (MAX_PAGE_BYTES // 10)})
    ids: list[str] = []
    for number in range(26):
        clock.advance(SECOND)
        made = await store.create(ANA, large if number % 2 else CALL)
        ids.append(made.task.task_id)
        if not number % 2:
            await task_edits.cancel(store, made)
    both = [Status.WORKING, Status.CANCELLED]
    for limit in (5, 50):
        assert [row.task_id for row in await walked(operator, limit, statuses=both)] == ids[::-1]
    assert (await operator.find(ids[0])).summary.task_id == ids[0]


async def test_several_statuses_make_one_list_in_the_order_of_creation(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    expected: list[str] = []
    for number in range(9):
        clock.advance(SECOND)
        (task,) = await created(store, 1)
        if number % 3 == 0:
            await task_edits.finish(store, task, Success.of(number))
        elif number % 3 == 1:
            await task_edits.cancel(store, task)
        if number % 3 < 2:
            expected.append(task.task.task_id)
    wanted = [Status.COMPLETED, Status.CANCELLED]
    for limit in (1, 4, 50):
        rows = await walked(operator, limit, statuses=wanted)
        assert [row.task_id for row in rows] == expected[::-1]
    assert {row.status for row in await walked(operator, 4, statuses=wanted)} == set(wanted)


async def test_a_name_is_that_of_the_function_the_tool_or_the_method(
    store: TaskStore, operator: Operator
) -> None:
    await store.create(ANA, NewTask(method="tools/call", params={"name": "tool"}, function="runs"))
    await store.create(ANA, NewTask(method="tools/call", params={"name": "tool"}))
    await store.create(ANA, NewTask(method="prompts/get", params=[1]))
    found = {name: len(await walked(operator, 1, name=name)) for name in ("runs", "tool", "prompts/get", "x")}
    assert found == {"runs": 1, "tool": 2, "prompts/get": 1, "x": 0}
    assert sorted(row.name for row in await walked(operator, 50)) == ["prompts/get", "runs", "tool"]


async def test_a_row_says_how_far_and_how_old_a_task_is(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    (task,) = await created(store, 1)
    task = await task_edits.report(store, task, message="half", progress=Progress(done=6, total=12))
    clock.advance(3 * SECOND)
    (row,) = (await operator.tasks()).tasks
    assert (row.age, row.progress_fraction, row.message, row.display_status) == (
        3 * SECOND,
        0.5,
        "half",
        "queued",
    )
    await task_edits.finish(store, task, Success.of(1))
    clock.advance(9 * SECOND)
    (row,) = (await operator.tasks()).tasks
    assert (row.age, row.display_status) == (3 * SECOND, "completed")


async def test_a_task_whose_result_reports_an_error_failed_as_one_with_an_error_of_the_protocol_did(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    outcomes = (
        Success.of(1),
        Success.of(1, error="no disk"),
        Failure.of(-1, "no paper\nand no ink"),
        Success.of(1, error="it failed", cause="OSError: no disk"),
    )
    for task, outcome in zip(await created(store, 4), outcomes, strict=True):
        clock.advance(SECOND)
        await task_edits.finish(store, task, outcome)
    counts = await operator.counts()
    assert (counts[Status.COMPLETED], counts[Status.FAILED]) == (1, 3)
    assert [row.has_error for row in await walked(operator, 1, statuses=[Status.COMPLETED])] == [False]
    failed = {row.message: row for row in await walked(operator, 1, statuses=[Status.FAILED])}
    assert {message: row.has_error for message, row in failed.items()} == {
        "no disk": True,
        "no paper": False,
        "OSError: no disk": True,
    }
    assert {(row.status, row.display_status) for row in failed.values()} == {(Status.FAILED, "failed")}
    finished = [
        [
            event.note
            for event in (await operator.get(row.locator, row.task_id)).timeline
            if event.kind == "finished"
        ]
        for row in failed.values()
    ]
    assert finished == [["failed"]] * 3


async def test_what_cannot_be_read_is_named_and_does_not_hide_the_rest(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    await created(store, 2)
    broken = Record(space=TASKS, partition="p", key="broken", order=clock.now, body="{}", tag="working")
    await insert_each(store.storage, broken, now=clock.now)
    page = await operator.tasks()
    assert len(page.tasks) == 2
    assert page.corrupt == ("broken",)


async def test_a_cursor_of_somewhere_else_is_refused(store: TaskStore, operator: Operator) -> None:
    await created(store, 2)
    page = await operator.tasks(limit=1)
    assert page.next_cursor is not None
    for forged in ("", "x", page.next_cursor[:-2], page.tasks[0].locator, "é"):
        with pytest.raises(InvalidCursor):
            await operator.tasks(after=forged)
    with pytest.raises(InvalidValue):
        await operator.tasks(limit=201)


# Whose it is


async def test_nothing_that_is_shown_says_whose_a_task_is(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    owners = [
        Owner.user(f"https://{SECRET}", SECRET),
        Owner.client("", SECRET),
        Owner.session(SECRET),
    ]
    for owner in owners:
        task = await store.create(
            owner,
            NewTask(
                method="tools/call",
                meta={"token": SECRET},
                session_id=SECRET,
                idempotency_key=SECRET,
                function="f",
            ),
            lease=lambda task: Holder("w#1", "tests", SECOND, clock).take(task, None),
        )
        task = await task_edits.ask(store, task, {"q": QUESTION})
        await task_edits.answer(store, task, {"q": {"action": "accept", "content": {"name": SECRET}}})
    page = await operator.tasks(limit=2)
    seen = [page, await operator.stats(), await operator.claims()]
    seen += [await operator.get(row.locator, row.task_id) for row in page.tasks]
    assert len(seen) == 5
    assert SECRET not in repr(msgspec.to_builtins(seen))
    assert len({row.owner for row in (await operator.tasks()).tasks}) == 3
    assert (await operator.tasks()).tasks[0].owner in {owner.digest for owner in owners}


async def test_a_handle_is_the_same_for_every_replica_and_good_for_one_owner(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    (anas,), (bobs,) = await created(store, 1, ANA), await created(store, 1, BOB)
    rows = {row.task_id: row for row in (await operator.tasks()).tasks}
    other = Operator(store.storage, clock)
    handle = rows[anas.task.task_id].locator
    assert (await other.get(handle, anas.task.task_id)).summary == rows[anas.task.task_id]
    for wrong, task_id in (
        (handle, bobs.task.task_id),
        (handle[:-1], anas.task.task_id),
        ("", "x"),
        (handle, ""),
    ):
        with pytest.raises(NotFound):
            await other.get(wrong, task_id)


# One task


async def test_a_task_is_found_by_the_first_letters_of_its_id(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    ids = iter(
        ["abcdef00", "abcdef11", "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"]
    )
    named = TaskStore(
        store.storage, store.config, clock=clock, new_id=lambda: TaskId(next(ids)), application="tests"
    )
    for owner in (ANA, BOB, ANA, Owner.anonymous()):
        await named.create(owner, CALL)
    assert (await operator.find("abcdef0")).summary.task_id == "abcdef00"
    assert (await operator.find("012345")).summary.task_id == "0123456789abcdef0123456789abcdef"
    assert (await operator.find("fedcba9876543210fedcba9876543210")).summary.owner_kind == "anonymous"
    with pytest.raises(AmbiguousId, match="ambiguous \\(abcdef00, abcdef11\\)"):
        await operator.find("abcdef")
    for few in ("abcde", "", "../../x", "abc%ef"):
        with pytest.raises(IdTooShort):
            await operator.find(few)
    for absent in ("ffffff", "f" * 32, "abcdef000"):
        with pytest.raises(NotFound):
            await operator.find(absent)


async def test_one_task_is_shown_from_its_creation_to_its_end(
    store: TaskStore, operator: Operator, clock: Clock
) -> None:
    task = await store.create(
        ANA,
        msgspec.structs.replace(CALL, function="build_report", variables={"page": 3}),
        lease=lambda task: Holder("host-1-ab#7", "tests", SECOND, clock).take(task, None),
    )
    clock.advance(SECOND)
    task = await task_edits.ask(store, task, {"first": QUESTION, "second": QUESTION})
    clock.advance(SECOND)
    task = await task_edits.answer(store, task, {"first": {"action": "decline"}})
    (row,) = (await operator.tasks()).tasks
    seen = await operator.get(row.locator, row.task_id)
    assert seen.arguments == {"year": 2026}
    assert seen.variables == {"page": 3}
    assert [(each.key, each.message, each.schema) for each in seen.questions] == [
        ("second", "Whose name?", FORM)
    ]
    assert seen.claim is not None
    assert (seen.claim.worker, seen.claim.lease_until) == ("host-1-ab", task.task.created_at + SECOND)
    clock.advance(SECOND)
    task = await store.request_cancel(task)
    clock.advance(SECOND)
    await task_edits.finish(store, task, Success.of({"pages": 12}))
    seen = await operator.get(row.locator, row.task_id)
    began = task.task.created_at
    assert [(event.kind, event.note, (event.at - began) // SECOND) for event in seen.timeline[:-1]] == [
        ("created", "", 0),
        ("started", "", 0),
        ("asked", "first", 1),
        ("asked", "second", 1),
        ("answered", "first", 2),
        ("cancel requested", "", 3),
        ("finished", "completed", 4),
    ]
    assert seen.timeline[-1].kind == "expires"
    assert outcome_json(seen.outcome) == {"result": {"pages": 12}}
    assert seen.questions == ()


@pytest.mark.parametrize(("reason", "kind"), [(None, "paused"), ("the worker was lost", "released")])
async def test_an_attempt_that_did_not_end_the_task_says_whether_it_wanted_to(
    store: TaskStore, operator: Operator, reason: str | None, kind: str
) -> None:
    held = await task_edits.claim(store, await store.create(ANA, CALL))
    await store.edit(
        held, lambda task, now, config: edits.release(task, reason=reason, now=now, config=config)
    )
    (row,) = (await operator.tasks()).tasks
    seen = await operator.get(row.locator, row.task_id)
    assert [(event.kind, event.note) for event in seen.timeline] == [
        ("created", ""),
        ("started", ""),
        (kind, reason or ""),
    ]
