"""A client that is told of its tasks hardly asks; where it is not told, or the stream breaks, it asks."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.mcp.client import ClientTask

from ...conditions import wait_until
from ..raw_clients import serving
from ..tool_helpers import text_of
from .tool_server import AnsweringUser, Target, ToolServer, cancelled, visiting

pytestmark = pytest.mark.anyio


async def test_a_client_that_is_told_hardly_asks(shop: ToolServer, target: Target, url: str) -> None:
    async with visiting(url) as asks, visiting(target, push=True) as is_told:
        asked, told = await asks.start("hold"), await is_told.start("hold")
        waiting = [asyncio.create_task(task.wait(90)) for task in (asked, told)]

        def looks(task: ClientTask) -> int:
            return len(shop.watch.of("tasks/get", task.id))

        async def rests() -> bool:
            """Whether the one who is told does not ask while the other asks four times."""
            before, seen = looks(told), looks(asked)
            await wait_until(lambda: looks(asked) >= seen + 4, seconds=60)
            return before == looks(told)

        await wait_until(lambda: looks(told) >= 2)  # it is told at once of what there is
        await wait_until(rests, seconds=60)
        before = looks(told)
        shop.gate.set()
        await asyncio.gather(*waiting)

    assert looks(told) <= before + 2


async def test_a_client_that_is_told_answers_questions_too(shop: ToolServer, target: Target) -> None:
    person = AnsweringUser()
    async with visiting(target, push=True, person=person) as visitor:
        assert text_of(await visitor.client.call_tool("ask_all")) == "Ada, wit, 1"

    assert person.asked == ["Who?", "sampling", "roots"]
    assert len(shop.watch.of("subscriptions/listen")) == 1


async def test_a_client_that_is_told_hears_of_a_question_that_comes_later(
    shop: ToolServer, target: Target
) -> None:
    """It would ask by itself only after half a minute."""
    async with visiting(target, push=True) as visitor:
        waiting = asyncio.create_task((await visitor.start("hold_then_ask")).wait(15))
        await wait_until(lambda: len(shop.watch.of("subscriptions/listen")) == 1)
        await wait_until(lambda: len(shop.watch.of("tasks/get")) > 0)
        shop.gate.set()
        assert text_of(await waiting) == "accept"


async def test_several_tasks_are_heard_of_at_once(shop: ToolServer, target: Target) -> None:
    async with visiting(target, push=True) as visitor:
        started = [await visitor.start("hold", {"label": f"{number}"}) for number in range(5)]
        waiting = [asyncio.create_task(task.wait(30)) for task in started]
        await wait_until(lambda: len(shop.watch.of("subscriptions/listen")) == 5)
        shop.gate.set()
        results = await asyncio.gather(*waiting)

    assert [text_of(result) for result in results] == [f"held {number}" for number in range(5)]


async def test_two_may_wait_for_one_task_at_once(shop: ToolServer, target: Target) -> None:
    async with visiting(target, push=True) as visitor:
        task = await visitor.start("hold", {"label": "it"})
        short = asyncio.create_task(task.wait(0.3))
        long = asyncio.create_task(visitor.resume(task.save()).wait(30))
        with pytest.raises(TimeoutError):
            await short
        shop.gate.set()
        assert text_of(await long) == "held it"


def method_not_found() -> HandlerResult:
    raise MCPError(METHOD_NOT_FOUND, "Method not found")


async def test_a_server_that_tells_nobody_is_asked(shop: ToolServer, target: Target) -> None:
    shop.answers.instead["subscriptions/listen"] = method_not_found
    async with visiting(target, push=True) as visitor:
        waiting = asyncio.create_task((await visitor.start("hold")).wait(20))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) >= 4)
        shop.gate.set()
        assert text_of(await waiting) == "held "


async def test_a_server_that_listens_but_tells_of_no_tasks_is_asked(shop: ToolServer, target: Target) -> None:
    """As one does that leaves listening to the SDK, which knows of no tasks."""
    shop.answers.is_deaf_to_tasks = True
    async with visiting(target, push=True) as visitor:
        waiting = asyncio.create_task((await visitor.start("hold")).wait(20))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) >= 4)
        shop.gate.set()
        assert text_of(await waiting) == "held "


class Cut:
    """An application whose streams of notifications break when a test says so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.breaks = asyncio.Event()
        self.broken = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-method") != b"subscriptions/listen":
            await self._app(scope, receive, send)
            return
        await self._until_it_breaks(scope, receive, send)

    async def _until_it_breaks(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def passing(message: Message) -> None:
            await send(message)

        serving = asyncio.create_task(cast("Any", self._app(scope, receive, passing)))
        await self.breaks.wait()
        serving.cancel()
        await asyncio.wait([serving])
        self.broken += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def test_a_stream_that_breaks_is_made_up_for_by_asking(anyio_backend: str) -> None:
    shop = ToolServer("memory:")
    cut = Cut(shop.server.streamable_http_app())
    async with serving(cut) as url, visiting(url, push=True) as visitor:
        task = await visitor.start("hold")
        waiting = asyncio.create_task(task.wait(25))
        await wait_until(lambda: len(shop.watch.of("subscriptions/listen")) == 1)
        await wait_until(lambda: len(shop.watch.of("tasks/get")) > 0)
        cut.breaks.set()
        await wait_until(lambda: cut.broken == 1)
        before = len(shop.watch.of("tasks/get"))
        await wait_until(lambda: len(shop.watch.of("tasks/get")) >= before + 3)
        shop.gate.set()
        assert text_of(await waiting) == "held "


async def test_a_client_that_leaves_ends_the_stream(shop: ToolServer, url: str) -> None:
    async with visiting(url, push=True) as visitor:
        task = await visitor.start("hold")
        waiting = asyncio.create_task(task.wait())
        await wait_until(lambda: len(shop.watch.of("subscriptions/listen")) > 0)
        await cancelled(waiting)
        (listening,) = shop.watch.of("subscriptions/listen")
        assert listening.params["notifications"] == {"taskIds": [task.id]}
        shop.gate.set()
        assert text_of(await task.wait(20)) == "held "


async def test_at_2025_11_25_a_client_that_would_be_told_asks(shop: ToolServer, url: str) -> None:
    async with visiting(url, "legacy", push=True) as visitor:
        task = await visitor.start("hold")
        shop.gate.set()
        assert text_of(await task.wait(20)) == "held "

    assert shop.watch.of("subscriptions/listen") == []
