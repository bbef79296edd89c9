"""Canonical JSON: byte exact, the same everywhere, and nothing bent to fit."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from msgspec import Raw

from perdure.tasks import Json, Owner, Status, TaskId, TaskRecord
from perdure.tasks.canonical_json import (
    MAX_DEPTH,
    check_json,
    decode,
    encode,
    encode_checked,
    encode_in_order,
)
from perdure.tasks.errors import CorruptRecord, InvalidValue, LimitExceeded
from perdure.tasks.inputs import Input, InputKind
from perdure.tasks.task_record import Failure, Progress, Success, decode_task, encode_task

from ..markers import row
from .samples import START, json_values

GOLDEN = Path(__file__).parent / "golden"


def full_record() -> TaskRecord:
    """A task with every field set."""
    return TaskRecord(
        task_id=TaskId("0123456789abcdef0123456789abcdef"),
        owner=Owner.user("https://issuer.example", "ana:1%\0"),
        application="reports",
        session_id="session-1",
        status=Status.COMPLETED,
        status_message="done ✓",
        created_at=START,
        last_updated_at=START + 5,
        ttl_ms=60_000,
        poll_interval_ms=500,
        original_method="tools/call",
        params_json=encode_checked("params", {"b": [1, 2.5, None], "a": {"é": "日本 😀", "z": True}}),
        outcome=Success.of({"content": [], "isError": False, "n": 123456789012345678901234567890}),
        finished_at=START + 5,
        meta_json=encode_checked("meta", {"progressToken": 7}),
        variables_json=encode_checked("variables", {"page": 3, "empty": {}, "text": "\0\u2028"}),
        inputs={
            "name": Input(
                kind=InputKind.ELICITATION,
                params_json=encode_checked("inputs", {"message": "Whose?"}),
                asked_at=START + 1,
                answer_json=encode_checked("inputs", {"action": "accept", "content": {"name": "Ana"}}),
                answered_at=START + 2,
            )
        },
        progress=Progress(done=12, total=12),
        cancel_requested_at=START + 3,
        is_claimed=True,
        idempotency_key="key-1",
    )


@row(13)
def test_the_canonical_bytes_are_those_of_the_golden_file() -> None:
    assert encode_task(full_record()) == (GOLDEN / "task-v2.json").read_bytes().rstrip(b"\n")


@row(10, 13)
def test_a_record_comes_back_whole() -> None:
    record = full_record()
    body = encode_task(record).decode()
    again = decode_task(record.task_id, body)
    assert encode_task(again).decode() == body
    assert again.original_params == record.original_params
    assert again.inputs.keys() == record.inputs.keys()


@row(11)
def test_a_record_of_an_older_version_loads() -> None:
    """The minimum that the first version of this format wrote: every later field has a default."""
    body = (GOLDEN / "task-v2-minimal.json").read_text(encoding="utf-8").rstrip("\n")
    task = decode_task("0123456789abcdef0123456789abcdef", body)
    assert task.status is Status.WORKING
    assert task.variables == {}
    assert task.inputs == {}
    assert encode_task(task).decode() == body


def test_a_record_of_a_development_version_is_refused_and_not_misread() -> None:
    """The first format had no application."""
    body = (GOLDEN / "task-v1-minimal.json").read_text(encoding="utf-8").rstrip("\n")
    with pytest.raises(CorruptRecord, match="format is 1, which only development versions of perdure wrote"):
        decode_task("0123456789abcdef0123456789abcdef", body)


@row(12)
def test_unknown_fields_are_kept_at_every_level() -> None:
    stored = json.loads((GOLDEN / "task-v2.json").read_text(encoding="utf-8"))
    stored["priority"] = {"level": 3}
    stored["outcome"]["signature"] = "abc"
    stored["inputs"]["name"]["urgency"] = [1]
    body = encode(stored).decode()
    task = decode_task(stored["task_id"], body)
    assert encode_task(task).decode() == body
    edited = encode_task(msgspec.structs.replace(task, status_message="changed"))
    assert json.loads(edited) == {**stored, "status_message": "changed"}


@row(10)
@given(json_values)
def test_any_json_comes_back_as_it_went(value: Json) -> None:
    raw = encode_checked("value", value)
    assert decode(raw) == value
    assert encode_in_order(decode(raw)) == bytes(raw)


def test_the_keys_of_a_value_keep_their_order_beside_fields_of_a_newer_version() -> None:
    stored = json.loads((GOLDEN / "task-v2.json").read_text(encoding="utf-8"))
    values: Json = {"z": {"b": 1, "a": 2}, "a": 3}
    newer = msgspec.Raw(json.dumps(values, separators=(",", ":")).encode())
    task = decode_task(stored["task_id"], encode({**stored, "priority": newer}).decode())
    assert json.dumps(json.loads(encode_task(task))["priority"]) == json.dumps(values)
    edited = msgspec.structs.replace(
        task, params_json=encode_checked("params", values), outcome=Success.of(values)
    )
    again = decode_task(stored["task_id"], encode_task(edited).decode())
    assert json.dumps(again.original_params) == json.dumps(values)
    assert isinstance(again.outcome, Success)
    assert json.dumps(again.outcome.value) == json.dumps(values)
    assert encode_task(again) == encode_task(edited)


@given(json_values)
def test_canonical_bytes_do_not_depend_on_the_order_of_keys(value: Json) -> None:
    if isinstance(value, dict):
        backwards: Json = dict(reversed(value.items()))
        assert encode(value) == encode(backwards)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), {1: 2}, {"a": {None: 1}}, b"bytes", {1, 2}, object(),
     dt.datetime(2026, 1, 1, tzinfo=dt.UTC), {"deep": [float("nan")]}],
)  # fmt: skip
def test_what_is_not_json_is_refused_never_bent(value: object) -> None:
    with pytest.raises(InvalidValue, match="value"):
        check_json("value", value, max_depth=MAX_DEPTH)


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, [["\ud800"]]])
def test_a_lone_surrogate_is_refused(value: Json) -> None:
    with pytest.raises(InvalidValue, match="surrogate"):
        encode_checked("value", value)


def test_a_depth_bomb_is_refused_before_it_is_walked() -> None:
    bomb: Json = []
    for _ in range(100_000):
        bomb = [bomb]
    with pytest.raises(LimitExceeded, match="levels of nesting"):
        encode_checked("value", bomb)


@row(47)
@pytest.mark.parametrize(
    "body", ["", "{", "null", "[]", "{}", '{"task_id":1}', '{"status":"sleeping"}', "[" * 100_000]
)
def test_what_is_no_task_is_corrupt(body: str) -> None:
    with pytest.raises(CorruptRecord) as caught:
        decode_task("some-id", body)
    assert caught.value.key == "some-id"


@row(16)
def test_an_error_keeps_code_message_and_data_verbatim() -> None:
    kinds: list[Json] = [None, 0, "", [], {"why": ["disk"]}]
    for data in kinds:
        failure = Failure.of(-32603, "Internal error", data)
        again = msgspec.json.decode(encode(failure), type=Failure)
        assert (again.code, again.message, again.data) == (-32603, "Internal error", data)
    assert b"data" not in encode(Failure.of(-32603, "Internal error"))
    assert b'"data":null' in encode(Failure.of(-32603, "Internal error", None))


def test_a_success_keeps_its_value() -> None:
    assert Success.of({"isError": True}).value == {"isError": True}
    assert Success(result=Raw(b"1")).value == 1
