"""Operators list encrypted tasks and see no contents of them, with or without the key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.responses import Response

from perdure.cli.serve.asgi import Health, Readiness
from perdure.operating import NoOpenQuestion, Operator, TaskDetail, encryption_keys
from perdure.operating.encryption_keys import MissingKeys, count_by_key
from perdure.operating.maintenance import inspect_records
from perdure.storage import Record, Storage, open_storage
from perdure.storage.inspection_and_quarantine import CORRUPT_TAG
from perdure.storage.kit import Subject
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import HOUR
from perdure.tasks import (
    Failure,
    InputKind,
    InputRequest,
    NewTask,
    Owner,
    Snapshot,
    Status,
    StoreConfig,
    Success,
    TaskStore,
)
from perdure.tasks.encryption import Keyring, new_key
from perdure.tasks.errors import KeyMissing
from perdure.web import Dashboard

from .. import task_edits
from ..cli.command import CommandResult, run_command
from ..conditions import wait_until
from ..markers import row, server
from ..newer import put, stored
from ..tasks.samples import ANA, Clock
from ..tasks.test_encrypted_tasks import CALL, CANARY, EVERYTHING, worked_on
from ..web.tool_dashboard import csrf_token_in, visiting

pytestmark = pytest.mark.anyio

KEY = new_key()
QUESTION = {"name": InputRequest(kind=InputKind.ELICITATION, params={"message": CANARY})}


@pytest.fixture
def keys() -> Keyring:
    return Keyring([KEY])


@pytest.fixture
def everything(subject: Subject, clock: Clock, keys: Keyring) -> TaskStore:
    return TaskStore(subject.storage, EVERYTHING, keys=keys, clock=clock, application="tests")


@pytest.fixture(params=[True, False], ids=["key", "no_key"])
def ring(request: pytest.FixtureRequest, keys: Keyring) -> Keyring:
    """What the operator has: the key, or none."""
    return keys if request.param else Keyring()


@pytest.fixture
def operator(ring: Keyring, subject: Subject, clock: Clock) -> Operator:
    return Operator(subject.storage, clock, config=EVERYTHING, keys=ring)


def shown(detail: TaskDetail) -> str:
    return msgspec.json.encode(detail).decode()


@row(123)
@pytest.mark.parametrize(
    "outcome",
    [None, Success.of({"text": CANARY}, error=CANARY, cause=CANARY), Failure.of(-32000, CANARY)],
    ids=["active", "error", "failure"],
)
async def test_an_encrypted_task_is_listed_and_shown_without_its_contents(
    everything: TaskStore, operator: Operator, subject: Subject, outcome: Success | Failure | None
) -> None:
    made = await worked_on(everything, outcome=outcome)
    await subject.caught_up()
    [task] = (await operator.tasks(name="build")).tasks
    expected = Status.WORKING if outcome is None else Status.FAILED
    assert (task.task_id, task.name, task.status, task.is_encrypted) == (
        made.task.task_id, "build", expected, True,
    )  # fmt: skip
    assert task.has_error is isinstance(outcome, Success)
    detail = await operator.get(task.locator, task.task_id)
    assert CANARY not in shown(detail)
    assert detail.outcome is None
    assert detail.timeline[0].kind == "created"
    stats = await operator.stats()
    assert CANARY not in msgspec.json.encode(stats).decode()


@row(123)
async def test_a_task_with_credentials_is_shown_without_them(
    subject: Subject, clock: Clock, keys: Keyring, operator: Operator
) -> None:
    store = TaskStore(subject.storage, StoreConfig(), keys=keys, clock=clock, application="tests")
    made = await store.create(
        ANA, msgspec.structs.replace(CALL, params={"name": "x", "arguments": {"y": 1}}, meta={}, variables={})
    )
    await subject.caught_up()
    detail = await operator.find(made.task.task_id)
    assert (detail.arguments, CANARY in shown(detail), detail.summary.is_encrypted) == (
        {"y": 1},
        False,
        False,
    )


@row(122, 123)
async def test_an_encrypted_task_is_cancelled_with_its_key_only(
    everything: TaskStore, operator: Operator, ring: Keyring, subject: Subject, keys: Keyring, clock: Clock
) -> None:
    made = await everything.create(ANA, CALL)
    await subject.caught_up()
    detail = await operator.find(made.task.task_id)
    if not ring:
        with pytest.raises(KeyMissing, match=keys.key_ids[0]):
            await operator.cancel(detail.summary.locator, made.task.task_id)
        assert await stored(everything.storage, made.record.address, now=clock.now) == made.record
        return
    cancelled = await operator.cancel(detail.summary.locator, made.task.task_id)
    assert (cancelled.status, cancelled.message) == (Status.CANCELLED, None)


@row(123)
async def test_operators_see_the_questions_that_they_may_answer(
    everything: TaskStore, operator: Operator, ring: Keyring, subject: Subject
) -> None:
    """They are not hidden from the people they are for, if these have the key."""
    for may_answer in (True, False):
        new = msgspec.structs.replace(CALL, operators_answer=may_answer)
        made = await task_edits.ask(everything, await everything.create(ANA, new), QUESTION)
        await subject.caught_up()
        detail = await operator.find(made.task.task_id)
        assert [each.message for each in detail.questions] == ([CANARY] if may_answer and ring else [])
        found, answer = detail.summary, {"action": "decline"}
        if detail.questions:
            answered = await operator.answer(found.locator, found.task_id, "name", answer)
            assert answered.status is Status.WORKING
        elif ring:
            with pytest.raises(NoOpenQuestion):
                await operator.answer(found.locator, found.task_id, "name", answer)


@row(123)
async def test_a_task_that_was_tampered_with_is_shown_without_its_questions(
    everything: TaskStore, operator: Operator, subject: Subject, clock: Clock
) -> None:
    new = msgspec.structs.replace(CALL, operators_answer=True)
    asking, other = [
        await task_edits.ask(everything, await everything.create(ANA, new), QUESTION) for _ in range(2)
    ]
    changed = msgspec.json.decode(asking.record.body)
    changed["ciphertexts"] = msgspec.json.decode(other.record.body)["ciphertexts"]
    body = msgspec.json.encode(changed, order="sorted").decode()
    await put(subject.storage, asking.record, body, now=clock.now)
    await subject.caught_up()
    detail = await operator.find(asking.task.task_id)
    assert (detail.summary.status, detail.questions) == (Status.INPUT_REQUIRED, ())


@row(123)
async def test_ended_tasks_are_purged_without_the_key(
    everything: TaskStore, operator: Operator, subject: Subject, clock: Clock
) -> None:
    await worked_on(everything, outcome=Success.of("done"))
    await subject.caught_up()
    clock.advance(HOUR // 2)
    assert (await operator.purge(finished_before=clock.now)).finished == 1


# Keys


@row(123)
async def test_tasks_are_counted_by_key_and_missing_keys_are_found(subject: Subject, clock: Clock) -> None:
    old, new, other = new_key(), new_key(), new_key()
    rings = [Keyring([old]), Keyring([new, old]), Keyring([other])]
    first, second, third = (
        TaskStore(subject.storage, EVERYTHING, keys=ring, clock=clock, application="tests") for ring in rings
    )
    made = [await first.create(ANA, CALL) for _ in range(3)]
    await task_edits.report(second, await second.get(ANA, made[0].task.task_id), message="x")
    await task_edits.finish(third, await third.create(ANA, CALL), Success.of("done"))
    await subject.caught_up()
    ids = [ring.key_ids[0] for ring in rings]
    assert await count_by_key(subject.storage, now=clock.now) == {ids[0]: 2, ids[1]: 1, ids[2]: 1}

    async def missing(ring: Keyring) -> frozenset[str]:
        return await MissingKeys(subject.storage, ring, application="tests").search(now=clock.now)

    assert await missing(rings[0]) == {ids[1]}
    assert await missing(rings[1]) == frozenset()
    assert await missing(Keyring()) == {ids[0], ids[1]}


@row(122, 123)
async def test_an_inspection_with_the_key_finds_what_was_tampered_with_and_without_it_changes_nothing(
    everything: TaskStore, subject: Subject, keys: Keyring, clock: Clock
) -> None:
    made = [await everything.create(ANA, CALL) for _ in range(2)]
    moved = msgspec.json.decode(made[0].record.body)
    moved["ciphertexts"] = msgspec.json.decode(made[1].record.body)["ciphertexts"]
    body = msgspec.json.encode(moved, order="sorted").decode()
    damaged = await put(subject.storage, made[0].record, body, now=clock.now)
    await subject.caught_up()
    for ring in (Keyring(), Keyring([new_key()])):
        found = await inspect_records(subject.storage, repair=True, keys=ring, now=clock.now)
        assert (found.damaged, found.not_readable) == ((), 0)
    assert await stored(subject.storage, damaged.address, now=clock.now) == damaged
    found = await inspect_records(subject.storage, repair=True, keys=keys, now=clock.now)
    assert [each.key for each in found.damaged] == [damaged.key]
    assert (await stored(subject.storage, damaged.address, now=clock.now)).tag == CORRUPT_TAG


async def ready(store: TaskStore, readiness: Readiness | None = None) -> tuple[int, dict[str, str]]:
    """What `/ready` answers, when the last answer is no longer reused."""
    if isinstance(store.clock, Clock):
        store.clock.advance(encryption_keys.SEARCH_INTERVAL)
    found = readiness or Readiness(Health(store.storage), MissingKeys.of(store), store.clock)
    response: Response = await found.response()
    return response.status_code, msgspec.json.decode(bytes(response.body))


@row(122, 123)
async def test_a_process_without_a_key_that_tasks_need_is_not_ready(
    subject: Subject, clock: Clock, everything: TaskStore, caplog: pytest.LogCaptureFixture
) -> None:
    without = TaskStore(subject.storage, StoreConfig(), clock=clock, application="tests")
    assert await ready(without) == (200, {"status": "ready"})
    made = await everything.create(ANA, CALL)
    await subject.caught_up()
    assert await ready(everything) == (200, {"status": "ready"})
    status, body = await ready(without)
    assert (status, body["status"]) == (503, "keys missing")
    assert everything.keys.key_ids[0] in body["reason"]
    assert f"{everything.keys.key_ids[0]}; set PERDURE_ENCRYPTION_KEY" in caplog.text
    await task_edits.cancel(everything, made)
    await subject.caught_up()
    assert (await ready(without))[0] == 200  # no active task needs the key
    with pytest.raises(KeyMissing):
        await without.get(ANA, made.task.task_id)
    assert (await ready(without))[0] == 503  # but a client wanted a result
    await everything.delete(ANA, made.task.task_id)
    assert (await ready(without))[0] == 200  # which is gone


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search for missing keys read only a few tasks."""
    monkeypatch.setattr(encryption_keys, "MAX_READ", 5)
    monkeypatch.setattr(encryption_keys, "NEWEST", 2)
    monkeypatch.setattr(encryption_keys, "PAGE_SIZE", 2)


@row(123)
@pytest.mark.usefixtures("short_searches")
@pytest.mark.parametrize("before", [0, 7, 19], ids=["oldest", "between", "newest"])
async def test_a_task_that_needs_a_missing_key_is_found_among_many(
    subject: Subject, clock: Clock, everything: TaskStore, before: int
) -> None:
    config = StoreConfig(max_tasks_per_owner=1000)
    without = TaskStore(subject.storage, config, clock=clock, application="tests")
    other = TaskStore(subject.storage, config, clock=clock, application="other")
    for number in range(20):
        store = everything if number == before else without if number % 2 else other
        clock.now += 1
        await store.create(ANA, CALL)
    await subject.caught_up()
    readiness, others = (
        Readiness(Health(each.storage), MissingKeys.of(each), each.clock) for each in (without, other)
    )
    answers = [(await ready(without, readiness))[0] for _ in range(4)]  # these read all tasks
    assert (sorted(answers), answers[-1]) == (answers, 503)
    if before != 7:
        assert answers[0] == 503
    assert (await ready(without, readiness))[0] == 503  # until all were read again
    for _ in range(5):
        assert (await ready(other, others))[0] == 200


@row(122, 123)
@pytest.mark.usefixtures("short_searches")
async def test_a_key_that_other_tasks_need_is_missing_after_the_task_that_was_met_is_gone(
    subject: Subject, clock: Clock, everything: TaskStore
) -> None:
    config = StoreConfig(max_tasks_per_owner=1000)
    without = TaskStore(subject.storage, config, clock=clock, application="tests")
    stores = [without] * 7 + [everything] * 2 + [without] * 7
    hidden: list[Snapshot] = []
    for store in stores:
        clock.now += 1
        made = await store.create(ANA, CALL)
        if store is everything:
            hidden.append(made)
    await subject.caught_up()
    readiness = Readiness(Health(without.storage), MissingKeys.of(without), without.clock)
    with pytest.raises(KeyMissing):
        await without.get(ANA, hidden[0].task.task_id)
    assert (await ready(without, readiness))[0] == 503
    await everything.delete(ANA, hidden[0].task.task_id)
    await subject.caught_up()
    for _ in range(10):
        assert (await ready(without, readiness))[0] == 503
    await everything.delete(ANA, hidden[1].task.task_id)
    await subject.caught_up()
    await wait_until(lambda: _is_ready(without, readiness))


async def _is_ready(store: TaskStore, readiness: Readiness) -> bool:
    return (await ready(store, readiness))[0] == 200


@row(123)
async def test_probes_that_come_together_share_one_search(
    subject: Subject, clock: Clock, everything: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = TaskStore(subject.storage, StoreConfig(), clock=clock, application="tests")
    page, pages = Storage.page, list[Any]()

    async def counted(storage: Storage, *args: Any, **options: Any) -> list[Record]:  # noqa: ANN401
        pages.append(options)
        return await page(storage, *args, **options)

    monkeypatch.setattr(Storage, "page", counted)
    readiness = Readiness(Health(without.storage), MissingKeys.of(without), clock)

    async def probe() -> int:
        return (await readiness.response()).status_code

    assert await asyncio.gather(*(probe() for _ in range(20))) == [200] * 20
    assert 0 < len(pages) <= 4
    await everything.create(ANA, CALL)
    await subject.caught_up()
    clock.advance(encryption_keys.SEARCH_INTERVAL - 1)
    assert await probe() == 200
    clock.advance(1)
    assert await probe() == 503


@row(123)
async def test_a_search_for_missing_keys_stops_after_large_tasks_and_continues_there(
    subject: Subject, clock: Clock, everything: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the seventh of twenty tasks is missing."""
    monkeypatch.setattr(encryption_keys, "MAX_READ_CHARS", 4_000)
    monkeypatch.setattr(encryption_keys, "NEWEST", 1)
    monkeypatch.setattr(encryption_keys, "PAGE_SIZE", 2)
    without = TaskStore(subject.storage, StoreConfig(), clock=clock, application="tests")
    large = NewTask(method="tools/call", params={"name": "load", "arguments": {"text": "x" * 1_000}})
    for number in range(20):
        clock.now += 1
        await (everything if number == 6 else without).create(ANA, large)
    await subject.caught_up()
    readiness = Readiness(Health(without.storage), MissingKeys.of(without), clock)

    assert [(await ready(without, readiness))[0] for _ in range(2)] == [200, 503]


@row(113)
async def test_a_process_needs_no_keys_of_other_applications(
    subject: Subject, clock: Clock, everything: TaskStore
) -> None:
    made = await everything.create(ANA, CALL)
    await subject.caught_up()
    other = TaskStore(subject.storage, StoreConfig(), clock=clock, application="other")
    assert await ready(other) == (200, {"status": "ready"})
    with pytest.raises(KeyMissing):  # as when an operator opens the page of this task
        Snapshot.from_record(made.record, other.keys)
    assert await ready(other) == (200, {"status": "ready"})


@row(122)
async def test_a_process_whose_storage_fails_is_not_ready() -> None:
    storage = Storage(MemoryEngine())
    await storage.close()
    assert await ready(TaskStore(storage, application="tests")) == (503, {"status": "storage unavailable"})


# Commands and pages


async def command(*arguments: str, keys: str = "") -> CommandResult:
    return await run_command(*arguments, variables={"PERDURE_ENCRYPTION_KEY": keys})


@row(122, 123)
@server
async def test_commands_make_keys_count_them_and_need_them_to_change_a_task(tmp_path: Path) -> None:
    made = await command("key")
    key = made.out.strip()
    ring = Keyring([key])
    assert made.err == ""
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with await open_storage(url) as storage:
        store = TaskStore(storage, EVERYTHING, keys=ring, application="tests")
        task = await store.create(Owner.local(), CALL)
    task_id = task.task.task_id
    doctor = await command("doctor", "--repair", "--url", url)
    assert doctor.code == 0
    line = f"Encrypted with key {ring.key_ids[0]}: 1 task"
    assert f"{line} (this key is not in PERDURE_ENCRYPTION_KEY)\n" in doctor.out
    report = (await command("doctor", "--json", "--url", url)).document
    assert (report["encrypted"], report["missing_keys"]) == ({ring.key_ids[0]: 1}, list(ring.key_ids))
    assert f"{line}\n" in (await command("doctor", "--url", url, keys=f"{new_key()},{key}")).out
    for keys in ("", key):
        for name in ("list", "show"):
            options = () if name == "list" else (task_id,)
            listed = await command("tasks", name, *options, "--url", url, keys=keys)
            assert (listed.code, CANARY in listed.out + listed.err) == (0, False)
            assert "build" in listed.out
        assert "encrypted, not shown" in listed.out
    for keys in ("", new_key()):
        refused = await command("tasks", "cancel", task_id, "--url", url, keys=keys)
        assert (refused.code, refused.out) == (1, "")
        assert f"is encrypted with key {ring.key_ids[0]}, which this process does not have" in refused.err
    async with await open_storage(url) as storage:
        assert (
            await TaskStore(storage, keys=ring, application="tests").get(Owner.local(), task_id)
        ).record == task.record
    wrong = await command("tasks", "list", "--url", url, keys="nonsense")
    assert (wrong.code != 0, "nonsense" in wrong.err) == (True, False)
    assert "key 1 is not a valid perdure key; make one with: perdure key" in wrong.err
    assert (await command("tasks", "cancel", task_id, "--url", url, keys=key)).code == 0


@row(123)
async def test_pages_show_no_contents_of_an_encrypted_task(clock: Clock, keys: Keyring) -> None:
    async with Storage(MemoryEngine()) as storage:
        store = TaskStore(storage, EVERYTHING, keys=keys, application="tests")
        made = [await worked_on(store), await worked_on(store, outcome=Failure.of(-1, CANARY, CANARY))]
        async with visiting(Dashboard(storage, keys=keys)) as client:
            listed = await client.get("/tasks")
            assert made[0].task.task_id[:8] in listed.text
            pages = [(await client.get(page)).text for page in ("/", "/tasks", *_links(listed))]
    assert len(pages) == 4
    assert all(CANARY not in page for page in pages)
    assert all('<p class="none">encrypted</p>' in page for page in pages[2:])


@row(122, 123)
async def test_the_dashboard_of_a_process_without_the_key_cancels_no_encrypted_task(keys: Keyring) -> None:
    async with Storage(MemoryEngine()) as storage:
        store = TaskStore(storage, EVERYTHING, keys=keys, application="tests")
        made = await store.create(ANA, CALL)
        async with visiting(Dashboard(storage)) as client:
            [page] = _links(await client.get("/tasks"))
            token = csrf_token_in((await client.get(page)).text)
            refused = await client.post(f"{page}/cancel", data={"csrf_token": token})
            assert (refused.status_code, f"key {keys.key_ids[0]}, which" in refused.text) == (409, True)
        assert await stored(storage, made.record.address, now=store.clock()) == made.record


def _links(listed: httpx2.Response) -> list[str]:
    parts = listed.text.split('href="')[1:]
    return [each.split('"')[0] for each in parts if each.startswith("/tasks/") and "find" not in each]
