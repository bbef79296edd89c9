"""A body that goes too deep, is too large or is no request at all is read or refused, with the right code."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ..raw_clients import CAPABILITIES, CORE, EXTENSION, MODERN, VERSION
from .fuzz_server import (
    BOTH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    Reply,
    Server,
    Value,
    assert_answers,
    encoded,
    enveloped,
    is_readable,
    values,
)

# Too deep


def nested(levels: int, kind: str) -> str:
    """JSON text, nested so deep."""
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    return opening * levels + "1" + closing * levels


DEPTHS = pytest.mark.parametrize("levels", [90, 150, 500, 900, 5_000, 100_000])

PLACES: dict[str, tuple[str, str, set[int | None]]] = {
    "an id": ("tasks/get", '{"taskId": DEEP}', {INVALID_PARAMS}),
    "a field that is passed over": ("tasks/get", '{"taskId": "x", "more": DEEP}', {INVALID_PARAMS}),
    "metadata": ("tasks/get", '{"taskId": "x", "_meta": {"m": DEEP}}', {INVALID_PARAMS}),
    "arguments": (
        "tools/call",
        '{"name": "quick", "task": {}, "arguments": {"x": DEEP}}',
        {None, INVALID_PARAMS},
    ),
    "metadata of a call": (
        "tools/call",
        '{"name": "quick", "task": {}, "arguments": {}, "_meta": {"m": DEEP}}',
        {None, INVALID_PARAMS},
    ),
    "an answer": ("tasks/update", '{"taskId": "TARGET", "inputResponses": {"go": DEEP}}', {INVALID_PARAMS}),
    "what a person filled in": (
        "tasks/update",
        '{"taskId": "TARGET", "inputResponses": {"go": {"action": "accept", "content": {"ok": DEEP}}}}',
        {INVALID_PARAMS},
    ),
    "an answer to nothing": (
        "tasks/update",
        '{"taskId": "TARGET", "inputResponses": {"nobody asked": DEEP}}',
        {None, INVALID_PARAMS},
    ),
    "variables": (
        "tasks/update",
        '{"taskId": "TARGET", "inputResponses": {}, "_meta": {"perdure/variables": {"v": DEEP}}}',
        {INVALID_PARAMS},
    ),
    "ids to listen to": ("subscriptions/listen", '{"notifications": {"taskIds": DEEP}}', {INVALID_PARAMS}),
    "a cursor": ("tasks/list", '{"cursor": DEEP}', {INVALID_PARAMS}),
    "a wish for a task": (
        "tools/call",
        '{"name": "quick", "arguments": {}, "task": DEEP}',
        {None, INVALID_PARAMS},
    ),
}
MODERN_PLACES = [name for name in PLACES if name not in ("a cursor", "a wish for a task")]
CORE_PLACES = [
    name for name, (method, *_) in PLACES.items() if method not in ("tasks/update", "subscriptions/listen")
]


@DEPTHS
@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize(
    ("version", "place"),
    [*((MODERN, place) for place in MODERN_PLACES), *((CORE, place) for place in CORE_PLACES)],
)
def test_nesting_of_any_depth_is_read_or_refused(
    server: Server, version: str, place: str, kind: str, levels: int
) -> None:
    method, params, codes = PLACES[place]
    text = params.replace("TARGET", server.target).replace("DEEP", nested(levels, kind))
    reply = post_params(server, version, method, text)

    assert_answers(version, reply, codes)


def post_params(server: Server, version: str, method: str, params: str) -> Reply:
    """Parameters that are text already, since Python cannot write what goes too deep."""
    if version == MODERN:
        envelope = json.dumps({VERSION: MODERN, CAPABILITIES: {"extensions": {EXTENSION: {}}}})[1:-1]
        params = (
            params.replace('"_meta": {', '"_meta": {' + envelope + ", ")
            if '"_meta"' in params
            else params[:-1] + ', "_meta": {' + envelope + "}}"
        )
    body = f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}'.encode()
    named = {"mcp-name": "quick"} if version == MODERN and method == "tools/call" else {}
    reply = server.post(version, body, method=method, **named)
    if not is_readable(version, body):
        assert (reply.status, reply.code) == (400, PARSE_ERROR)
    return reply


# Too large


@BOTH
def test_a_body_that_is_too_large_for_the_server_is_not_read(server: Server, version: str) -> None:
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "x" * 5_000_000}}
    )

    assert server.post(version, body.encode(), method="tasks/get").status == 413


# No request at all


@BOTH
@given(body=st.binary(max_size=200))
def test_what_is_no_json_is_a_parse_error(server: Server, version: str, body: bytes) -> None:
    assume(not is_readable(version, body))
    reply = server.post(version, body, method="tasks/get")

    assert (reply.status, reply.code) == (400, PARSE_ERROR)


@BOTH
@given(body=values.filter(lambda value: not isinstance(value, dict)) | st.lists(values, max_size=3))
def test_json_that_is_no_request_is_refused(server: Server, version: str, body: Value) -> None:
    """2025-11-25 has no code of its own for it in the SDK."""
    raw = encoded(body)
    reply = server.post(version, raw, method="tasks/get")
    refused = INVALID_REQUEST if version == MODERN else INVALID_PARAMS

    assert (reply.status, reply.code) == (400, refused if is_readable(version, raw) else PARSE_ERROR)


@BOTH
@given(
    name=st.sampled_from(["jsonrpc", "id", "method", "params"]),
    value=values.filter(lambda value: value is not None and value != "2.0"),
)
def test_a_request_with_one_member_of_a_wrong_kind_is_refused(
    server: Server, version: str, name: str, value: Value
) -> None:
    assume(not isinstance(value, {"id": (str, int), "method": str, "params": dict}.get(name, ())))
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tasks/get",
        "params": enveloped({"taskId": "x"}),
        name: value,
    }
    raw = encoded(body)
    reply = server.post(version, raw, method="tasks/get")
    refused = INVALID_REQUEST if version == MODERN else INVALID_PARAMS
    if name == "id" and version == CORE and is_readable(version, raw):
        assert reply.status == 202  # to the SDK, what has no id that it can use is a notification
        return

    assert (reply.status, reply.code) == (400, refused if is_readable(version, raw) else PARSE_ERROR)


@BOTH
def test_of_a_key_that_is_there_twice_the_last_counts(server: Server, version: str) -> None:
    own, other = f'"taskId": "{server.target}"', '"taskId": "nobody"'

    assert_answers(
        version, post_params(server, version, "tasks/get", f"{{{own}, {other}}}"), {INVALID_PARAMS}
    )
    assert_answers(version, post_params(server, version, "tasks/get", f"{{{other}, {own}}}"), {None})
