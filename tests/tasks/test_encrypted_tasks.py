"""Stored tasks whose credentials, or whose whole contents, are encrypted."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given
from msgspec import UNSET, Raw
from msgspec.structs import replace

from perdure.storage import Address, Record
from perdure.storage.copy import copy_records
from perdure.storage.errors import NewerFormat, NotReadableHere
from perdure.storage.kit import Subject
from perdure.storage.memory import MemoryEngine
from perdure.storage.storage import Storage
from perdure.tasks import (
    Failure,
    InputKind,
    InputRequest,
    Json,
    NewTask,
    Progress,
    Snapshot,
    Status,
    StoreConfig,
    Success,
    TaskRecord,
    TaskStore,
    edits,
)
from perdure.tasks.body_encryption import READABLE_FIELDS, decrypt_body, encrypt_body, key_ids
from perdure.tasks.encryption import Keyring, new_key
from perdure.tasks.errors import (
    CorruptRecord,
    IdempotencyKeyReused,
    InvalidValue,
    KeyMissing,
    LimitExceeded,
    TerminalTask,
)
from perdure.tasks.idempotency import IDEMPOTENCY_KEYS
from perdure.tasks.task_log import LogEntry, Report
from perdure.tasks.task_record import decode_task, encode_task
from perdure.tasks.task_snapshot import TASKS, new_snapshot

from .. import task_edits
from ..markers import row
from ..newer import stored
from .samples import ANA, START, Clock, json_values
from .test_canonical_json import full_record

pytestmark = pytest.mark.anyio

CANARY = "canary-7f3a"
KEYS = [new_key()]
EVERYTHING = StoreConfig(allow_anonymous=True, encrypt="everything")
CALL = NewTask(
    method="tools/call",
    function="build",
    params={"name": "build", "arguments": {"text": CANARY}},
    meta={"trace": CANARY},
    variables={"mine": CANARY},
    credentials={"token": {"token": CANARY}, "headers": {"authorization": CANARY}},
)


@pytest.fixture
def keys() -> Keyring:
    return Keyring(KEYS)


@pytest.fixture
def everything(subject: Subject, clock: Clock, keys: Keyring) -> TaskStore:
    return TaskStore(subject.storage, EVERYTHING, keys=keys, clock=clock, application="tests")


@pytest.fixture
def credentials(subject: Subject, clock: Clock, keys: Keyring) -> TaskStore:
    return TaskStore(
        subject.storage, StoreConfig(allow_anonymous=True), keys=keys, clock=clock, application="tests"
    )


async def worked_on(store: TaskStore, *, outcome: Success | Failure | None = None) -> Snapshot:
    """Return a task with something in each field that can have contents."""

    def work(task: TaskRecord, now: int, config: StoreConfig) -> TaskRecord:
        task = edits.save_checkpoint(task, {"page": CANARY}, now=now, config=config)
        report = Report(done=1, total=2, message=CANARY)
        task = edits.report(
            task, message=CANARY, progress=Progress(done=1, total=2), reports=[report], now=now, config=config
        )
        task = edits.log(task, [LogEntry(at=now, level="info", message=CANARY)], config=config)
        question = InputRequest(kind=InputKind.ELICITATION, params={"message": CANARY})
        task = edits.ask(task, {"name": question}, now=now, config=config)
        answer = {"action": "accept", "content": {"name": CANARY}}
        task = edits.answer(task, {"name": answer}, now=now, config=config)
        end = edits.AttemptEnd.INTERRUPTED
        return edits.release(task, reason=CANARY, end=end, now=now, config=config)

    snapshot = await task_edits.claim(store, await store.create(ANA, CALL))
    snapshot = await store.edit(snapshot, work)
    return snapshot if outcome is None else await task_edits.finish(store, snapshot, outcome)


async def record_of(store: TaskStore, snapshot: Snapshot) -> Record:
    return await stored(store.storage, snapshot.record.address, now=store.clock())


# Everything


@row(123)
@pytest.mark.parametrize(
    "outcome",
    [
        None,
        Success.of({"text": CANARY}, error=CANARY, cause=CANARY),
        Failure.of(-32000, CANARY, {"d": CANARY}),
    ],
    ids=["active", "success", "failure"],
)
async def test_no_content_is_stored_in_plain_text(
    everything: TaskStore, outcome: Success | Failure | None
) -> None:
    snapshot = await worked_on(everything, outcome=outcome)
    record = await record_of(everything, snapshot)
    assert CANARY in encode_task(snapshot.task).decode()
    assert CANARY not in record.body
    for digest in ("md5", "sha1", "sha256", "blake2b"):  # an unkeyed digest of the arguments could be guessed
        text = hashlib.new(digest, bytes(snapshot.task.params_json)).hexdigest()  # pyright: ignore[reportArgumentType]
        assert text[:12] not in record.body
    found = await everything.get(ANA, snapshot.task.task_id)
    assert encode_task(found.task) == encode_task(snapshot.task)
    assert found.task.original_params == CALL.params


@row(123)
async def test_ids_function_status_and_times_are_readable_without_a_key(everything: TaskStore) -> None:
    snapshot = await worked_on(everything, outcome=Success.of({"text": CANARY}, error=CANARY))
    head = Snapshot.head_of(await record_of(everything, snapshot)).task
    for name in ("task_id", "owner", "status", "function", "created_at", "finished_at", "attempts", "ttl_ms"):
        assert getattr(head, name) == getattr(snapshot.task, name)
    assert (head.outcome, head.inputs, head.status_message, head.original_params) == (None, {}, None, None)
    assert key_ids(head) == set(everything.keys.key_ids)


def test_each_field_of_a_task_is_readable_or_hidden_on_purpose() -> None:
    hidden = {
        "status_message", "original_params", "outcome", "meta", "variables", "checkpoint", "inputs",
        "progress", "reports", "log", "last_failure", "history", "credentials", "unknown", "ciphertexts",
    }  # fmt: skip
    fields = {field.encode_name for field in msgspec.structs.fields(TaskRecord)}
    assert fields - READABLE_FIELDS == hidden
    assert READABLE_FIELDS - fields <= {"format", "application"}


@row(123)
@given(json_values, json_values)
def test_an_encrypted_body_becomes_the_same_body_again(params: Json, variables: Json) -> None:
    keys = Keyring(KEYS)
    task = replace(
        full_record(),
        params_json=Raw(msgspec.json.encode(params, order="sorted")),
        variables_json=Raw(msgspec.json.encode({"v": variables}, order="sorted")),
        credentials_json=Raw(b'{"headers":{}}'),
        is_encrypted=True,
    )
    body = encode_task(task)
    encrypted = encrypt_body(task, body, 7, keys).decode()
    head = decode_task(task.task_id, encrypted)
    assert decrypt_body(head, encrypted, 7, keys) == body.decode()
    assert encode_task(head).decode() == encrypted


@row(12, 123)
def test_fields_of_a_later_version_stay_encrypted_and_are_kept() -> None:
    keys = Keyring(KEYS)
    plain = msgspec.json.decode(encode_task(replace(full_record(), is_encrypted=True)))
    plain["priority"] = {"reason": CANARY}
    task = decode_task(plain["task_id"], msgspec.json.encode(plain, order="sorted").decode())
    body = encrypt_body(task, encode_task(task), 1, keys).decode()
    assert CANARY not in body
    again = decrypt_body(decode_task(plain["task_id"], body), body, 1, keys)
    assert msgspec.json.decode(again) == plain


@row(123)
async def test_a_task_that_is_created_encrypted_stays_encrypted(
    everything: TaskStore, credentials: TaskStore
) -> None:
    """A replica that was not switched to `everything` yet does not write it in plain text."""
    made = await everything.create(ANA, CALL)
    edited = await task_edits.report(
        credentials, await credentials.get(ANA, made.task.task_id), message=CANARY
    )
    assert CANARY not in (await record_of(credentials, edited)).body
    plain = await credentials.create(ANA, replace(CALL, credentials=UNSET))
    edited = await task_edits.report(everything, await everything.get(ANA, plain.task.task_id), message="x")
    assert not edited.task.is_encrypted


@row(8, 123)
async def test_an_idempotency_key_works_with_encrypted_arguments(everything: TaskStore) -> None:
    call = replace(CALL, idempotency_key="order-1")
    made = await everything.create(ANA, call)
    assert (await everything.create(ANA, call)).task.task_id == made.task.task_id
    with pytest.raises(IdempotencyKeyReused):
        await everything.create(ANA, replace(call, params={"name": "build", "arguments": {"text": "other"}}))
    address = Address(IDEMPOTENCY_KEYS, made.record.partition, "order-1")
    key_record = await stored(everything.storage, address, now=everything.clock())
    assert msgspec.json.decode(key_record.body) == {"format": 1, "task_id": made.task.task_id}


@row(123)
async def test_a_log_that_is_too_large_is_removed_and_the_rest_is_encrypted(
    subject: Subject, clock: Clock
) -> None:
    """Base64 counts: an encrypted task takes a third more."""
    config = replace(EVERYTHING, max_record_size_bytes=20_000)
    store = TaskStore(subject.storage, config, keys=Keyring(KEYS), clock=clock, application="tests")
    made = await store.create(ANA, replace(CALL, params="p" * 10_000))
    entry = LogEntry(at=START, level="info", message="x" * 6000)

    def add(task: TaskRecord, now: int, config: StoreConfig) -> TaskRecord:
        task = edits.set_variables(task, {"page": 1}, now=now, config=config)
        return edits.log(task, [entry], config=config)

    edited = await store.edit(made, add)
    assert edited.task.log_json is UNSET
    assert (await store.get(ANA, made.task.task_id)).task.original_params == "p" * 10_000
    with pytest.raises(LimitExceeded):
        await store.create(ANA, replace(CALL, params="p" * 16_000))


# Credentials


@row(122)
async def test_credentials_are_stored_only_encrypted(credentials: TaskStore) -> None:
    made = await credentials.create(ANA, replace(CALL, params=UNSET, meta=UNSET, variables={}))
    record = await record_of(credentials, made)
    assert CANARY not in record.body
    found = await credentials.get(ANA, made.task.task_id)
    assert found.task.credentials == CALL.credentials
    edited = await task_edits.report(credentials, found, message="working")
    assert CANARY not in (await record_of(credentials, edited)).body
    again = await credentials.get(ANA, made.task.task_id)
    assert again.task.credentials == CALL.credentials
    assert "working" in (await record_of(credentials, edited)).body


@row(122)
@pytest.mark.parametrize("mode", ["credentials", "everything"])
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_the_commit_that_ends_a_task_deletes_its_credentials(
    end: str, mode: str, credentials: TaskStore, everything: TaskStore
) -> None:
    store = everything if mode == "everything" else credentials
    made = await store.create(ANA, CALL)
    assert "credentials" in Snapshot.head_of(await record_of(store, made)).task.ciphertexts
    match end:
        case "completed":
            ended = await task_edits.finish(store, made, Success.of("done"))
        case "failed":
            ended = await task_edits.finish(store, made, Failure.of(-32000, "no"))
        case _:
            ended = await task_edits.cancel(store, made)
    assert ended.version == made.version + 1
    assert ended.task.credentials_json is UNSET
    head = Snapshot.head_of(await record_of(store, ended)).task
    assert (head.status.value, "credentials" in head.ciphertexts) == (end, False)


@row(122)
async def test_without_a_key_no_credentials_are_stored(store: TaskStore) -> None:
    made = await store.create(ANA, replace(CALL, params=UNSET, meta=UNSET, variables={}))
    assert CANARY not in (await record_of(store, made)).body
    found = await store.get(ANA, made.task.task_id)
    assert (found.task.credentials_json, found.task.credentials_not_stored) == (UNSET, True)
    assert not (await store.create(ANA, replace(CALL, credentials=UNSET))).task.credentials_not_stored


def test_a_task_does_not_show_its_fields() -> None:
    task = replace(full_record(), credentials_json=Raw(b'"canary"'), status_message="canary")
    assert "canary" not in repr(task)
    assert "canary" not in repr(new_snapshot(replace(task, credentials_json=UNSET), EVERYTHING).task)


# A missing key


@row(122, 123)
@pytest.mark.parametrize("mode", ["credentials", "everything"])
@pytest.mark.parametrize("ring", [Keyring(), Keyring([new_key()])], ids=["no_key", "another_key"])
async def test_a_task_whose_key_is_missing_is_left_exactly_as_it_is(
    ring: Keyring, mode: str, subject: Subject, clock: Clock, credentials: TaskStore, everything: TaskStore
) -> None:
    owner = everything if mode == "everything" else credentials
    made = await owner.create(ANA, CALL)
    before = await record_of(owner, made)
    store = TaskStore(
        subject.storage, StoreConfig(allow_anonymous=True), keys=ring, clock=clock, application="tests"
    )
    task_id, head = made.task.task_id, Snapshot.head_of(before)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get(ANA, task_id),
        lambda: store.update(ANA, task_id, lambda read: task_edits.cancel(store, read)),
        lambda: task_edits.cancel(store, head),
        lambda: task_edits.claim(store, head),
        lambda: task_edits.report(store, head, message="x"),
    ]
    for call in calls:
        with pytest.raises(KeyMissing, match=f"{task_id}.*{owner.keys.key_ids[0]}") as error:
            await call()
        assert isinstance(error.value, NotReadableHere)
        assert error.value.retryable
    page = await store.list(ANA)
    assert (page.tasks, [type(each) for each in page.not_readable], page.corrupt) == ((), [KeyMissing], ())
    await subject.caught_up()
    found = await task_edits.quarantine_damaged(store)
    assert (found.not_readable, found.damaged) == (1, ())
    assert store.keys.missing_keys["tests"].keys() == {owner.keys.key_ids[0]}
    assert await record_of(owner, made) == before


async def test_a_task_whose_key_was_lost_can_be_deleted(everything: TaskStore, store: TaskStore) -> None:
    made = await everything.create(ANA, CALL)
    assert await store.delete(ANA, made.task.task_id)
    assert not await store.delete(ANA, made.task.task_id)


async def test_everything_needs_a_key(subject: Subject) -> None:
    with pytest.raises(InvalidValue, match="needs a key; set PERDURE_ENCRYPTION_KEY"):
        TaskStore(subject.storage, EVERYTHING, application="tests")
    with pytest.raises(InvalidValue, match="must be 'credentials' or 'everything', not 'all'"):
        StoreConfig(encrypt="all")  # pyright: ignore[reportArgumentType]


# Rotation and copies


@row(123)
async def test_keys_are_rotated_one_process_after_another(subject: Subject, clock: Clock) -> None:
    old, new = new_key(), new_key()
    stores = [
        TaskStore(subject.storage, EVERYTHING, keys=Keyring(keys), clock=clock, application="tests")
        for keys in ([old], [old, new], [new, old], [new])
    ]
    first, reads_both, writes_new, last = stores
    made = await worked_on(first)
    task_id = made.task.task_id
    await task_edits.report(reads_both, await reads_both.get(ANA, task_id), message="still old")
    assert (await first.get(ANA, task_id)).task.status_message == "still old"
    await task_edits.report(writes_new, await writes_new.get(ANA, task_id), message="new")
    assert (await reads_both.get(ANA, task_id)).task.status_message == "new"
    with pytest.raises(KeyMissing):
        await first.get(ANA, task_id)
    found = await last.get(ANA, task_id)
    assert found.task.status_message == "new"
    assert found.task.checkpoint == {"page": CANARY}


@row(123)
async def test_a_copy_is_read_with_the_same_keys(everything: TaskStore, keys: Keyring, clock: Clock) -> None:
    made = [await worked_on(everything), await worked_on(everything, outcome=Success.of({"text": CANARY}))]
    target = Storage(MemoryEngine())
    assert await copy_records(everything.storage, target, [TASKS], name="source") == {TASKS: 2}
    copied = TaskStore(target, EVERYTHING, keys=keys, clock=clock, application="tests")
    for each in made:
        found = await copied.get(ANA, each.task.task_id)
        assert encode_task(found.task) == encode_task(each.task)
    await task_edits.report(copied, await copied.get(ANA, made[0].task.task_id), message="resumed")


# Tampering


def tampered(snapshot: Snapshot, **fields: object) -> Record:
    """Return the record as someone leaves it who can write to the storage: with the version that it had."""
    plain = {**msgspec.json.decode(snapshot.record.body), **fields}
    return replace(snapshot.record, body=msgspec.json.encode(plain, order="sorted").decode())


def ciphertexts_of(snapshot: Snapshot) -> dict[str, str]:
    return Snapshot.head_of(snapshot.record).task.ciphertexts


INVALID = r"the ciphertext of its (contents|credentials) is invalid"
PLAIN = "must be encrypted is stored in plain text"


@row(122, 123)
async def test_ciphertexts_of_another_task_or_version_are_refused(
    everything: TaskStore, keys: Keyring
) -> None:
    first, second = await everything.create(ANA, CALL), await everything.create(ANA, CALL)
    edited = await task_edits.report(everything, first, message="newer")
    for part in ("contents", "credentials"):
        for target, source in ((second, first), (edited, first), (first, edited)):
            moved = {**ciphertexts_of(target), part: ciphertexts_of(source)[part]}
            with pytest.raises(CorruptRecord, match=INVALID):
                Snapshot.from_record(tampered(target, ciphertexts=moved), keys)
    older = replace(edited.record, body=first.record.body)  # the whole body of an earlier version
    with pytest.raises(CorruptRecord, match=INVALID):
        Snapshot.from_record(older, keys)
    assert Snapshot.from_record(tampered(edited), keys).task.status_message == "newer"


@row(122)
@pytest.mark.parametrize(
    "change",
    [
        {"function": "delete_all"},
        {"original_method": "x"},
        {"original_params": {"name": "delete_all", "arguments": {}}},
    ],
)
async def test_credentials_are_not_used_for_another_call(
    credentials: TaskStore, everything: TaskStore, keys: Keyring, change: dict[str, object]
) -> None:
    """Someone who can write to the storage cannot let another tool act in the name of the caller."""
    made = [await credentials.create(ANA, CALL)]
    if "original_params" not in change:  # which are encrypted themselves
        made.append(await everything.create(ANA, CALL))
    for each in made:
        with pytest.raises(CorruptRecord, match=INVALID):
            Snapshot.from_record(tampered(each, **change), keys)


@row(122)
async def test_credentials_in_plain_text_are_refused(
    store: TaskStore, credentials: TaskStore, keys: Keyring
) -> None:
    """Someone who can write to the storage cannot give a task the rights of another caller."""
    forged = {"token": {"token": "mine", "client_id": "c", "scopes": ["admin"]}}
    for made in (
        await store.create(ANA, replace(CALL, credentials=UNSET)),
        await credentials.create(ANA, CALL),
    ):
        with pytest.raises(CorruptRecord, match=PLAIN):
            Snapshot.from_record(tampered(made, credentials=forged), keys)


@row(123)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"encrypted": False}, "has encrypted contents but is not marked as encrypted"),
        ({"ciphertexts": {}}, "is marked as encrypted but has no encrypted contents"),
        ({"variables": {"mine": 1}}, PLAIN),
        ({"original_params": {}}, PLAIN),
    ],
)
async def test_an_encrypted_task_with_contents_in_plain_text_is_refused(
    everything: TaskStore, keys: Keyring, change: dict[str, object], reason: str
) -> None:
    made = await everything.create(ANA, CALL)
    with pytest.raises(CorruptRecord, match=reason):
        Snapshot.from_record(tampered(made, **change), keys)


@row(105, 123)
async def test_a_ciphertext_of_a_newer_version_is_left_as_it_is(everything: TaskStore, keys: Keyring) -> None:
    made = await everything.create(ANA, CALL)
    newer = tampered(made, ciphertexts={**ciphertexts_of(made), "attachments": "x"})
    with pytest.raises(NewerFormat, match="'attachments', which this version of perdure does not support"):
        Snapshot.from_record(newer, keys)


async def test_a_finished_task_is_frozen_also_if_it_is_encrypted(everything: TaskStore) -> None:
    ended = await worked_on(everything, outcome=Success.of("done"))
    assert ended.task.status is Status.COMPLETED
    with pytest.raises(TerminalTask):
        await task_edits.report(everything, ended, message="more")
