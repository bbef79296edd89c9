"""Whatever a client sends, it gets an error of the right code that tells nothing of the inside, or a result.

Raw bodies go to a running server whose log says nothing but errors. Each case says which codes it
takes; what a body is that the SDK's own parser cannot read, that parser says.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Collection, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpx2
import pydantic_core
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ..rows import row
from .wire import ACCEPT, CAPABILITIES, CORE, EXTENSION, MODERN, VERSION, Json

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
HEADER_MISMATCH, UNDECLARED = -32020, -32021
HTTP_STATUS = {METHOD_NOT_FOUND: 404}
"""Of 2026-07-28, where an error is a status too: 400 for all others. 2025-11-25 answers requests with 200."""

NEVER_SAID = re.compile(
    r"Traceback|File \"|\.py\b|site-packages|/home/|/usr/|/work|perdure\.|mcp\.s|msgspec|sqlite|Exception\b"
    r"|TaskGroup|object at 0x|<class|NoneType(?!\])|coroutine|RecursionError"
)
Value: TypeAlias = Any
LONGEST_ANSWER = 20.0
"""Seconds: whoever waits longer waits for ever."""

BOTH = pytest.mark.parametrize("version", [MODERN, CORE])


# The server, and what it answers


@dataclass(frozen=True)
class Reply:
    status: int
    message: Json
    frames: tuple[Json, ...]

    @property
    def code(self) -> int | None:
        """None: a result."""
        error = self.message.get("error")
        return None if error is None else error["code"]


class Server:
    """A running server, somebody who storms it, and somebody else whose task it keeps."""

    def __init__(self, url: str, errors: Path) -> None:
        self._errors = errors
        self._said = 0
        self._http = httpx2.Client(timeout=LONGEST_ANSWER)
        self._url = url
        self._ids = itertools.count(1)
        self._sessions: dict[str, str] = {}
        self.target = self.start("hold", who="attacker")
        """A task of the attacker, that waits for an answer to `go`."""
        self.ended = self.start("quick", who="attacker")
        """Another, of which anybody who looks is told at once."""
        self.control = self.start("hold", who="victim")
        self.before = self.get(self.control, who="victim")

    def close(self) -> None:
        self._http.close()

    def start(self, tool: str, *, who: str) -> str:
        reply = self.send(MODERN, "tools/call", {"name": tool, "arguments": {}}, who=who)
        task_id: str = reply.message["result"]["taskId"]
        while self.get(task_id, who=who)["status"] == "working":
            threading.Event().wait(0.02)
        return task_id

    def get(self, task_id: str, *, who: str) -> Json:
        result = self.send(MODERN, "tasks/get", {"taskId": task_id}, who=who).message["result"]
        return {name: value for name, value in result.items() if name != "pollIntervalMs"}

    def send(
        self, version: str, method: str, params: Json, *, who: str = "attacker", **headers: str
    ) -> Reply:
        """A request that is well formed, whatever its parameters are."""
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        if version == MODERN:
            body["params"] = _enveloped(params)
            if method == "tools/call" and isinstance(params["name"], str):
                headers = {"mcp-name": params["name"], **headers}
        raw = encoded(body)
        reply = self.post(version, raw, who=who, method=method, **headers)
        if not is_readable(version, raw):
            assert (reply.status, reply.code) == (400, PARSE_ERROR)
        return reply

    def post(self, version: str, body: bytes, *, who: str = "attacker", method: str, **more: str) -> Reply:
        headers = {"accept": ACCEPT, "content-type": "application/json", "mcp-protocol-version": version}
        headers |= {"authorization": f"Bearer {who}"}
        if version == MODERN:
            headers["mcp-method"] = method
        elif method != "initialize":
            headers["mcp-session-id"] = self._session(who)
        response = self._http.post(self._url, content=body, headers=headers | more)
        reply = _read(response)
        self._check(reply, response.text, body.decode(errors="replace"))
        return reply

    def _session(self, who: str) -> str:
        if who not in self._sessions:
            info = {"name": "storm", "version": "1"}
            params = {"protocolVersion": CORE, "capabilities": {}, "clientInfo": info}
            body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            headers = {"accept": ACCEPT, "authorization": f"Bearer {who}"}
            response = self._http.post(self._url, json=body, headers=headers)
            self._sessions[who] = response.headers["mcp-session-id"]
        return self._sessions[who]

    def _check(self, reply: Reply, text: str, sent: str) -> None:
        """What holds for every answer. What a client said itself may be said to it again."""
        assert reply.status < 500
        leaked = [found for found in NEVER_SAID.finditer(text) if found.group() not in sent]
        assert leaked == [], text[:2000]
        assert self._said_since() == ""

    def _said_since(self) -> str:
        """What the server found worth an error in its log, since one looked last."""
        said = self._errors.read_text()
        since, self._said = said[self._said :], len(said)
        return since


def _enveloped(params: Json) -> Json:
    meta = params.get("_meta", {})
    if not isinstance(meta, dict):
        return params
    envelope: Json = {VERSION: MODERN, CAPABILITIES: {"extensions": {EXTENSION: {}}}}
    return {**params, "_meta": {**envelope, **cast("Json", meta)}}


def _read(response: httpx2.Response) -> Reply:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        lines = response.text.split("\r\n")  # not `splitlines`: to it, some characters of a string end a line
        frames = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
        return Reply(response.status_code, frames[-1], tuple(frames[:-1]))
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return Reply(response.status_code, response.json() if is_json and response.content else {}, ())


def encoded(body: Value) -> bytes:
    """As JSON, with numbers that Python itself would not write."""
    return json.dumps(body).replace('"@1e400"', "1e400").replace('"@huge"', "9" * 5_000).encode()


def is_readable(version: str, body: bytes) -> bool:
    """Whether the SDK's parser of this generation makes anything of it."""
    try:
        json.loads(body) if version == MODERN else pydantic_core.from_json(body)
    except (ValueError, RecursionError):
        return False
    return True


def assert_answers(version: str, reply: Reply, codes: Collection[int | None]) -> None:
    """One of these codes (None: a result), with the status that this generation gives it."""
    if reply.code == PARSE_ERROR:
        return  # checked where it was sent
    assert reply.code in codes, reply
    if version == MODERN and reply.code is not None:
        assert reply.status == HTTP_STATUS.get(reply.code, 400), reply
    else:
        assert reply.status == 200, reply


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """In a process of its own: what it does by chance must not be mistaken for a test's."""
    errors = tmp_path_factory.mktemp("hostile") / "errors.txt"
    command = [sys.executable, "-m", "tests.mcp.authenticated", "attacker", "victim"]
    with (
        errors.open("w") as stderr,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        assert process.stdout is not None
        try:
            running = Server(process.stdout.readline().decode().strip(), errors)
            yield running
            running.close()
        finally:
            process.kill()


# What is sent

anything_readable = st.text(st.characters(exclude_categories=()), max_size=20)
"""Lone surrogates, NUL and all."""

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**400, ["@1e400"], ["@huge"]]),
    st.floats(),
    anything_readable,
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(anything_readable, inner, max_size=4),
    max_leaves=12,
)
"""Any JSON, and what passes for it: NaN, infinities, integers of thousands of digits."""


def other_than(*kinds: type) -> st.SearchStrategy[Value]:
    """Values that are not of these types, and not left out either."""
    return values.filter(lambda value: not isinstance(value, kinds) and value is not None)


ids = st.one_of(
    anything_readable,
    st.sampled_from(["", "/", "..", ":", "a:b", "%00", "\0", "{}", "*", "anonymous::x", "x" * 1_000_000]),
    st.text("0123456789abcdef", min_size=32, max_size=32),
)
METHODS = {
    MODERN: ("tasks/get", "tasks/update", "tasks/cancel"),
    CORE: ("tasks/get", "tasks/result", "tasks/cancel"),
}


def nested(levels: int, kind: str) -> str:
    """JSON text, nested so deep."""
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    return opening * levels + "1" + closing * levels


DEPTHS = pytest.mark.parametrize("levels", [90, 150, 500, 900, 5_000, 100_000])


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


# Answers to what a task asked


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


@given(variables=values.filter(lambda value: value is not None))
def test_variables_are_kept_as_they_are_or_refused(server: Server, variables: Value) -> None:
    meta = {"perdure/variables": variables}
    params: Json = {"taskId": server.target, "inputResponses": {}, "_meta": meta}
    reply = server.send(MODERN, "tasks/update", params)

    assert_answers(MODERN, reply, {None, INVALID_PARAMS} if isinstance(variables, dict) else {INVALID_PARAMS})
    kept = server.get(server.target, who="attacker")["_meta"].get("perdure/variables", {})
    given = {name: value for name, value in fields_of(variables).items() if value is not None}
    assert reply.code is not None or {name: kept[name] for name in given} == given


# Calls


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
    | st.integers(min_value=24 * 3600 * 1000 + 1)
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


# Too deep, too large, and no request at all


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


@row(52)
@BOTH
def test_what_is_too_large_is_refused_with_its_limit(server: Server, version: str) -> None:
    reply = send_call(server, version, arguments={"label": "x" * 3_000_000})

    assert_answers(version, reply, {INVALID_PARAMS})
    assert "at most" in reply.message["error"]["message"]
    assert len(reply.message["error"]["message"]) < 1000


@BOTH
def test_a_body_that_is_too_large_for_the_server_is_not_read(server: Server, version: str) -> None:
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "x" * 5_000_000}}
    )

    assert server.post(version, body.encode(), method="tasks/get").status == 413


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


def test_a_hundred_thousand_ids_to_listen_to_are_answered(server: Server) -> None:
    wanted = [f"{at:032x}" for at in range(60_000)]
    reply = server.send(MODERN, "subscriptions/listen", {"notifications": {"taskIds": wanted}})

    assert_answers(MODERN, reply, {None, INVALID_PARAMS})


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
        "params": _enveloped({"taskId": "x"}),
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


# After it all


def test_after_the_storm_others_tasks_are_as_they_were_and_work_goes_on(server: Server) -> None:
    assert server.get(server.control, who="victim") == server.before

    answer = {"go": {"action": "accept", "content": {"ok": True}}}
    reply = server.send(
        MODERN, "tasks/update", {"taskId": server.control, "inputResponses": answer}, who="victim"
    )
    assert reply.code is None
    while (task := server.get(server.control, who="victim"))["status"] not in ("completed", "failed"):
        threading.Event().wait(0.02)
    assert task["result"]["content"][0]["text"] == "held "
    done = server.start("quick", who="victim")
    assert server.get(done, who="victim")["result"]["content"][0]["text"] == "done "
