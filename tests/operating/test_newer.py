"""Operators see which tasks a newer version wrote, and cannot change them. Damage is something else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from perdure.feeds import FeedStore, PollSettings, transitions
from perdure.feeds.account import ACCOUNTS
from perdure.feeds.item import ITEMS, Item
from perdure.feeds.source import Profile
from perdure.operating import Operator
from perdure.operating.maintenance import DECODERS, inspect_records
from perdure.runtime import App, Runtime, RuntimeConfig
from perdure.storage import Record, Storage, open_storage
from perdure.storage.body_format import number_of
from perdure.storage.copy import copy_records
from perdure.storage.errors import NewerFormat
from perdure.storage.inspection_and_quarantine import CORRUPT_TAG
from perdure.storage.kit import Subject
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import HOUR
from perdure.tasks import Owner, Status, Success, TaskStore
from perdure.tasks.task_snapshot import LEASES, TASKS

from .. import task_edits
from ..cli.command import run_command
from ..markers import row, server
from ..newer import changed, newer, put, stored
from ..tasks.samples import ANA, CALL, Clock, created

pytestmark = pytest.mark.anyio


# What is seen


@row(105)
async def test_a_task_of_a_newer_version_is_a_row_of_its_own_and_no_action_changes_it(
    subject: Subject, store: TaskStore, operator: Operator, clock: Clock
) -> None:
    first, made, last = await created(store, 3)
    record = await put(
        store.storage, made.record, newer(made.record.body, status="paused"), now=clock.now, tag="paused"
    )
    await subject.caught_up()
    page = await operator.tasks()
    assert {each.task_id for each in page.tasks} == {first.task.task_id, last.task.task_id}
    [task] = page.newer
    assert (task.task_id, task.status, task.display_status) == (
        record.key,
        "paused",
        "written by a newer version of perdure",
    )
    assert (task.created_at, page.corrupt) == (record.order, ())
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: operator.get(task.locator, task.task_id),
        lambda: operator.find(task.task_id),
        lambda: operator.cancel(task.locator, task.task_id),
        lambda: operator.answer(task.locator, task.task_id, "name", {"action": "accept"}),
    ]
    for operation in operations:
        with pytest.raises(NewerFormat, match="written by a newer version of perdure"):
            await operation()
    assert await stored(store.storage, record.address, now=clock.now) == record


@row(105)
async def test_a_purge_by_age_leaves_an_ended_task_of_a_newer_version(
    subject: Subject, store: TaskStore, operator: Operator, clock: Clock
) -> None:
    ended = [await task_edits.finish(store, each, Success.of(1)) for each in await created(store, 2)]
    record = await put(store.storage, ended[0].record, newer(ended[0].record.body), now=clock.now)
    await subject.caught_up()
    clock.advance(HOUR // 2)
    assert (await operator.purge(finished_before=clock.now)).finished == 1
    assert await stored(store.storage, record.address, now=clock.now) == record
    await subject.caught_up()
    assert (await operator.throughput()).finished == 0


async def test_the_task_that_waits_longest_is_one_that_can_be_read(
    subject: Subject, store: TaskStore, operator: Operator, clock: Clock
) -> None:
    made = [await store.create(ANA, replace(CALL, function="work")) for _ in range(2)]
    first, second = sorted(made, key=lambda each: each.record.position)
    await put(store.storage, first.record, newer(first.record.body), now=clock.now)
    await subject.caught_up()
    oldest = await operator.oldest_queued()
    assert oldest is not None
    assert oldest.task_id == second.task.task_id


@server
async def test_commands_show_a_task_of_a_newer_version_and_refuse_to_change_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        made = await store.create(Owner.local(), CALL)
        record = await put(storage, made.record, newer(made.record.body), now=store.clock())
    listed = await run_command("tasks", "list", "--url", url)
    assert f"{record.key}  written by a newer version of perdure" in listed.out
    document = msgspec.json.decode((await run_command("tasks", "list", "--json", "--url", url)).out)
    assert [(each["task_id"], each["status"]) for each in document["newer"]] == [(record.key, "working")]
    for command in ("show", "cancel"):
        refused = await run_command("tasks", command, record.key, "--url", url)
        assert (refused.code, "written by a newer version of perdure" in refused.err) == (1, True), refused


# Every body, and the doctor


async def filled(storage: Storage) -> None:
    """Write every kind of record: a task with its lease, an idempotency key, settings, a feed
    with a mark of its links.
    """
    app = App("memory:", application="tests")

    @app.function(retries=8)
    async def hang() -> None:
        await asyncio.Event().wait()

    runtime = Runtime(
        TaskStore(storage, application="tests"),
        app.functions,
        RuntimeConfig(drain_timeout=0.0, cancel_grace=0.1),
    )
    operator = Operator(storage)
    async with runtime.running():
        made = await runtime.submit("hang", idempotency_key="key")
        await runtime.store.list(made.task.owner)
        await operator.tasks()
        feeds = FeedStore(storage)
        profile = Profile(account_id="did:plc:a", handle="a.test")
        await feeds.add(transitions.new_account(profile, now=feeds.clock(), settings=PollSettings()))
        await feeds.add_items(
            "did:plc:a", [Item(uri="at://a", time=1, kind="post", post_uri="at://a", author_id="a")]
        )
        await feeds.dirty_hours.mark([feeds.clock() - 9 * HOUR])
    assert {record.space for record in await records_of(storage)} == {*DECODERS}


async def records_of(storage: Storage) -> list[Record]:
    return [record for space in DECODERS for record in await storage.page(space, limit=99, now=0)]


@row(105)
async def test_every_stored_body_carries_a_format_number() -> None:
    storage = Storage(MemoryEngine())
    await filled(storage)
    assert {number_of(record.body) for record in await records_of(storage)} == {1, 2}  # of tasks, of feeds


@row(105)
async def test_copying_keeps_what_a_newer_version_wrote_to_the_byte() -> None:
    source, target = Storage(MemoryEngine()), Storage(MemoryEngine())
    await filled(source)
    for record in await records_of(source):
        await put(source, record, "  " + newer(record.body, status=["é", 1.50]), now=0)
    await copy_records(source, target, tuple(DECODERS), name="test")
    assert await records_of(target) == await records_of(source)


@row(105)
@pytest.mark.parametrize("space", DECODERS)
async def test_an_inspection_leaves_every_kind_of_record_of_a_newer_version(space: str) -> None:
    storage = Storage(MemoryEngine())
    await filled(storage)
    records = [record for record in await records_of(storage) if record.space == space]
    changed_records = [await put(storage, each, newer(each.body), now=0) for each in records]
    found = await inspect_records(storage, repair=True, now=0)
    assert (found.not_readable, found.damaged, found.quarantined) == (len(records), (), 0)
    for record in changed_records:
        assert await stored(storage, record.address, now=0) == record


@row(47)
@pytest.mark.parametrize("space", [TASKS, ACCOUNTS, ITEMS])
async def test_an_inspection_quarantines_damage_only_if_asked_to(space: str) -> None:
    storage = Storage(MemoryEngine())
    await filled(storage)
    [record] = [each for each in await records_of(storage) if each.space == space]
    damaged = await put(storage, record, '{"format":1}', now=0)
    for repair in (False, True):
        found = await inspect_records(storage, repair=repair, now=0)
        assert [(each.key, each.is_quarantined) for each in found.damaged] == [(record.key, repair)]
        tag = (await stored(storage, damaged.address, now=0)).tag
        assert tag == (CORRUPT_TAG if repair else damaged.tag)
    found = await inspect_records(storage, repair=True, now=0)
    assert (found.damaged, found.quarantined) == ((), 1)


async def test_a_damaged_lease_is_left_to_recovery() -> None:
    storage = Storage(MemoryEngine())
    await filled(storage)
    for record in await records_of(storage):
        if record.space == LEASES:
            await put(storage, record, "{}", now=0)
    assert (await inspect_records(storage, repair=True, now=0)).damaged == ()


@row(47, 105)
@server
async def test_doctor_reports_both_and_quarantines_damage_with_repair(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with await open_storage(url) as storage:
        store = TaskStore(storage, application="tests")
        damaged, later = [await store.create(Owner.local(), CALL) for _ in range(2)]
        await put(storage, damaged.record, changed(damaged.record.body, status=5), now=store.clock())
        record = await put(storage, later.record, newer(later.record.body), now=store.clock())
        for _ in range(2):
            checked = await run_command("doctor", "--url", url)
            assert checked.code == 1
            assert f"tasks {damaged.record.key} is damaged: " in checked.out
            assert "Written by a newer version of perdure and left unchanged: 1 record" in checked.out
            assert "--repair" in checked.out
        repaired = await run_command("doctor", "--repair", "--url", url)
        assert (repaired.code, "In quarantine: 1 damaged record" in repaired.out) == (0, True)
        assert (await run_command("doctor", "--url", url)).code == 0
        assert (await stored(storage, damaged.record.address, now=store.clock())).tag == CORRUPT_TAG
        assert await stored(storage, record.address, now=store.clock()) == record
        assert await task_edits.counts(store) == {Status.WORKING: 1}
