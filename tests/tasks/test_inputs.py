"""Input rounds: asked once, answered in part or whole, decoded by the kind that was asked."""

from __future__ import annotations

import pytest

from perdure.storage.kit import Subject
from perdure.storage.time_types import SECOND
from perdure.tasks import InputKind, InputRequest, Json, Snapshot, Status, TaskStore
from perdure.tasks.errors import InvalidValue, LimitExceeded, MalformedAnswer, QuestionChanged
from perdure.tasks.inputs import ElicitationAnswer, Root, RootsAnswer, SamplingAnswer

from .. import task_edits
from ..markers import once, row
from .samples import ANA, CALL, START, Clock

pytestmark = pytest.mark.anyio

KIB = 1024
ELICIT = InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose?"})
FORM = InputRequest(
    kind=InputKind.ELICITATION,
    params={
        "message": "Whose?",
        "requestedSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
)
SAMPLE = InputRequest(kind=InputKind.SAMPLING, params={"messages": []})
ROOTS = InputRequest(kind=InputKind.ROOTS)
YES: Json = {"action": "accept", "content": {"name": "Ana", "age": 40}}


async def asking(store: TaskStore, **requests: InputRequest) -> Snapshot:
    return await task_edits.ask(store, await store.create(ANA, CALL), requests)


@row(74)
async def test_a_round_is_stored_and_partial_answers_keep_waiting(store: TaskStore, clock: Clock) -> None:
    asked = await asking(store, name=ELICIT, text=SAMPLE)
    assert asked.task.status is Status.INPUT_REQUIRED
    assert asked.task.outstanding.keys() == {"name", "text"}
    assert asked.task.outstanding["name"].params == {"message": "Whose?"}
    clock.advance(SECOND)
    partly = await task_edits.answer(store, asked, {"name": YES})
    assert partly.task.status is Status.INPUT_REQUIRED
    assert partly.task.outstanding.keys() == {"text"}
    whole = await task_edits.answer(
        store, partly, {"text": {"role": "assistant", "content": {"type": "text"}, "model": "m"}}
    )
    assert (whole.task.status, whole.task.outstanding) == (Status.WORKING, {})
    read = await store.get(ANA, asked.task.task_id)
    assert read == whole
    assert (read.task.inputs["name"].asked_at, read.task.inputs["name"].answered_at) == (
        START,
        START + SECOND,
    )


@row(81)
async def test_asked_through_one_client_and_answered_through_another(subject: Subject, clock: Clock) -> None:
    asked = await asking(TaskStore(subject.storage, clock=clock, application="tests"), name=ELICIT)
    other = await subject.another_client()
    store = TaskStore(other, clock=clock, application="tests")
    answered = await store.update(
        ANA, asked.task.task_id, lambda read: task_edits.answer(store, read, {"name": YES})
    )
    assert (
        await TaskStore(subject.storage, clock=clock, application="tests").get(ANA, asked.task.task_id)
        == answered
    )
    await other.close()


@row(75)
async def test_sending_an_answer_again_is_acknowledged_and_changes_nothing(store: TaskStore) -> None:
    asked = await asking(store, name=ELICIT, text=SAMPLE)
    answered = await task_edits.answer(store, asked, {"name": YES})
    again = await task_edits.answer(store, answered, {"name": {"action": "decline"}})
    assert again == answered
    assert (await store.get(ANA, asked.task.task_id)).version == answered.version


@row(76, 77)
async def test_unknown_keys_are_ignored_and_do_not_resume_the_task(store: TaskStore) -> None:
    asked = await asking(store, name=ELICIT)
    assert await task_edits.answer(store, asked, {"other": YES, "another": "anything at all"}) is asked
    assert (await store.get(ANA, asked.task.task_id)).task.status is Status.INPUT_REQUIRED
    answered = await task_edits.answer(store, asked, {"other": YES, "name": YES})
    assert answered.task.status is Status.WORKING
    assert answered.task.inputs.keys() == {"name"}


@row(76, 80)
@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (ELICIT, {"action": "perhaps"}),
        (ELICIT, {"content": {}}),
        (ELICIT, {"action": "accept", "content": [1]}),
        (ELICIT, "accept"),
        (ELICIT, None),
        (FORM, {"action": "accept", "content": {"name": 7}}),
        (FORM, {"action": "accept"}),
        (SAMPLE, YES),
        (SAMPLE, {"role": "assistant", "content": {}}),
        (SAMPLE, {"role": "robot", "content": {}, "model": "m"}),
        (ROOTS, {"roots": [{"name": "no uri"}]}),
        (ROOTS, {"roots": {}}),
        (ROOTS, YES),
    ],
)
@once
async def test_a_malformed_answer_is_named_and_nothing_is_taken(
    store: TaskStore, request_: InputRequest, answer: Json
) -> None:
    asked = await asking(store, wrong=request_, right=ELICIT)
    with pytest.raises(MalformedAnswer, match="'wrong'") as caught:
        await task_edits.answer(store, asked, {"right": YES, "wrong": answer})
    assert caught.value.key == "wrong"
    assert await store.get(ANA, asked.task.task_id) == asked


@row(80)
async def test_answers_are_decoded_by_the_kind_that_was_asked(store: TaskStore) -> None:
    asked = await asking(store, name=ELICIT, text=SAMPLE, roots=ROOTS)
    assert asked.task.inputs["name"].answer is None
    answers: dict[str, Json] = {
        "name": YES,
        "text": {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m", "extra": 1},
        "roots": {"roots": [{"uri": "file:///a", "name": "a"}, {"uri": "file:///b"}]},
    }
    inputs = (await task_edits.answer(store, asked, answers)).task.inputs
    name, text = inputs["name"].answer, inputs["text"].answer
    assert isinstance(name, ElicitationAnswer)
    assert (name.action, name.content) == ("accept", {"age": 40, "name": "Ana"})
    assert isinstance(text, SamplingAnswer)
    assert (text.role, text.model, text.content) == ("assistant", "m", {"text": "hi", "type": "text"})
    assert inputs["roots"].answer == RootsAnswer([Root("file:///a", "a"), Root("file:///b")])


@row(78)
async def test_a_key_is_never_used_twice_in_a_tasks_life(store: TaskStore) -> None:
    answered = await task_edits.answer(store, await asking(store, name=ELICIT), {"name": YES})
    with pytest.raises(QuestionChanged, match="'name'"):
        await task_edits.ask(store, answered, {"fresh": ELICIT, "name": ELICIT})
    assert await store.get(ANA, answered.task.task_id) == answered
    asked = await task_edits.ask(store, answered, {"fresh": ELICIT})
    more = await task_edits.ask(store, asked, {"another": ELICIT})  # while the first is still open
    assert more.task.outstanding.keys() == {"fresh", "another"}
    with pytest.raises(QuestionChanged):
        await task_edits.ask(store, more, {"fresh": ELICIT})


@row(79)
async def test_a_call_asks_and_answers_64_entries_at_most(store: TaskStore) -> None:
    made = await store.create(ANA, CALL)
    with pytest.raises(LimitExceeded, match="65 entries"):
        await task_edits.ask(store, made, {str(n): ELICIT for n in range(65)})
    asked = await task_edits.ask(store, made, {str(n): ELICIT for n in range(64)})
    with pytest.raises(LimitExceeded, match="65 entries"):
        await task_edits.answer(store, asked, {str(n): YES for n in range(65)})
    assert (
        await task_edits.answer(store, asked, {str(n): YES for n in range(64)})
    ).task.status is Status.WORKING


@row(79)
async def test_answers_are_bounded_one_by_one_and_together_before_they_are_decoded(store: TaskStore) -> None:
    asked = await asking(store, **{f"k{n}": ELICIT for n in range(5)})
    with pytest.raises(LimitExceeded) as caught:
        await task_edits.answer(
            store, asked, {"k0": "x" * 64 * KIB}
        )  # malformed too, but too large to be decoded
    assert (caught.value.field, caught.value.limit) == ("inputs.k0", 64 * KIB)
    deep: Json = {"action": "accept"}
    for _ in range(33):
        deep = {"content": deep}
    with pytest.raises(LimitExceeded, match="levels of nesting"):
        await task_edits.answer(store, asked, {"k0": deep})
    big: Json = {"action": "accept", "content": {"x": "x" * (60 * KIB)}}
    with pytest.raises(LimitExceeded) as caught:
        await task_edits.answer(store, asked, {f"k{n}": big for n in range(5)})
    assert (caught.value.field, caught.value.limit) == ("inputs", 256 * KIB)
    assert await store.get(ANA, asked.task.task_id) == asked


@pytest.mark.parametrize("requests", [{}, {"": ELICIT}, {"k" * 257: ELICIT}])
@once
async def test_a_question_needs_a_key(store: TaskStore, requests: dict[str, InputRequest]) -> None:
    made = await store.create(ANA, CALL)
    with pytest.raises(InvalidValue, match="inputs"):
        await task_edits.ask(store, made, requests)
