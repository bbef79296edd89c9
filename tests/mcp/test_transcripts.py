"""The transcripts of docs/trust/protocols.md are what clients of both protocols send and receive.

Three dots stand for any text, and between the braces of an object for any other keys. `_meta` may be left
out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

from perdure import Tasks

from ..doc_pages.pages import DOCS, blocks_of
from .raw_clients import CAPABILITIES, Client2025, Client2026, Json, serving
from .tool_helpers import FAST_CONFIG

pytestmark = pytest.mark.anyio

PAGE = DOCS / "trust" / "protocols.md"
_START = re.compile(r"^(?P<indent> *)(?P<arrow>->|<-) (?:(?P<method>[a-z/]+) )?", re.MULTILINE)
_DOTS = re.compile(r'"(?:[^"\\]|\\.)*"|\[\.\.\.]|\.\.\.')


@dataclass(frozen=True)
class Message:
    """A line of a transcript, and the lines that continue it."""

    is_sent: bool
    method: str | None
    body: Any
    is_nested: bool
    """Whether it was exchanged before the answer to the request above it."""


def transcripts() -> Iterator[list[Message]]:
    for block in blocks_of(PAGE):
        if block.language == "text":
            yield [_message(block.text, found) for found in _START.finditer(block.text)]


def _message(text: str, found: re.Match[str]) -> Message:
    readable = _DOTS.sub(_as_json, text[found.end() :])
    body, _ = json.JSONDecoder().raw_decode(readable)
    return Message(found["arrow"] == "->", found["method"], body, bool(found["indent"]))


def _as_json(found: re.Match[str]) -> str:
    return {"...": '"...": true', "[...]": '["..."]'}.get(found[0], found[0])


@dataclass
class Reader:
    """Compares answers with a transcript, and remembers the ids that it leaves out."""

    known: dict[str, str] = field(default_factory=dict[str, str])

    def compare(self, expected: Any, actual: Any, name: str = "") -> None:
        match expected:
            case dict():
                self._compare_objects(cast("Json", expected), actual)
            case ["..."]:
                assert isinstance(actual, list)
            case str() if "..." in expected:
                self.known[name] = actual
                assert _is_like(expected, actual), (name, expected, actual)
            case _:
                assert expected == actual, name

    def _compare_objects(self, expected: Json, actual: Json) -> None:
        left = {name: each for name, each in actual.items() if name != "_meta" or name in expected}
        for name in expected.keys() - {"..."}:
            (found,) = [each for each in left if _is_like(name, each)] or [None]
            assert found is not None, f"{name} is not among {[*actual]}"
            self.known[name] = found
            self.compare(expected[name], left.pop(found), name)
        assert "..." in expected or not left, f"the page lacks {[*left]}"

    def fill(self, value: Any, name: str = "") -> Any:
        """Return what a client sends: with the ids instead of the dots."""
        if isinstance(value, dict):
            named = {key: each for key, each in cast("Json", value).items() if key != "..."}
            return {
                self.known[key] if "..." in key else key: self.fill(each, key) for key, each in named.items()
            }
        return self.known[name] if value == "..." else value


def _is_like(pattern: str, text: str) -> bool:
    return re.fullmatch(".+".join(map(re.escape, pattern.split("..."))), text) is not None


class Name(BaseModel):
    name: str


def make_server() -> MCPServer[Any]:
    tasks = Tasks("memory:", runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer("reports", log_level="ERROR", **tasks.attach())

    @server.tool()
    @tasks.durable
    async def build_report(year: int, ctx: Context[Any, Any]) -> str:
        answer = await ctx.elicit("Who signs it?", schema=Name)
        assert answer.action == "accept"
        return f"{year}, signed by {answer.data.name}"

    return server


async def test_the_transcript_of_2026_07_28_is_what_is_exchanged() -> None:
    messages, _ = transcripts()
    reader, capabilities = Reader(), messages[0].body["_meta"][CAPABILITIES]
    async with serving(make_server().streamable_http_app()) as url, Client2026(url) as client:
        for request, answer in zip(messages[::2], messages[1::2], strict=True):
            assert (request.is_sent, answer.is_sent) == (True, False)
            params = reader.fill({name: each for name, each in request.body.items() if name != "_meta"})
            if "status" in answer.body and request.method == "tasks/get":
                await client.until(params["taskId"], answer.body["status"])
            received = await client.send(request.method or "", params, capabilities=capabilities)
            reader.compare(answer.body, received.result)
            sent = client.body(request.method or "", params, capabilities)["params"]
            reader.compare(request.body, sent)


async def test_the_transcript_of_2025_11_25_is_what_is_exchanged() -> None:
    _, messages = transcripts()
    call, task, fetch, question, reply, result = messages
    assert [each.is_sent for each in messages] == [True, False, True, False, True, False]
    assert [each.is_nested for each in messages] == [False, False, False, True, True, False]
    reader = Reader()

    async def answer(asked: Json) -> Json:
        assert asked["method"] == question.method
        reader.compare(question.body, asked["params"])
        return reply.body

    server = make_server().streamable_http_app()
    async with serving(server) as url, Client2025(url, answering=answer) as client:
        reader.compare(task.body, (await client.send(call.method or "", call.body)).result)
        received = await client.send(fetch.method or "", reader.fill(fetch.body))
        assert [each["method"] for each in client.asked] == [question.method]
        reader.compare(result.body, received.result)
        assert "signed by Ada" in str(received.result)
