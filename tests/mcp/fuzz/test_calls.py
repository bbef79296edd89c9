"""A call of a tool with anything in it is a task, a result or an error of the right code."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ...markers import row
from ..raw_clients import CORE, MODERN, Json
from .fuzz_server import (
    BOTH,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    Reply,
    Server,
    Value,
    anything_readable,
    assert_answers,
    ids,
    other_than,
    values,
)


def send_call(server: Server, version: str, **fields: Value) -> Reply:
    """A call of a durable tool, as a task, with these fields instead."""
    task: Json = {"task": {}} if version == CORE else {}
    return server.send(version, "tools/call", {"name": "quick", "arguments": {}, **task, **fields})


@BOTH
@given(arguments=other_than(dict))
def test_arguments_that_are_no_object_are_refused(server: Server, version: str, arguments: Value) -> None:
    reply = send_call(server, version, arguments=arguments)

    assert_answers(version, reply, {INVALID_PARAMS})


@BOTH
@given(arguments=st.dictionaries(anything_readable | st.just("label"), values, max_size=4))
def test_a_call_with_any_arguments_is_a_task_or_is_refused(
    server: Server, version: str, arguments: Json
) -> None:
    """What does not fit the tool's schema is the tool's error, as of any tool of the SDK."""
    reply = send_call(server, version, arguments=arguments)

    assert_answers(version, reply, {None, INVALID_PARAMS})
    if reply.code is None:
        is_task = reply.message["result"].keys() & {"taskId", "task"}
        assert is_task or reply.message["result"]["isError"] is True


@BOTH
@given(name=other_than(str))
def test_a_name_that_is_no_text_is_refused(server: Server, version: str, name: Value) -> None:
    codes = {INVALID_PARAMS, HEADER_MISMATCH} if version == MODERN else {INVALID_PARAMS}

    assert_answers(version, send_call(server, version, name=name), codes)


@BOTH
@given(key=other_than(str) | st.sampled_from(["", "x" * 10_000, "\ud800"]))
def test_what_is_no_idempotency_key_is_refused(server: Server, version: str, key: Value) -> None:
    reply = send_call(server, version, _meta={"perdure/idempotencyKey": key})

    assert_answers(version, reply, {INVALID_PARAMS})


@BOTH
@given(task=other_than(dict))
def test_a_wish_for_a_task_that_is_no_object_is_refused_where_it_means_anything(
    server: Server, version: str, task: Value
) -> None:
    reply = send_call(server, version, task=task)

    assert_answers(version, reply, {INVALID_PARAMS} if version == CORE else {None, INVALID_PARAMS})


@given(
    ttl=other_than(int, float)
    | st.integers(max_value=-1)
    | st.integers(min_value=30 * 24 * 3600 * 1000 + 1)
    | st.sampled_from([0.5, math.nan, math.inf, -math.inf, 1e300, 10**400])
)
def test_a_time_to_live_that_is_none_or_too_long_is_refused(server: Server, ttl: Value) -> None:
    assert_answers(CORE, send_call(server, CORE, task={"ttl": ttl}), {INVALID_PARAMS})


@given(state=values.filter(lambda value: value is not None) | ids.map(lambda text: f"perdure/task:{text}"))
def test_a_state_that_no_server_gave_is_refused(server: Server, state: Value) -> None:
    reply = send_call(server, MODERN, requestState=state)

    assert_answers(MODERN, reply, {INVALID_PARAMS})


@BOTH
@given(responses=values.filter(lambda value: value is not None))
def test_answers_to_a_call_that_asked_nothing_are_refused_or_passed_over(
    server: Server, version: str, responses: Value
) -> None:
    reply = send_call(server, version, inputResponses=responses)

    assert_answers(version, reply, {None, INVALID_PARAMS})


@row(52)
@BOTH
def test_what_is_too_large_is_refused_with_its_limit(server: Server, version: str) -> None:
    reply = send_call(server, version, arguments={"label": "x" * 3_000_000})

    assert_answers(version, reply, {INVALID_PARAMS})
    assert "exceed the limit of" in reply.message["error"]["message"]
    assert len(reply.message["error"]["message"]) < 1000
