"""Servers that share a storage keep their tasks apart, under the name of the server or one that is pinned."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.client import Client
from mcp.server import MCPServer
from mcp.server.lowlevel import Server

from perdure import Tasks
from perdure.tasks.errors import InvalidValue

from ...markers import row
from ..raw_clients import Client2025, Client2026, serving
from ..tool_helpers import FAST_CONFIG
from .servers import low_level

pytestmark = pytest.mark.anyio

NO_NAME = "application: the server has no name"


def exporting(name: str | None, url: str, result: str, **options: Any) -> MCPServer[Any]:
    """A server with a tool that every such server has."""
    tasks = Tasks(url, runtime=FAST_CONFIG, **options)
    server: MCPServer[Any] = MCPServer(name, log_level="ERROR", **tasks.attach())

    @server.tool()
    @tasks.durable
    async def export() -> str:
        return result

    return server


async def application_of(server: MCPServer[Any] | Server[Any], tasks: Tasks) -> str:
    async with Client(server):
        return tasks.runtime.store.application


async def refusal_of(server: MCPServer[Any] | Server[Any]) -> str:
    with pytest.raises(InvalidValue) as caught:
        async with Client(server):
            pass
    return str(caught.value)


@row(113)
async def test_two_servers_on_one_storage_never_see_or_run_each_others_tasks(url: str) -> None:
    shop, other = exporting("shop", url, "of the shop"), exporting("other", url, "of the other")
    async with (
        serving(shop.streamable_http_app()) as shop_url,
        serving(other.streamable_http_app()) as other_url,
        Client2026(shop_url) as modern,
        Client2026(other_url) as foreign,
        Client2025(other_url) as core,
    ):
        task_id = await modern.start("export", {})
        done = await modern.until(task_id, "completed")
        assert done["result"]["structuredContent"]["result"] == "of the shop"
        for answer in (
            await foreign.send("tasks/get", {"taskId": task_id}),
            await foreign.send("tasks/cancel", {"taskId": task_id}),
            await core.send("tasks/get", {"taskId": task_id}),
            await core.send("tasks/result", {"taskId": task_id}),
        ):
            assert (answer.code, answer.error["message"]) == (-32602, "Task not found")


async def test_the_application_is_the_name_of_the_server_unless_it_is_pinned(url: str) -> None:
    for pinned, expected in ((None, "host"), ("shop", "shop")):
        tasks = Tasks(url, application=pinned, runtime=FAST_CONFIG)
        server: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach())
        assert await application_of(server, tasks) == expected
    tasks = Tasks(url, runtime=FAST_CONFIG)
    assert await application_of(low_level(tasks), tasks) == "low"


async def test_a_server_without_a_name_must_pin_its_application(url: str) -> None:
    """The SDK calls each of them mcp-server, so two of them would be one application."""
    for name in (None, "", "mcp-server"):
        refused = await refusal_of(exporting(name, url, ""))
        assert refused.startswith(NO_NAME)
        assert "Tasks(application=...)" in refused
    tasks = Tasks(url, application="shop", runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer(log_level="ERROR", **tasks.attach())
    assert await application_of(server, tasks) == "shop"


async def test_a_server_without_a_name_starts_on_a_storage_that_no_other_can_open() -> None:
    tasks = Tasks("memory:", runtime=FAST_CONFIG)
    server: MCPServer[Any] = MCPServer(log_level="ERROR", **tasks.attach())
    assert await application_of(server, tasks) == "server"


async def test_a_low_level_server_with_an_empty_name_must_pin_its_application(url: str) -> None:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    server: Server[Any] = Server("")
    tasks.install(server)
    assert (await refusal_of(server)).startswith(NO_NAME)


@pytest.mark.parametrize("name", ["x" * 101, "two\nlines"])
async def test_a_name_that_cannot_be_an_application_is_refused_with_what_to_do(url: str, name: str) -> None:
    refused = await refusal_of(exporting(name, url, ""))
    assert refused.startswith("application: the name of the server cannot be used (")
    assert refused.endswith("; set Tasks(application=...)")


def test_an_invalid_application_is_refused_when_it_is_set() -> None:
    with pytest.raises(InvalidValue, match="application"):
        Tasks("memory:", application="")
