"""A server that wants a token refuses who has none, or an old one, before it looks at what they sent."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from perdure import Tasks

from ...markers import row
from ..raw_clients import ACCEPT, CORE, EXTENSION, MODERN, Json, serving
from ..tokens import Generation, TokenClient2025, TokenClient2026, about, people
from .helpers import NO_SUCH_TASK, assert_present, assert_refused, both, owners, served

pytestmark = pytest.mark.anyio

MALFORMED: list[Any] = [{"taskId": 5}, {"taskId": None}, {}, [], "x", 5, None, {"_meta": 5}]
METHODS = ("tasks/get", "tasks/update", "tasks/cancel", "tasks/list", "tasks/result", "tools/call")


@row(32)
@pytest.mark.parametrize("version", [MODERN, CORE])
@pytest.mark.parametrize("authorization", [None, "Bearer unknown", "Basic YWxpY2U6eA==", "Bearer"])
async def test_an_unauthenticated_request_is_refused_before_its_body_is_read(
    version: str, authorization: str | None
) -> None:
    headers = {"accept": ACCEPT, "content-type": "application/json", "mcp-protocol-version": version}
    if authorization is not None:
        headers["authorization"] = authorization
    bodies = [b"", b"{", b"[" * 100_000, *map(encoded, itertools.product(METHODS, MALFORMED))]
    async with served(people("alice")) as (url, tasks), httpx2.AsyncClient(timeout=30) as http:
        for body in bodies:
            response = await http.post(url, content=body, headers=headers)
            assert (response.status_code, response.json()["error"]) == (401, "invalid_token"), body

        assert await owners(tasks) == {}


def encoded(request: tuple[str, object]) -> bytes:
    method, params = request
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


@row(31)
@both
async def test_a_token_that_ran_out_is_none_and_its_successor_finds_the_tasks(generation: Generation) -> None:
    tokens = people("alice")
    async with served(tokens) as (url, _), generation(url, "alice") as alice:
        task_id = await alice.start("hold")
        tokens.add("alice", subject="alice", expires_at=int(time.time()) - 1)
        tokens.add("next", subject="alice")

        for method, params in about(alice, task_id).items():
            assert (await alice.post(method, params))[0] == 401
        async with generation(url, "next") as after:
            await assert_present(after, task_id)


@asynccontextmanager
async def without_the_guard() -> AsyncGenerator[tuple[str, Tasks]]:
    """A server that is said to be authenticated, mounted so that nothing stands before it."""
    tasks = Tasks("memory:")

    @tasks.durable()
    async def quick(label: str = "") -> str:
        return f"done {label}"

    async def call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        text = await quick(**params.arguments or {})
        return CallToolResult(content=[TextContent(text=text)])

    server = Server[Any]("bare", on_call_tool=call_tool)
    tasks.install(server, authenticated=True)
    async with serving(server.streamable_http_app()) as url:
        yield url, tasks


@row(30, 32)
@both
async def test_an_unauthenticated_caller_is_refused_before_its_params_where_nothing_stands_before_us(
    generation: Generation,
) -> None:
    async with without_the_guard() as (url, tasks), generation(url) as caller:
        for method in about(caller, NO_SUCH_TASK):
            for params in (
                {"taskId": NO_SUCH_TASK},
                {"taskId": 5},
                {},
                {"taskId": None, "inputResponses": 5},
            ):
                await assert_refused(caller, method, params)
        for field, value in (("arguments", {"a": 5}), ("arguments", 5), ("task", 5), ("requestState", 5)):
            await assert_refused(caller, "tools/call", {"name": "quick", field: value})

        assert await owners(tasks) == {}


@row(32)
async def test_an_unauthenticated_listing_is_refused_before_its_cursor() -> None:
    async with without_the_guard() as (url, _), TokenClient2025(url) as caller:
        for params in ({}, {"cursor": 5}, {"cursor": "x"}):
            await assert_refused(caller, "tasks/list", params)


@row(32)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/result", "tasks/list", "tools/call"])
async def test_an_unauthenticated_caller_is_refused_before_its_metadata(method: str) -> None:
    async with without_the_guard() as (url, _), TokenClient2025(url) as caller:
        for meta in (5, "x", [5], {"progressToken": {"a": 5}}):
            await assert_refused(caller, method, {"name": "quick", "taskId": NO_SUCH_TASK, "_meta": meta})


@row(32)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"])
@pytest.mark.parametrize("capabilities", [{}, {"extensions": {EXTENSION: {}}}])
async def test_an_unauthenticated_caller_is_refused_before_what_it_declares(
    method: str, capabilities: Json
) -> None:
    params: Json = {"taskId": NO_SUCH_TASK, "inputResponses": {}}
    async with without_the_guard() as (url, _), TokenClient2026(url) as caller:
        for wanted in ([NO_SUCH_TASK], 5, [5]):
            sent = {**params, "notifications": {"taskIds": wanted}}
            answer = await caller.send(method, sent, capabilities=capabilities)
            assert answer.code == -32600
