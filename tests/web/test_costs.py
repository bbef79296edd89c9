"""What looking costs: as much as the page shows, and no more for who asks in an unkind way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from html import unescape

import httpx2
import pytest

from perdure.feeds import FeedStore
from perdure.operating import Operator, TaskDetail
from perdure.storage import Micros, PageRequest, Record, Space, Storage
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import HOUR
from perdure.tasks import NewTask, Owner, TaskStore
from perdure.tasks.task_snapshot import TASKS
from perdure.web import Dashboard, cache, feeds, live, tasks
from perdure.web.cache import CachedQuery
from perdure.web.live import PageFragments
from perdure.web.tasks import CachedTaskPage

from .. import task_edits
from ..feeds.shared_links import item_at
from . import feed_data
from .tool_dashboard import ME, ToolDashboard, visiting

pytestmark = pytest.mark.anyio


class Counting(MemoryEngine):
    """Remembers what it was asked to read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        self.read.append(f"page of {request.limit}")
        return await super().page(request, now=now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[str, int]:
        self.read.append("counts")
        return await super().counts(space, partition, now=now)


@pytest.mark.parametrize("path", ["/tasks", "/tasks?status=working"])
async def test_a_page_of_many_tasks_reads_one_page_and_the_counts(path: str) -> None:
    engine = Counting()
    async with Storage(engine) as storage:
        store = TaskStore(storage, application="tests")
        for _ in range(90):
            await store.create(Owner.local(), NewTask(method="tools/call"))
        dashboard = Dashboard(storage)
        async with visiting(dashboard) as client:
            await client.get(path)  # makes the keys of cursors and handles
            engine.read.clear()
            assert (await client.get(path)).status_code == 200
    assert sorted(engine.read) == ["counts", "page of 51"]


async def test_links_of_hours_that_are_not_summarised_yet_are_missing_and_the_page_says_so(
    desk: ToolDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two old hours, of which a bounded page reads one at a time."""
    store = FeedStore(desk.storage)
    for days in (2, 3):
        time = store.clock() - days * 24 * HOUR
        await store.add_items("did:plc:anna", [item_at("did:plc:anna", time, f"https://{days}.example")])
    monkeypatch.setattr(feeds, "MAX_RANKED_ITEMS", 1)
    monkeypatch.setattr(cache, "MIN_AGE_SECONDS", 0)
    monkeypatch.setattr(cache, "COST_FACTOR", 0)
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        seen: list[tuple[bool, bool]] = []
        while not seen or seen[-1][0]:
            page = (await client.get("/feeds/links?since=7d")).text
            seen.append(("Incomplete: " in page, "https://3.example" in page))
        assert seen[0] == (True, False)
        assert seen[-1] == (False, True)


async def test_items_are_paged_and_filtered_without_missing_or_repeating(
    desk: ToolDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "ITEMS_PER_PAGE", 2)
    await feed_data.insert_feed_data(FeedStore(desk.storage))
    names = ("anna", "ben", "cleo")
    every = [f"Thought {number} of {name}" for number in range(4) for name in names]
    account = "/feeds/accounts/did%3Aplc%3Aben.example"
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        for path, request in (
            ("/feeds/items", every),
            ("/feeds/items?account=ben.example", [each for each in every if "ben" in each]),
            ("/feeds/items?account=did:plc:ben.example", [each for each in every if "ben" in each]),
            (account, [each for each in every if "ben" in each]),
            ("/feeds/items?kind=repost", [each for each in every if "Thought 2" in each]),
            ("/feeds/items?links=1", [each for each in every if "Thought 0" in each or "Thought 1" in each]),
            ("/feeds/items?links=1&kind=repost&account=cleo.example", []),
        ):
            assert sorted(await thoughts(client, path)) == sorted(request), path


async def test_a_filter_that_matches_few_items_reads_a_bounded_number_of_them(
    desk: ToolDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_SCANNED", 1)
    await feed_data.insert_feed_data(FeedStore(desk.storage))
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        assert len(await thoughts(client, "/feeds/items?links=1")) == 6
        last = await client.get("/feeds/items?links=1&after=0 did:plc:anna.example x")
        assert "No more items." in last.text


@pytest.mark.parametrize(
    "query", ["account=unknown.example", "kind=video", "after=x", "after=1 x", "after=9e9 x y", "account=%00"]
)
async def test_a_filter_that_cannot_be_is_not_found(desk: ToolDashboard, query: str) -> None:
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        assert (await client.get(f"/feeds/items?{query}")).status_code == 404


async def thoughts(client: httpx2.AsyncClient, path: str) -> list[str]:
    """What the pages from this one on show."""
    seen: list[str] = []
    while path:
        page = (await client.get(path)).text
        seen += re.findall(r"(Thought \d of \w+)", page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        path = unescape(following[1]) if following else ""
    return seen


async def test_an_id_is_looked_for_among_the_newest_tasks_alone(
    desk: ToolDashboard, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MAX_SCANNED", 3)
    old, newer, _ = [await desk.submit("build_report") for _ in range(3)]
    assert (await client.get(f"/tasks/find?id={old[:8]}")).status_code == 303
    await desk.submit("build_report")
    assert (await client.get(f"/tasks/find?id={newer[:8]}")).status_code == 303
    missed = await client.get(f"/tasks/find?id={old[:8]}")
    assert (missed.status_code, "None of the newest 3 tasks has an id" in missed.text) == (404, True)


async def test_accounts_are_paged_without_missing_or_repeating(
    desk: ToolDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "ACCOUNTS_PER_PAGE", 2)
    await feed_data.insert_feed_data(FeedStore(desk.storage))
    seen: list[str] = []
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        path = "/feeds"
        while path:
            page = (await client.get(path)).text
            seen += re.findall(r'href="/feeds/accounts/[^"]+">([^<]+)<', page)
            following = re.search(r'rel="next" href="([^"]+)"', page)
            path = following[1] if following else ""
        assert (await client.get("/feeds?after=did:plc:unknown")).status_code == 404
        assert (await client.get("/events/feeds?after=did:plc:unknown")).status_code == 404
    assert seen == ["anna.example", "ben.example", "cleo.example"]


class Looking:
    """Looks that take so long, by a clock of their own."""

    def __init__(self, takes: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self._takes = takes
        self._looks = 0
        monkeypatch.setattr(cache.time, "monotonic", lambda: self.now)
        self.kept = CachedQuery(self._look)

    async def _look(self) -> int:
        self._looks += 1
        self.now += self._takes
        await asyncio.sleep(0)
        return self._looks

    async def value(self, *, after: float, is_old: bool = False) -> int:
        self.now += after
        return await self.kept.get(is_stale=lambda _: is_old)


async def test_what_takes_a_look_to_know_is_asked_once_for_all_and_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looking = Looking(0.1, monkeypatch)
    assert await asyncio.gather(*(looking.value(after=0) for _ in range(5))) == [1] * 5
    assert await looking.value(after=cache.MIN_AGE_SECONDS - 1) == 1
    assert await looking.value(after=1) == 2
    assert await looking.value(after=0.1 * cache.COST_FACTOR + 0.01, is_old=True) == 3


async def test_a_look_that_took_long_is_kept_for_long_though_it_be_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looking = Looking(3, monkeypatch)
    assert await looking.value(after=0) == 1
    assert await looking.value(after=cache.COST_FACTOR * 3 - 1, is_old=True) == 1
    assert await looking.value(after=1) == 2


def test_pages_that_take_long_to_draw_are_drawn_more_seldom() -> None:
    assert live.pause_after(0.001) == live.MIN_POLL_SECONDS
    assert live.pause_after(0.1) == pytest.approx(0.1 * cache.COST_FACTOR)
    assert live.pause_after(60) == live.MAX_POLL_SECONDS


async def test_no_more_pages_are_kept_up_to_date_than_there_is_room_for_though_all_come_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "MAX_OPEN_PAGES", 3)

    async def draw() -> PageFragments:
        await asyncio.sleep(0.01)
        return PageFragments({})

    async with Storage(MemoryEngine()) as storage:
        pages = live.LiveUpdates(storage, [TASKS])
        async with pages.running():
            let_in: list[bool] = []

            async def come(number: int) -> None:
                let_in.append(pages.has_capacity)
                if let_in[-1]:
                    await pages.view(f"page {number}", draw)

            await asyncio.gather(*(come(number) for number in range(10)))
    assert let_in.count(True) == 3


async def test_a_page_that_cannot_be_drawn_is_not_kept_up_to_date(client: httpx2.AsyncClient) -> None:
    for path in ("/events/tasks?after=made-up", f"/events/tasks/made-up/{'0' * 32}"):
        assert (await client.get(path)).status_code == 404


async def test_a_task_that_did_not_change_is_not_drawn_again_and_one_that_ended_not_even_read(
    desk: ToolDashboard,
) -> None:
    store, operator = TaskStore(desk.storage, application="tests"), Operator(desk.storage)
    made = await store.create(ME, NewTask(method="tools/call"))
    (row,) = (await operator.tasks()).tasks
    looks: list[TaskDetail] = []
    draws: list[TaskDetail] = []

    async def look() -> TaskDetail:
        looks.append(await operator.get(row.locator, row.task_id))
        return looks[-1]

    def draw(detail: TaskDetail) -> PageFragments:
        draws.append(detail)
        return PageFragments({})

    shown = CachedTaskPage(look, draw)
    assert await shown.get() is await shown.get()
    assert (len(looks), len(draws)) == (2, 1)
    await task_edits.cancel(store, made)
    for _ in range(5):
        await shown.get()
    assert (len(looks), len(draws)) == (3, 2)


async def test_another_site_may_link_here_and_not_make_a_browser_ask_in_secret(
    client: httpx2.AsyncClient,
) -> None:
    for site in ("cross-site", "same-site"):
        linked = {"sec-fetch-site": site, "sec-fetch-dest": "document", "sec-fetch-mode": "navigate"}
        assert (await client.get("/tasks", headers=linked)).status_code == 200
        for dest in ("image", "empty", "iframe", "script"):
            hidden = {"sec-fetch-site": site, "sec-fetch-dest": dest}
            assert (await client.get("/tasks/find?id=abcdef", headers=hidden)).status_code == 403
