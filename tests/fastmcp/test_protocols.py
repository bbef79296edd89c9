"""Both generations of the protocol are served, see the same tasks, and have the credentials of the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from fastmcp.dependencies import CurrentAccessToken, CurrentHeaders
from fastmcp.server.auth import AccessToken

from perdure.fastmcp import TasksExtension
from perdure.tasks.encryption import new_key

from ..markers import row
from ..mcp.raw_clients import EXTENSION, Client2025, Client2026, serving
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .features import feature
from .served import done
from .tool_server import ADA, ToolServer, authenticated, opened, result_of

pytestmark = pytest.mark.anyio


@row(121)
@feature(
    "`tasks/get`, `tasks/update`, `tasks/cancel`",
    peer="at 2026-07-28; -32021 without the declaration; -32020 if `Mcp-Name` does not agree",
    here="the same; at 2025-11-25 too, with `tasks/list` and `tasks/result`; both see the same tasks",
)
async def test_both_generations_see_one_task(shop: ToolServer) -> None:
    async with opened(shop) as url, Client2026(url) as modern, Client2025(url) as core:
        ours, theirs = await modern.start("hold", {"label": "a"}), await core.start("hold", {"label": "b"})
        for task_id in (ours, theirs):
            assert (await core.get(task_id))["status"] == "working"
            assert (await modern.get(task_id))["status"] == "working"
            undeclared = await modern.send("tasks/get", {"taskId": task_id}, declared=False)
            assert (undeclared.code, undeclared.error["data"]) == (
                -32021,
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        wrong = await modern.send("tasks/get", {"taskId": ours}, headers={"mcp-name": theirs})
        assert wrong.code == -32020
        assert (await core.send("tasks/update", {"taskId": ours, "inputResponses": {}})).code == -32601
        assert (await modern.send("tasks/result", {"taskId": ours})).code == -32601
        shop.gate.set()
        assert text_of(await result_of(core, ours)) == "held a"
        assert text_of((await modern.until(theirs, "completed"))["result"]) == "held b"


@row(121)
async def test_a_client_without_tasks_is_asked_in_rounds_of_its_call(shop: ToolServer) -> None:
    async with opened(shop) as url, Client2026(url) as modern:
        asked = (await modern.call("ask_two", declared=False)).result
        assert set(asked["inputRequests"]) == {"first", "second"}
        named = {"action": "accept", "content": {"name": "Ada"}}
        again = {
            "name": "ask_two",
            "arguments": {},
            "inputResponses": {"first": named, "second": named},
            "requestState": asked["requestState"],
        }
        answer = (await modern.send("tools/call", again, declared=False)).result
        assert await shop.count() == 1
    assert text_of(answer) == "first: Ada, second: Ada"


async def token(token: AccessToken = CurrentAccessToken()) -> str:
    return token.client_id


async def headers(headers: dict[str, str] = CurrentHeaders()) -> list[str]:
    return sorted(headers)


@feature(
    "`get_access_token()`, `CurrentAccessToken()`, `TokenClaim()`",
    peer="the caller's, unless it has expired",
    here="the same, with an encryption key; without one they raise an error that says so",
)
@feature(
    "`get_http_headers()`, `CurrentHeaders()`",
    peer="all headers of the request",
    here="those that `stored_headers` names, with an encryption key",
)
async def test_a_task_has_the_credentials_of_its_caller(anyio_backend: str) -> None:
    for keys in ([new_key()], []):
        shop = ToolServer(server=authenticated(), encryption_keys=keys)
        shop.server.tool(token, task=True)
        shop.server.tool(headers, task=True)
        async with opened(shop) as url, Client2026(url, token=ADA) as ada:
            tasks = [await done(ada, tool) for tool in ("token", "headers")]
        if keys:
            assert text_of(tasks[0]["result"]) == "some-client"
            assert tasks[1]["result"]["structuredContent"] == {"result": ["authorization"]}
        else:
            assert [task["status"] for task in tasks] == ["failed", "failed"]


def kitchen(url: str, cook: str, *, work: bool) -> FastMCP[Any]:
    """A server on this storage, in a process that does or does not run tasks."""
    mcp: FastMCP[Any] = FastMCP("kitchen")
    extension = TasksExtension(url, runtime=FAST_CONFIG)
    extension.tasks.work = work
    mcp.add_extension(extension)

    @mcp.tool(task=True)
    async def brew() -> str:
        return cook

    return mcp


@row(124)
@feature(
    "`python -m fastmcp_tasks.worker_cli worker`",
    peer="runs tasks in another process",
    here="`perdure worker module:server`; `perdure serve --no-work` serves without running them",
)
async def test_a_worker_runs_the_tasks_of_a_server_that_runs_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    front, worker = kitchen(url, "the front", work=False), kitchen(url, "the worker", work=True)
    app = worker.http_app()
    async with (
        serving(front.http_app(path="/mcp")) as endpoint,
        Client2026(endpoint) as client,
        app.router.lifespan_context(app),
    ):
        for _ in range(5):
            assert text_of((await done(client, "brew"))["result"]) == "the worker"
