"""A task of a newer version is left exactly as it is; a damaged one is quarantined."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from msgspec.structs import replace

from perdure.storage import Record
from perdure.storage.body_format import BodyFormat
from perdure.storage.errors import NewerFormat
from perdure.storage.inspection_and_quarantine import CORRUPT_TAG
from perdure.storage.kit import Subject
from perdure.storage.time_types import HOUR
from perdure.tasks import InputKind, InputRequest, Json, Snapshot, Status, Success, TaskRecord, TaskStore
from perdure.tasks.errors import CorruptRecord
from perdure.tasks.idempotency import IDEMPOTENCY_KEYS
from perdure.tasks.task_record import decode_task, encode_task
from perdure.tasks.task_snapshot import TASKS

from .. import task_edits
from ..markers import row
from ..newer import FUTURE, changed, newer, put, stored
from .samples import ANA, CALL, Clock, created, json_values, text
from .test_canonical_json import full_record

pytestmark = pytest.mark.anyio

FULL = full_record()
BODY = encode_task(FULL).decode()
UNKNOWN = text.filter(lambda value: value not in {*Status, *InputKind, "user", "client", "session", "local",
                                                  "anonymous", "success", "error"})  # fmt: skip


def read(body: str) -> TaskRecord:
    return decode_task(FULL.task_id, body)


# One rule decides


@row(105)
@given(st.integers(FUTURE, 2**60), st.dictionaries(text, json_values, max_size=4))
def test_a_higher_format_number_is_newer_whatever_else_the_body_contains(
    number: int, rest: dict[str, Json]
) -> None:
    body = msgspec.json.encode({**rest, "format": number}).decode()
    with pytest.raises(NewerFormat, match=str(number)) as caught:
        read(body)
    assert caught.value.retryable


@row(105)
@given(UNKNOWN)
@pytest.mark.parametrize("place", ["status", "owner.kind", "outcome.kind", "inputs.name.kind"])
def test_an_unknown_value_of_an_enumeration_is_newer(place: str, value: str) -> None:
    body = msgspec.json.decode(BODY)
    inner = body
    *path, last = place.split(".")
    for step in path:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(NewerFormat) as caught:
        read(msgspec.json.encode(body).decode())
    assert (caught.value.key, caught.value.reason) == (
        FULL.task_id,
        f"this version of perdure does not know the value {value!r} of {place}",
    )


@row(47, 105)
@pytest.mark.parametrize(
    "change",
    [{"status": 5}, {"status": None}, {"created_at": "yesterday"}, {"owner": "ana"}, {"inputs": []},
     {"outcome": {"kind": 3}}, {"owner": {"kind": "user", "subject": "x" * 9000}},
     {"progress": {"done": 1e300}}],
)  # fmt: skip
def test_what_has_the_wrong_type_is_damaged(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord):
        read(changed(BODY, **change))
    with pytest.raises(NewerFormat):
        read(newer(BODY, **change))


@row(47)
@pytest.mark.parametrize("number", [None, 0, -1, "2", 2.0, True, [2]])
def test_a_body_without_a_format_number_is_damaged(number: object) -> None:
    with pytest.raises(CorruptRecord):
        read(changed(BODY, format=number))


@row(47)
def test_a_body_of_an_early_development_version_is_refused_with_a_clear_message() -> None:
    early = msgspec.json.decode(BODY)
    del early["format"]
    for body in (early, {**early, "more": 1}):
        with pytest.raises(CorruptRecord, match="it has no format number"):
            read(msgspec.json.encode(body).decode())


@row(12)
def test_an_unknown_field_of_todays_format_is_neither_newer_nor_damaged() -> None:
    body = changed(BODY, priority=3)
    assert msgspec.json.decode(encode_task(read(body))) == msgspec.json.decode(body)


def test_a_body_must_declare_its_format_number() -> None:
    class Body(msgspec.Struct):
        pass

    with pytest.raises(TypeError, match="no format number"):
        BodyFormat(Body)


# The store leaves it alone

CHANGES: list[dict[str, Any]] = [
    {"format": FUTURE, "status": {"is": "working"}},
    {"status": "paused"},
    {"inputs": {"link": {"kind": "elicitation/url", "asked_at": 1}}},
    {"owner": {"kind": "team", "issuer": "", "subject": "ana"}},
    {"outcome": {"kind": "partial", "parts": []}},
]


@pytest.fixture(params=CHANGES, ids=["format", "status", "input", "owner", "outcome"])
def change(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


async def make_newer(store: TaskStore, made: Snapshot, change: dict[str, Any]) -> Record:
    """The task, as a newer version has rewritten it."""
    body = changed(made.record.body, **change)
    return await put(store.storage, made.record, body, now=store.clock())


@row(105)
async def test_a_task_of_a_newer_version_is_left_as_it_is_by_every_operation(
    subject: Subject, store: TaskStore, clock: Clock, change: dict[str, Any]
) -> None:
    other, made = await created(store, 2)
    record = await make_newer(store, made, change)
    task_id = made.task.task_id
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get(ANA, task_id),
        lambda: store.delete(ANA, task_id),
        lambda: store.update(ANA, task_id, lambda read: task_edits.cancel(store, read)),
        lambda: store.update(ANA, task_id, store.request_cancel),
        lambda: store.update(ANA, task_id, lambda read: task_edits.finish(store, read, Success.of(1))),
        lambda: store.update(
            ANA, task_id, lambda read: task_edits.ask(store, read, {"a": InputRequest(kind=InputKind.ROOTS)})
        ),
    ]
    for operation in operations:
        with pytest.raises(NewerFormat, match=task_id):
            await operation()
    await subject.caught_up()
    page = await store.list(ANA)
    assert [each.task.task_id for each in page.tasks] == [other.task.task_id]
    assert ([each.key for each in page.not_readable], page.corrupt) == ([task_id], ())
    assert (await store.purge()).purged == ()
    found = await task_edits.quarantine_damaged(store)
    assert (found.not_readable, found.damaged, found.examined) == (1, (), 2)
    assert await stored(store.storage, record.address, now=clock.now) == record


@row(105)
async def test_a_task_of_a_newer_version_expires_at_the_time_in_its_record(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    [made] = await created(store, 1)
    record = await make_newer(store, made, {"format": FUTURE})
    await subject.caught_up()
    assert record.expires_at is not None
    clock.now = record.expires_at - 1
    assert (await store.purge()).purged == ()
    assert await stored(store.storage, record.address, now=clock.now) == record
    clock.now = record.expires_at
    assert [each.key for each in (await store.purge()).purged] == [record.key]


@row(105)
async def test_a_page_continues_behind_tasks_of_a_newer_version(subject: Subject, store: TaskStore) -> None:
    made = await created(store, 5)
    for each in made[:3]:
        await make_newer(store, each, {"format": FUTURE})
    await subject.caught_up()
    seen: list[str] = []
    page = await store.list(ANA, limit=2)
    while page.next_cursor is not None:
        seen += [each.task.task_id for each in page.tasks]
        page = await store.list(ANA, limit=2, cursor=page.next_cursor)
    seen += [each.task.task_id for each in page.tasks]
    assert sorted(seen) == sorted(each.task.task_id for each in made[3:])


@row(105)
async def test_an_idempotency_key_of_a_newer_version_is_not_replaced(store: TaskStore, clock: Clock) -> None:
    call = replace(CALL, idempotency_key="key-1")
    made = await store.create(ANA, call)
    [pointer] = await store.storage.page(IDEMPOTENCY_KEYS, made.record.partition, limit=9, now=clock.now)
    record = await put(store.storage, pointer, newer(pointer.body, task_id={"id": 1}), now=clock.now)
    with pytest.raises(NewerFormat):
        await store.create(ANA, call)
    assert await stored(store.storage, pointer.address, now=clock.now) == record
    assert [
        each.key for each in await store.storage.page(TASKS, made.record.partition, limit=9, now=clock.now)
    ]


@row(105)
async def test_a_repeated_call_does_not_replace_a_first_task_of_a_newer_version(
    store: TaskStore, clock: Clock
) -> None:
    call = replace(CALL, idempotency_key="key-1")
    record = await make_newer(store, await store.create(ANA, call), {"format": FUTURE})
    with pytest.raises(NewerFormat):
        await store.create(ANA, call)
    assert await stored(store.storage, record.address, now=clock.now) == record


@row(47)
async def test_a_damaged_task_is_still_quarantined(subject: Subject, store: TaskStore, clock: Clock) -> None:
    [made] = await created(store, 1)
    await put(store.storage, made.record, changed(made.record.body, status=5), now=clock.now)
    await subject.caught_up()
    found = await task_edits.quarantine_damaged(store)
    assert [(each.key, each.is_quarantined) for each in found.damaged] == [(made.task.task_id, True)]
    kept = await stored(store.storage, made.record.address, now=clock.now + HOUR)
    assert (kept.tag, kept.lane, kept.expires_at) == (CORRUPT_TAG, None, None)
