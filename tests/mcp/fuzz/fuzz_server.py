"""A server that is stormed with raw bodies, what is sent to it, and what must be true of every answer.

Its log says nothing but errors. Each case says which codes it takes; what a body is that the SDK's own
parser cannot read, that parser says.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpx2
import pydantic_core
import pytest
from hypothesis import strategies as st

from ..raw_clients import ACCEPT, CAPABILITIES, CORE, EXTENSION, MODERN, VERSION, Json

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
        self._sent: set[str] = set()
        """What clients said of what is never to be said by itself: variables are kept, and told again."""
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
            body["params"] = enveloped(params)
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
            params: Json = {"protocolVersion": CORE, "capabilities": {"elicitation": {}}, "clientInfo": info}
            body: Json = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            headers = {"accept": ACCEPT, "authorization": f"Bearer {who}"}
            response = self._http.post(self._url, json=body, headers=headers)
            self._sessions[who] = response.headers["mcp-session-id"]
        return self._sessions[who]

    def _check(self, reply: Reply, text: str, sent: str) -> None:
        """What holds for every answer. What a client said itself may be said to it again, also later."""
        assert reply.status < 500
        self._sent |= {found.group() for found in NEVER_SAID.finditer(sent)}
        said = {found.group() for found in NEVER_SAID.finditer(text)} - self._sent
        leaked = [each for each in said if each not in sent]
        assert leaked == [], text[:2000]
        assert self._said_since() == ""

    def _said_since(self) -> str:
        """What the server found worth an error in its log, since one looked last."""
        said = self._errors.read_text()
        since, self._said = said[self._said :], len(said)
        return since


def enveloped(params: Json) -> Json:
    meta = params.get("_meta", {})
    if not isinstance(meta, dict):
        return params
    envelope: Json = {
        VERSION: MODERN,
        CAPABILITIES: {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}},
    }
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
