"""Requests about tasks, and subscriptions to them, take no parameters that are not theirs."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ...markers import row
from ..raw_clients import CAPABILITIES, CORE, MODERN, Json
from .fuzz_server import (
    BOTH,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    METHODS,
    PARSE_ERROR,
    UNDECLARED,
    Server,
    Value,
    anything_readable,
    assert_answers,
    ids,
    other_than,
    values,
)

# Tasks that are not there


@BOTH
@given(data=st.data())
def test_an_id_that_is_no_text_is_refused_by_its_field(
    server: Server, version: str, data: st.DataObject
) -> None:
    method = data.draw(st.sampled_from(METHODS[version]))
    reply = server.send(version, method, {"taskId": data.draw(other_than(str)), "inputResponses": {}})

    assert_answers(version, reply, {INVALID_PARAMS})
    assert reply.code == PARSE_ERROR or "taskId" in reply.message["error"]["message"]


@row(86)
@BOTH
@given(data=st.data(), task_id=ids)
def test_an_id_of_any_characters_is_of_no_task(
    server: Server, version: str, data: st.DataObject, task_id: str
) -> None:
    method = data.draw(st.sampled_from(METHODS[version]))
    reply = server.send(version, method, {"taskId": task_id, "inputResponses": {}})

    assert_answers(version, reply, {INVALID_PARAMS})
    assert reply.code == PARSE_ERROR or reply.message["error"]["message"] == "Task not found"


@BOTH
@given(data=st.data(), others=st.dictionaries(anything_readable, values, max_size=3))
def test_parameters_without_an_id_are_refused_whatever_else_they_say(
    server: Server, version: str, data: st.DataObject, others: Json
) -> None:
    assume(not {"taskId", "_meta"} & others.keys())
    method = data.draw(st.sampled_from(METHODS[version]))

    assert_answers(version, server.send(version, method, others), {INVALID_PARAMS})


@given(
    task_id=ids.filter(lambda text: len(text) < 100), header=st.text("abcXYZ019/:", min_size=1, max_size=40)
)
def test_a_header_that_names_another_task_is_a_mismatch(server: Server, task_id: str, header: str) -> None:
    assume(task_id != header)
    params: Json = {"taskId": task_id, "inputResponses": {}}
    method = METHODS[MODERN][len(header) % 3]
    reply = server.send(MODERN, method, params, **{"mcp-name": header})

    assert_answers(MODERN, reply, {HEADER_MISMATCH})


# What is not of this generation, or of no form

RETIRED = ((MODERN, "tasks/list"), (MODERN, "tasks/result"), (CORE, "tasks/update"))


@row(85)
@given(
    retired=st.sampled_from(RETIRED),
    params=st.dictionaries(anything_readable.filter(lambda name: name != "_meta"), values, max_size=4),
)
def test_methods_that_a_generation_does_not_have_are_not_there_whatever_they_are_given(
    server: Server, retired: tuple[str, str], params: Json
) -> None:
    version, method = retired

    assert_answers(version, server.send(version, method, params), {METHOD_NOT_FOUND})


@row(85)
@given(method=st.sampled_from(METHODS[MODERN]), capabilities=values)
def test_what_is_no_declaration_of_tasks_is_none(server: Server, method: str, capabilities: Value) -> None:
    """Capabilities of a wrong form are wrong parameters; of a right one, without tasks, undeclared."""
    meta = {CAPABILITIES: capabilities}
    params: Json = {"taskId": server.target, "inputResponses": {}, "_meta": meta}

    assert_answers(MODERN, server.send(MODERN, method, params), {UNDECLARED, INVALID_PARAMS})


@BOTH
@given(data=st.data(), meta=other_than(dict))
def test_metadata_that_is_no_object_is_refused(
    server: Server, version: str, data: st.DataObject, meta: Value
) -> None:
    method = data.draw(st.sampled_from([*METHODS[version], "tools/call"]))
    params: Json = {"taskId": server.target, "inputResponses": {}, "name": "quick", "_meta": meta}

    assert_answers(version, server.send(version, method, params), {INVALID_PARAMS})


@BOTH
@given(others=st.dictionaries(anything_readable, values, max_size=3))
def test_what_the_protocol_does_not_know_is_passed_over(server: Server, version: str, others: Json) -> None:
    assume(not {"taskId", "_meta"} & others.keys())
    meta = {f"test/{at}": value for at, value in enumerate(others.values())}
    reply = server.send(version, "tasks/get", {"taskId": server.ended, **others, "_meta": meta})

    assert_answers(version, reply, {None, INVALID_PARAMS} if any(map(is_no_unicode, others)) else {None})


def is_no_unicode(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


@pytest.mark.parametrize("method", [*METHODS[MODERN], "subscriptions/listen"])
def test_a_field_whose_name_is_no_unicode_is_passed_over_or_refused(server: Server, method: str) -> None:
    odd: Json = {"\ud800": 1}
    params: Json = {"taskId": "nobody", "inputResponses": {}, **odd, "notifications": {"taskIds": [], **odd}}

    assert_answers(MODERN, server.send(MODERN, method, params), {None, INVALID_PARAMS})


@given(cursor=values.filter(lambda value: value is not None))
def test_what_is_no_cursor_is_refused(server: Server, cursor: Value) -> None:
    assert_answers(CORE, server.send(CORE, "tasks/list", {"cursor": cursor}), {INVALID_PARAMS})


# Subscriptions


@given(wanted=other_than(list) | st.lists(other_than(str), min_size=1, max_size=3))
def test_ids_to_listen_to_that_are_no_list_of_text_are_refused(server: Server, wanted: Value) -> None:
    params = {"notifications": {"taskIds": wanted}}

    assert_answers(MODERN, server.send(MODERN, "subscriptions/listen", params), {INVALID_PARAMS})


@given(wanted=st.lists(ids.filter(lambda text: len(text) < 100), max_size=5))
def test_a_stream_of_tasks_that_are_not_there_ends_at_once(server: Server, wanted: list[str]) -> None:
    reply = server.send(MODERN, "subscriptions/listen", {"notifications": {"taskIds": wanted}})

    assert_answers(MODERN, reply, {None})
    assert reply.frames[0]["params"]["notifications"] == {"taskIds": []}


@given(wanted=other_than(dict))
def test_notifications_that_are_no_object_are_refused(server: Server, wanted: Value) -> None:
    reply = server.send(MODERN, "subscriptions/listen", {"notifications": wanted})

    assert_answers(MODERN, reply, {INVALID_PARAMS})


def test_a_hundred_thousand_ids_to_listen_to_are_answered(server: Server) -> None:
    wanted = [f"{at:032x}" for at in range(60_000)]
    reply = server.send(MODERN, "subscriptions/listen", {"notifications": {"taskIds": wanted}})

    assert_answers(MODERN, reply, {None, INVALID_PARAMS})
