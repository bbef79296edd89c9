"""Both generations of the protocol are served, see the same tasks, and have the credentials of the caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from fastmcp.dependencies import CurrentAccessToken, CurrentHeaders, TokenClaim
from fastmcp.server.auth import AccessToken
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.dependencies import get_access_token, get_http_headers

from perdure.fastmcp import TasksExtension
from perdure.tasks import Owner
from perdure.tasks.encryption import new_key

from ..markers import row
from ..mcp.raw_clients import EXTENSION, Client2025, Client2026, Json, serving
from ..mcp.tokens import TokenClient2026
from ..mcp.tool_helpers import FAST_CONFIG, text_of
from .features import feature
from .served import ShiftedClock, done
from .tool_server import ADA, NAMING_ADA, ToolServer, authenticated, opened, result_of

pytestmark = pytest.mark.anyio


@row(121)
@feature(
    "`tasks/get`, `tasks/update`, `tasks/cancel`",
    peer="only in protocol 2026-07-28; error -32021 if the client does not support tasks, -32020 if the "
    "header `Mcp-Name` has another id",
    here="the same, and also in protocol 2025-11-25, with `tasks/list` and `tasks/result`; both versions "
    "show the same tasks",
)
async def test_both_generations_see_one_task(anyio_backend: str) -> None:
    shop = ToolServer(server=authenticated())
    async with (
        opened(shop) as url,
        Client2026(url, token=ADA) as modern,
        Client2025(url, token=ADA) as core,
    ):
        ours, theirs = await modern.start("hold", {"label": "a"}), await core.start("hold", {"label": "b"})
        for task_id in (ours, theirs):
            assert (await core.get(task_id))["status"] == "working"
            assert (await modern.get(task_id))["status"] == "working"
        for method in ("get", "update", "cancel"):
            params: Json = {"taskId": ours, "inputResponses": {}}
            undeclared = await modern.send(f"tasks/{method}", params, declared=False)
            assert (undeclared.code, undeclared.error["data"]) == (
                -32021,
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
            wrong = await modern.send(f"tasks/{method}", params, headers={"mcp-name": theirs})
            assert wrong.code == -32020
        assert (await core.send("tasks/update", {"taskId": ours, "inputResponses": {}})).code == -32601
        assert (await modern.send("tasks/result", {"taskId": ours})).code == -32601
        listed = (await core.send("tasks/list")).result["tasks"]
        assert {task["taskId"] for task in listed} == {ours, theirs}
        shop.gate.set()
        assert text_of(await result_of(core, ours)) == "held a"
        assert text_of((await modern.until(theirs, "completed"))["result"]) == "held b"


@row(121)
async def test_each_generation_updates_and_cancels_the_tasks_of_both(shop: ToolServer) -> None:
    async with opened(shop) as url, Client2026(url) as modern, Client2025(url) as core:
        for asking in (await modern.start("ask_two"), await core.start("ask_two")):
            await modern.until(asking, "input_required")
            answers = {"first": NAMING_ADA, "second": NAMING_ADA}
            assert (await modern.update(asking, answers)).result["resultType"] == "complete"
            assert text_of(await result_of(core, asking)) == "first: Ada, second: Ada"
        mine, other = await modern.start("hold"), await core.start("hold")
        assert (await modern.cancel(other)).result["resultType"] == "complete"
        assert (await core.send("tasks/cancel", {"taskId": mine})).result["status"] == "cancelled"
        assert (await modern.until(mine, "cancelled"))["taskId"] == mine
        assert (await core.until(other, "cancelled"))["taskId"] == other


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


async def injected(token: AccessToken = CurrentAccessToken(), subject: str = TokenClaim("sub")) -> list[str]:
    return [token.token, subject]


async def called() -> str | None:
    token = get_access_token()
    return None if token is None else token.token


async def injected_headers(headers: dict[str, str] = CurrentHeaders()) -> dict[str, str]:
    return headers


async def called_headers() -> dict[str, str]:
    return get_http_headers(include_all=True)


SENT = {"x-request-id": "r1", "x-tenant": "acme", "cookie": "session=secret"}


async def credentials_of(*tools: Callable[..., Any], **options: Any) -> list[Json]:
    """Return the tasks in which a caller with a token calls these tools."""
    shop = ToolServer(server=authenticated(), **options)
    for tool in tools:
        shop.server.tool(tool, task=True)
    async with opened(shop) as url, TokenClient2026(url, ADA, headers=SENT) as ada:
        return [await done(ada, tool.__name__) for tool in tools]


@row(122)
@feature(
    "`get_access_token()`, `CurrentAccessToken()`, `TokenClaim()`",
    peer="the caller's token, unless it has expired",
    here="the same with an encryption key; without a key, an error that asks for one. With "
    "authentication, lookups such as `ctx.read_resource` need a key too",
)
async def test_a_task_has_the_token_of_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    tasks = await credentials_of(injected, called, encryption_keys=[new_key()])
    said = [task["result"]["structuredContent"]["result"] for task in tasks]
    assert said == [[ADA, ADA], ADA]

    advice = "set PERDURE_ENCRYPTION_KEY to a key from `perdure key`"
    (failed,) = await credentials_of(called)
    assert failed["result"]["isError"]
    assert advice in text_of(failed["result"])
    caplog.clear()
    (unresolved,) = await credentials_of(injected)
    assert "Failed to resolve dependency 'token'" in unresolved["error"]["message"]
    assert advice in caplog.text


@row(122)
async def test_a_task_has_no_longer_the_token_that_has_expired(anyio_backend: str) -> None:
    expires_at, clock = int(time.time()) + 600, ShiftedClock()
    person: Json = {"client_id": "some-client", "scopes": [], "sub": ADA, "expires_at": expires_at}
    shop = ToolServer(
        server=FastMCP("fast", auth=StaticTokenVerifier({ADA: person})), encryption_keys=[new_key()]
    )

    @shop.server.tool(task=True)
    async def twice() -> list[object]:
        before = [await called(), sorted(await called_headers())]
        clock.ahead += 600 * 1_000_000
        return [*before, await called(), sorted(await called_headers())]

    with shop.extension.tasks.overridden("memory:", owner=Owner.local(), clock=clock):
        async with opened(shop) as url, TokenClient2026(url, ADA, headers=SENT) as ada:
            task = await done(ada, "twice")
    assert task["result"]["structuredContent"] == {
        "result": [ADA, ["authorization", "x-request-id"], None, ["x-request-id"]]
    }


@row(122)
@feature(
    "`get_http_headers()`, `CurrentHeaders()`",
    peer="all headers of the request",
    here="with an encryption key, the headers that `stored_headers` names",
)
async def test_a_task_has_the_stored_headers_of_its_call(anyio_backend: str) -> None:
    tools, keys = (injected_headers, called_headers), [new_key()]
    default = await credentials_of(*tools, encryption_keys=keys)
    named = await credentials_of(*tools, encryption_keys=keys, stored_headers=["X-Tenant"])
    assert [task["result"]["structuredContent"] for task in default] == [
        {"authorization": f"Bearer {ADA}", "x-request-id": "r1"}
    ] * 2
    assert [task["result"]["structuredContent"] for task in named] == [{"x-tenant": "acme"}] * 2
    without = await credentials_of(*tools)
    assert [task["status"] for task in without] == ["failed", "completed"]
    assert "set PERDURE_ENCRYPTION_KEY" in text_of(without[1]["result"])


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
    here="`perdure worker module:server` does the same; `perdure serve --no-work` serves tasks without "
    "running them",
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
