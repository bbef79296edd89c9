"""Limits: every field, checked before anything is written, with the field, the limit and the size."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.storage.kit import Subject
from perdure.tasks import (
    Failure,
    InputKind,
    InputRequest,
    Json,
    NewTask,
    Outcome,
    Owner,
    StoreConfig,
    Success,
    TaskFilter,
    TaskId,
    TaskStore,
    Variables,
)
from perdure.tasks.errors import InvalidCursor, InvalidValue, LimitExceeded, NotFound, WrongVariableType
from perdure.tasks.owner import OwnerKind
from perdure.tasks.variables_and_checkpoint import merge

from .. import task_edits
from ..markers import once, row
from .samples import ANA, CALL, Clock, json_values, text

pytestmark = pytest.mark.anyio

KIB = 1024
CONFIG = StoreConfig()


def nested(depth: int) -> Json:
    value: Json = 1
    for _ in range(depth):
        value = [value]
    return value


@row(48)
async def test_variables_merge_shallowly_and_null_deletes(store: TaskStore) -> None:
    made = await store.create(ANA, NewTask(method="m", variables={"a": 1, "b": {"x": 1, "y": 2}}))
    moved = await task_edits.set_variables(
        store, made, {"b": {"x": 9}, "c": [None], "a": None, "absent": None}
    )
    assert (await store.get(ANA, made.task.task_id)).task.variables == {"b": {"x": 9}, "c": [None]}
    empty = await task_edits.set_variables(store, moved, {"b": None, "c": None})
    assert empty.task.variables == {}


@row(48)
@given(
    st.dictionaries(text.filter(bool), json_values, max_size=5),
    st.dictionaries(text.filter(bool), json_values, max_size=5),
)
def test_merging_is_that_of_dictionaries_without_null(one: dict[str, Json], other: dict[str, Json]) -> None:
    merged = Variables.decode(merge(Variables.decode(merge(Variables({}), one, CONFIG)), other, CONFIG))
    assert dict(merged) == {name: value for name, value in {**one, **other}.items() if value is not None}


@row(49)
@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"a": nested(11)}, 10),
        ({"a": "x" * (64 * KIB + 1)}, 64 * KIB),
        ({"a": [{"b": "x" * (64 * KIB + 1)}]}, 64 * KIB),
        ({str(n): "x" * 64 * KIB for n in range(16)}, 1024 * KIB),
        ({str(n): 1 for n in range(1000)}, 1000),
        ({"n" * 257: 1}, 256),
    ],
)
@once
async def test_variables_beyond_a_limit_are_refused_without_change(
    store: TaskStore, changes: dict[str, Json], limit: int
) -> None:
    made = await store.create(ANA, NewTask(method="m", variables={"keep": 1}))
    with pytest.raises(LimitExceeded, match="variables") as caught:
        await task_edits.set_variables(store, made, changes)
    assert (caught.value.limit, caught.value.actual > limit) == (limit, True)
    with pytest.raises(LimitExceeded, match="variables"):
        await store.create(ANA, NewTask(method="m", variables={**changes, "one more": 1}))
    assert await store.get(ANA, made.task.task_id) == made


@row(49)
async def test_variables_at_their_limits_are_taken(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    made = await task_edits.set_variables(store, made, {"a": nested(10), "s": "x" * 64 * KIB, "n" * 256: 1})
    await task_edits.set_variables(store, made, {str(n): 1 for n in range(997)})


@row(49)
async def test_the_limit_is_of_the_merged_whole(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    for n in range(15):
        made = await task_edits.set_variables(store, made, {str(n): "x" * 64 * KIB})
    with pytest.raises(LimitExceeded):
        await task_edits.set_variables(store, made, {"last": "x" * 64 * KIB})
    await task_edits.set_variables(store, made, {"last": "x" * 64 * KIB, "0": None})


async def test_a_variable_needs_a_name(store: TaskStore) -> None:
    with pytest.raises(InvalidValue, match="must not be empty"):
        await store.create(ANA, NewTask(method="m", variables={"": 1}))


@row(50)
def test_typed_getters_give_the_type_or_the_default_or_raise() -> None:
    variables = Variables({"s": "x", "i": 3, "f": 1.5, "b": True, "l": [1], "d": {"a": 1}})
    assert (variables.get_str("s"), variables.get_int("i"), variables.get_float("f")) == ("x", 3, 1.5)
    assert (variables.get_bool("b"), variables.get_list("l"), variables.get_dict("d")) == (
        True,
        [1],
        {"a": 1},
    )
    assert variables.get_float("i") == 3.0
    assert variables.get_str("none") is None
    assert variables.get_int("none", 7) == 7
    for getter, name in (
        (variables.get_str, "i"),
        (variables.get_int, "b"),
        (variables.get_int, "f"),
        (variables.get_float, "b"),
        (variables.get_bool, "i"),
        (variables.get_list, "d"),
        (variables.get_dict, "l"),
    ):
        with pytest.raises(WrongVariableType) as caught:
            getter(name)
        assert caught.value.name == name


@row(52)
@pytest.mark.parametrize(
    ("new", "field"),
    [
        (NewTask(method="m", params="x" * 1024 * KIB), "params"),
        (NewTask(method="m", meta="x" * 64 * KIB), "meta"),
        (NewTask(method="m", params=nested(101)), "params"),
        (NewTask(method="m" * 257), "method"),
        (NewTask(method="m", session_id="é" * 129), "session_id"),
    ],
)
@once
async def test_what_a_task_is_created_from_is_bounded(store: TaskStore, new: NewTask, field: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        await store.create(ANA, new)
    assert caught.value.field == field
    assert caught.value.actual > caught.value.limit
    assert await task_edits.counts(store, ANA) == {}


@row(52)
async def test_what_a_task_ends_with_is_bounded(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    with pytest.raises(LimitExceeded) as caught:
        await task_edits.finish(store, made, Success.of("x" * 1024 * KIB))
    assert (caught.value.field, caught.value.limit, caught.value.actual) == (
        "result",
        1024 * KIB,
        1024 * KIB + 2,
    )
    with pytest.raises(LimitExceeded) as caught:
        await task_edits.finish(store, made, Failure.of(1, "m", "x" * 64 * KIB))
    assert caught.value.field == "error"
    with pytest.raises(LimitExceeded) as caught:
        await task_edits.report(store, made, message="x" * 4097)
    assert (caught.value.field, caught.value.limit, caught.value.actual) == ("status_message", 4096, 4097)
    assert await store.get(ANA, made.task.task_id) == made


@row(52)
async def test_the_whole_record_is_bounded(store: TaskStore) -> None:
    made = await store.create(ANA, NewTask(method="m", params="x" * 1000 * KIB))
    with pytest.raises(LimitExceeded) as caught:
        await task_edits.finish(store, made, Success.of("x" * 1000 * KIB))
    assert caught.value.field == "task"
    assert await store.get(ANA, made.task.task_id) == made


@row(79)
@pytest.mark.parametrize(
    ("params", "field"), [("x" * 64 * KIB, "inputs.k"), (nested(33), "inputs.k"), ("\ud800", "inputs.k")]
)
@once
async def test_a_question_is_bounded(store: TaskStore, params: Json, field: str) -> None:
    made = await store.create(ANA, CALL)
    with pytest.raises(InvalidValue) as caught:
        await task_edits.ask(store, made, {"k": InputRequest(kind=InputKind.ELICITATION, params=params)})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "new",
    [
        NewTask(method=""),
        NewTask(method="\ud800"),
        NewTask(method="m", session_id=""),
        NewTask(method="m", poll_interval_ms=49),
        NewTask(method="m", poll_interval_ms=30_001),
        NewTask(method="m", params=float("nan")),
        NewTask(method="m", meta={"a": float("inf")}),
    ],
)
@once
async def test_what_cannot_be_is_refused_and_nothing_is_stored(store: TaskStore, new: NewTask) -> None:
    with pytest.raises(InvalidValue):
        await store.create(ANA, new)
    assert await task_edits.counts(store, ANA) == {}


async def test_limits_are_those_of_the_configuration(subject: Subject, clock: Clock) -> None:
    config = StoreConfig(
        max_variable_depth=1, max_string_length=5, max_variable_size_bytes=50, max_variables=2,
        max_params_size_bytes=10, max_result_size_bytes=10, max_error_size_bytes=1024, max_message_length=64,
    )  # fmt: skip
    store = TaskStore(subject.storage, config, clock=clock, application="tests")
    made = await store.create(ANA, NewTask(method="m"))
    for changes in ({"a": [[1]]}, {"a": "x" * 6}, {"a": 1, "b": 2, "c": 3}):
        with pytest.raises(LimitExceeded):
            await task_edits.set_variables(store, made, changes)
    for attempt in (
        store.create(ANA, NewTask(method="m", params="x" * 10)),
        task_edits.finish(store, made, Success.of("x" * 10)),
        task_edits.finish(store, made, Failure.of(1, "x" * 1100)),
        task_edits.report(store, made, message="x" * 65),
    ):
        with pytest.raises(LimitExceeded):
            await attempt


@row(61)
@pytest.mark.parametrize(
    "wrong",
    [
        {"retention": 0},
        {"retention": -1},
        {"ttl": 0},
        {"ttl": 31 * 86_400},
        {"ttl": None},
        {"max_ttl": 0},
        {"idempotency_window": 0},
        {"max_tasks": -1},
        {"max_tasks_per_owner": 0},
        {"poll_interval": 0.049},
        {"poll_interval": 30.001},
        {"max_record_size_bytes": 2 * 1024 * KIB + 1},
        {"max_name_length": 257},
        {"max_variable_depth": 0},
        {"max_variable_depth": 100},
        {"max_input_depth": 101},
        {"retention": 10**11},
        {"retention": "7 days"},
        {"retention": True},
        {"ttl": float("nan")},
        {"idempotency_window": 10**11},
        {"max_tasks_per_owner": 2**60},
        {"max_tasks_per_owner": None},
    ],
)
def test_a_configuration_that_cannot_be_is_refused_with_its_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidValue) as caught:
        msgspec.structs.replace(CONFIG, **wrong)
    assert caught.value.field == next(iter(wrong))


@row(61)
def test_the_defaults_are_those_of_the_documentation() -> None:
    assert (CONFIG.max_tasks_per_owner, CONFIG.max_tasks, CONFIG.allow_anonymous) == (100, 10_000, False)
    assert (CONFIG.ttl_ms, CONFIG.max_ttl_ms) == (86_400_000, 30 * 86_400_000)
    assert CONFIG.retention_ms == 7 * 86_400_000
    assert (CONFIG.max_variable_depth, CONFIG.max_string_length) == (10, 65_536)
    assert CONFIG.max_variable_size_bytes == 1_048_576


@pytest.mark.parametrize(
    "make",
    [
        lambda: NewTask(method="m", params=10**5000),
        lambda: NewTask(method="m", ttl_ms=cast("int", 1.5)),
        lambda: NewTask(method="m", ttl_ms=True),
        lambda: NewTask(method="m", ttl_ms=cast("int", "1")),
        lambda: NewTask(method="m", poll_interval_ms=cast("int", 100.5)),
        lambda: NewTask(method=cast("str", 5)),
        lambda: NewTask(method="m", session_id=cast("str", 5)),
        lambda: NewTask(method="m", idempotency_key=cast("str", 5)),
        lambda: NewTask(method="m", variables=cast("dict[str, Json]", {1: 2})),
        lambda: Failure.of(cast("int", 1.5), "x"),
        lambda: Failure.of(2**70, "x"),
        lambda: Failure.of(1, cast("str", 5)),
        lambda: Owner.user(cast("str", 5), "a"),
        lambda: Owner(cast("OwnerKind", "zzz")),
    ],
)
@once
async def test_a_value_of_the_wrong_kind_is_refused_by_name(
    store: TaskStore, make: Callable[[], object]
) -> None:
    async def create() -> None:
        made = make()
        assert isinstance(made, NewTask)
        await store.create(ANA, made)

    with pytest.raises(InvalidValue):
        await create()
    assert await task_edits.counts(store) == {}


async def test_other_hostile_arguments_are_refused_by_name(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    for attempt in (
        task_edits.report(store, made, message=cast("str", 5)),
        task_edits.finish(store, made, Success.of(1), message="x" * 4097),
        task_edits.cancel(store, made, message="\ud800"),
        task_edits.ask(store, made, {"\ud800": InputRequest(kind=InputKind.ROOTS)}),
        task_edits.ask(store, made, {"k": InputRequest(kind=cast("InputKind", "foo"))}),
        store.list(ANA, task_filter=TaskFilter(method="\ud800")),
        store.list(ANA, limit=cast("int", 1.5)),
    ):
        with pytest.raises(InvalidValue):
            await attempt
    with pytest.raises(NotFound):
        await store.get(ANA, cast("str", 5))
    with pytest.raises(InvalidCursor):
        await store.list(ANA, cursor=cast("str", 5))
    assert await store.get(ANA, made.task.task_id) == made


async def test_an_id_that_could_not_be_found_again_is_refused(subject: Subject) -> None:
    store = TaskStore(subject.storage, new_id=lambda: TaskId("ab-cd"), application="tests")
    with pytest.raises(InvalidValue, match="task_id"):
        await store.create(ANA, CALL)


@pytest.mark.parametrize(
    "outcome",
    [
        Success(result=Raw(b"nope")),
        Success(result=Raw(b'"\xff"')),
        Success(result=Raw(b'{"b":1, "a":2}')),
        Success(result=cast("Raw", "text")),
        Failure(code=cast("int", 1.5), message="x"),
        Failure(code=1, message="\ud800"),
        Failure(code=1, message="x", data_json=Raw(b"{")),
        cast("Outcome", None),
    ],
)
@once
async def test_an_outcome_made_by_hand_must_be_readable_again(store: TaskStore, outcome: Outcome) -> None:
    made = await store.create(ANA, CALL)
    with pytest.raises(InvalidValue):
        await task_edits.finish(store, made, outcome)
    assert await store.get(ANA, made.task.task_id) == made


def test_a_number_beyond_the_range_of_floats_is_not_a_float() -> None:
    with pytest.raises(WrongVariableType):
        Variables({"n": 10**400}).get_float("n")
