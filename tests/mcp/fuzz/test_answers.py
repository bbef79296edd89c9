"""Whatever a client answers to what a task asked, it gets the right code, and the task goes on waiting."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ...markers import row
from ..raw_clients import MODERN, Json
from .fuzz_server import INVALID_PARAMS, Server, Value, anything_readable, assert_answers, other_than, values


@given(responses=other_than(dict))
def test_answers_that_are_no_object_are_refused(server: Server, responses: Value) -> None:
    params = {"taskId": server.target, "inputResponses": responses}

    assert_answers(MODERN, server.send(MODERN, "tasks/update", params), {INVALID_PARAMS})


def fields_of(value: Value) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def is_answer(value: Value) -> bool:
    return fields_of(value).get("action") in ("accept", "decline", "cancel")


def fills_in(value: Value) -> bool:
    """Whether this is what the form asks for."""
    return isinstance(fields_of(value).get("ok"), bool)


contents = values.filter(lambda value: not isinstance(value, bool) and not fills_in(value))

malformed: st.SearchStrategy[Value] = (
    values.filter(lambda value: not is_answer(value))
    | st.fixed_dictionaries({"action": st.just("accept"), "content": contents})
    | st.fixed_dictionaries({"action": st.just("accept"), "content": st.fixed_dictionaries({"ok": contents})})
)


# A task that somebody looks at again and again holds its answers back, so these two look when all is sent.


@row(76)
def test_a_malformed_answer_is_refused_by_its_key_and_the_task_goes_on_waiting(server: Server) -> None:
    @given(answer=malformed)
    def answer_so(answer: Value) -> None:
        params = {"taskId": server.target, "inputResponses": {"go": answer}}

        assert_answers(MODERN, server.send(MODERN, "tasks/update", params), {INVALID_PARAMS})

    answer_so()
    assert server.get(server.target, who="attacker")["status"] == "input_required"


def test_answers_to_what_was_not_asked_are_passed_over_or_too_large(server: Server) -> None:
    @given(answers=st.dictionaries(anything_readable.filter(lambda key: key != "go"), values, max_size=5))
    def answer_so(answers: Json) -> None:
        params = {"taskId": server.target, "inputResponses": answers}

        assert_answers(MODERN, server.send(MODERN, "tasks/update", params), {None, INVALID_PARAMS})

    answer_so()
    assert list(server.get(server.target, who="attacker")["inputRequests"]) == ["go"]


# Variables


@given(variables=values.filter(lambda value: value is not None))
def test_variables_are_kept_as_they_are_or_refused(server: Server, variables: Value) -> None:
    meta = {"perdure/variables": variables}
    params: Json = {"taskId": server.target, "inputResponses": {}, "_meta": meta}
    reply = server.send(MODERN, "tasks/update", params)

    assert_answers(MODERN, reply, {None, INVALID_PARAMS} if isinstance(variables, dict) else {INVALID_PARAMS})
    kept = server.get(server.target, who="attacker")["_meta"].get("perdure/variables", {})
    given = {name: value for name, value in fields_of(variables).items() if value is not None}
    assert reply.code is not None or {name: kept[name] for name in given} == given


# Too large


@pytest.mark.parametrize("count", [65, 5_000])
def test_thousands_of_answers_at_once_are_refused_or_passed_over(server: Server, count: int) -> None:
    answers = {f"key {at}": {"action": "decline"} for at in range(count)}
    reply = server.send(MODERN, "tasks/update", {"taskId": server.target, "inputResponses": answers})

    assert_answers(MODERN, reply, {None, INVALID_PARAMS})


def test_an_answer_of_megabytes_is_refused_in_few_words(server: Server) -> None:
    for content in (
        {"ok": "x" * 3_000_000},
        {"ok": [0] * 300_000},
        {f"field {at}": at for at in range(100_000)},
    ):
        answer = {"action": "accept", "content": content}
        params = {"taskId": server.target, "inputResponses": {"go": answer}}
        reply = server.send(MODERN, "tasks/update", params)
        assert_answers(MODERN, reply, {INVALID_PARAMS})
        assert len(reply.message["error"]["message"]) < 10_000
