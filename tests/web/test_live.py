"""An open page is sent only what has changed; many open pages cost what one does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TypedDict

import httpx2
import pytest
from markupsafe import Markup
from starlette.exceptions import HTTPException

from perdure.storage import Space, Storage, Watch
from perdure.storage.errors import StorageUnavailable
from perdure.storage.memory import MemoryEngine
from perdure.tasks import NewTask, Owner, TaskStore
from perdure.tasks.task_snapshot import TASKS
from perdure.web import Dashboard, tasks
from perdure.web import live as live_module
from perdure.web.live import LiveUpdates, PageFragments

from .tool_dashboard import ME, ToolDashboard, csrf_token_in, path_of, served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("drawn_often")]


class LiveUpdate(TypedDict):
    fragments: dict[str, str]
    lists: dict[str, list[str]]


@asynccontextmanager
async def listening(client: httpx2.AsyncClient, path: str) -> AsyncGenerator[AsyncGenerator[LiveUpdate]]:
    async with client.stream("GET", path, timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async with aclosing(_updates(answer)) as updates:
            yield updates


async def _updates(answer: httpx2.Response) -> AsyncGenerator[LiveUpdate]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {") and line != "data: {}":
            yield json.loads(line.removeprefix("data: "))


async def test_an_open_list_is_sent_the_rows_that_changed_and_the_new_ones(desk: ToolDashboard) -> None:
    first, second = await desk.submit("build_report"), await desk.submit("sign_report")
    await desk.until(second, "input_required")
    async with (
        served(Dashboard(desk.storage).app) as address,
        httpx2.AsyncClient(base_url=address) as client,
        listening(client, "/events/tasks") as updates,
    ):
        whole = await anext(updates)
        assert set(whole["fragments"]) == {"tabs", "pagination", f"task-{first}", f"task-{second}"}
        seen: set[str] = set()
        desk.turn_page()
        async for change in updates:
            seen |= set(change["fragments"])
            if "page 2 of" in change["fragments"].get(f"task-{first}", ""):
                break
        assert seen == {f"task-{first}"}
        third = await desk.submit("build_report", 2027)
        change = await anext(change async for change in updates if "rows" in change["lists"])
        assert change["lists"]["rows"] == [f"task-{each}" for each in (third, second, first)]
        assert f"task-{second}" not in change["fragments"]


async def test_forms_that_are_sent_later_are_the_browsers_own(desk: ToolDashboard) -> None:
    task_id = await desk.submit("build_report")
    async with served(Dashboard(desk.storage).app) as address, httpx2.AsyncClient(base_url=address) as client:
        page = await path_of(client, task_id)
        key = csrf_token_in((await client.get(page)).text)
        async with listening(client, f"/events{page}") as updates:
            assert csrf_token_in((await anext(updates))["fragments"]["summary"]) == key


async def test_a_page_of_a_task_that_is_deleted_is_sent_its_end(
    desk: ToolDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FINISHED_REFRESH_SECONDS", 0.0)
    task_id = await desk.submit("print_report")
    await desk.runtime.wait(ME, task_id, 10)
    async with served(Dashboard(desk.storage).app) as address, httpx2.AsyncClient(base_url=address) as client:
        page = await path_of(client, task_id)
        async with client.stream("GET", f"/events{page}", timeout=20) as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if line == "event: update":
                    break
            assert await TaskStore(desk.storage, application="tests").delete(ME, task_id)
            rest = [line async for line in lines]  # it ends by itself
        assert "event: end" in rest
        assert (await client.get(f"/events{page}")).status_code == 404


async def test_a_server_ends_though_pages_are_open(desk: ToolDashboard) -> None:
    async with httpx2.AsyncClient() as client:
        async with served(Dashboard(desk.storage).app) as address:
            stream = client.stream("GET", f"{address}/events/tasks", timeout=20)
            answer = await stream.__aenter__()
            lines = answer.aiter_lines()
            async for line in lines:
                if line == "event: update":
                    break
        rest: list[str] = []
        with suppress(httpx2.RemoteProtocolError):  # how abruptly it ends is the server's own matter
            async for line in lines:
                rest.append(line)  # noqa: PERF401 - what came must be kept
        await stream.__aexit__(None, None, None)
    assert "event: end" not in rest  # the browser would not reconnect


async def test_all_who_look_at_a_page_share_one_look() -> None:
    looks = 0

    async def draw() -> PageFragments:
        nonlocal looks
        looks += 1
        return PageFragments({"count": Markup("{}").format(looks)})

    async def first_three(live: LiveUpdates) -> list[str]:
        async with aclosing(live.changes("page", await live.view("page", draw))) as changes:
            return [str((await anext(changes)).fragments["count"]) for _ in range(3)]

    async with Storage(MemoryEngine()) as storage:
        live = LiveUpdates(storage, [TASKS])
        async with live.running():
            seen = await asyncio.gather(*(first_three(live) for _ in range(20)))
            assert seen == [["1", "2", "3"]] * 20
            before = looks
            await asyncio.sleep(0)
            store = TaskStore(storage, application="tests")
            await store.create(Owner.local(), NewTask(method="tools/call"))
            async with aclosing(live.changes("other", await live.view("other", draw))) as changes:
                await anext(changes)  # a poll took place, and `page` has no subscriber any more
            assert looks == before + 1


async def test_many_who_come_at_once_share_the_first_look_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MIN_POLL_SECONDS", 60.0)  # they may be held up on their way
    looks = 0

    async def draw() -> PageFragments:
        nonlocal looks
        await asyncio.sleep(0.01)
        looks += 1
        return PageFragments({})

    async with Storage(MemoryEngine()) as storage:
        live = LiveUpdates(storage, [TASKS])
        views = await asyncio.gather(*(live.view("page", draw) for _ in range(20)))
    assert (looks, len(set(map(id, views)))) == (1, 1)


async def test_a_page_that_may_no_longer_be_shown_ends() -> None:
    screens = [PageFragments({"a": Markup("1")})]

    async def draw() -> PageFragments:
        if not screens:
            raise HTTPException(404)
        return screens.pop()

    async with Storage(MemoryEngine()) as storage:
        live = LiveUpdates(storage, [TASKS])
        async with live.running(), aclosing(live.changes("page", await live.view("page", draw))) as changes:
            assert [dict(change.fragments) async for change in changes] == [{"a": "1"}]


class Hesitant(MemoryEngine):
    """Cannot be listened to at first."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        self.asked += 1
        if self.asked == 1:
            raise StorageUnavailable("not yet")
        return super().watch(space, partition, key)


async def test_pages_continue_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "IDLE_POLL_SECONDS", 0.1)
    monkeypatch.setattr(live_module, "MIN_POLL_SECONDS", 0.05)
    looks = 0

    async def draw() -> PageFragments:
        nonlocal looks
        looks += 1
        return PageFragments({"count": Markup("{}").format(looks)})

    engine = Hesitant()
    async with Storage(engine) as storage:
        live = LiveUpdates(storage, [TASKS])
        async with live.running(), aclosing(live.changes("page", await live.view("page", draw))) as changes:
            async with asyncio.timeout(20):
                while engine.asked < 2 or looks < 5:
                    await anext(changes)


async def test_only_what_differs_is_a_change() -> None:
    before = PageFragments({"a": Markup("1"), "b": Markup("2")}, {"rows": ("a", "b")})
    after = PageFragments({"a": Markup("1"), "b": Markup("3"), "c": Markup("4")}, {"rows": ("c", "a", "b")})
    assert after.diff(before) == PageFragments(
        {"b": Markup("3"), "c": Markup("4")}, {"rows": ("c", "a", "b")}
    )
    assert after.diff(after) == PageFragments({})
