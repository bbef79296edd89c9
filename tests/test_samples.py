"""The simulated source is the same in every process, and what the sample tools return."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp.client import Client
from mcp_types import CallToolResult

from perdure.feeds import (
    FeedPage,
    FeedSource,
    FeedStore,
    Item,
    Poller,
    PollSettings,
    PollSucceeded,
    normalize_url,
    transitions,
)
from perdure.feeds.errors import AccountUnavailable, CursorRejected
from perdure.feeds.item import ITEMS
from perdure.mcp import Tasks
from perdure.mcp.client import ClientTasks, TaskState
from perdure.samples import SampleFeeds, SimulatedSource, make_server, simulated_feeds
from perdure.samples.source import FIRST_POST_AT, load_sample_data
from perdure.storage import Committed, Micros, open_storage
from perdure.storage.time_types import HOUR, MINUTE

from .markers import row

pytestmark = pytest.mark.anyio

ADA = "did:example:ada"


class Clock:
    def __init__(self, now: Micros) -> None:
        self.now = now

    def __call__(self) -> Micros:
        return self.now


def source_at(now: Micros) -> SimulatedSource:
    return SimulatedSource(clock=Clock(now))


async def page_of(source: SimulatedSource, *, limit: int = 100, cursor: str | None = None) -> FeedPage:
    page = await source.page(ADA, limit=limit, cursor=cursor)
    assert page is not None
    return page


async def everything(source: SimulatedSource, limit: int) -> list[Item]:
    found, cursor = list[Item](), None
    while True:
        page = await page_of(source, limit=limit, cursor=cursor)
        found += page.items
        if page.cursor is None:
            return found
        cursor = page.cursor


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_pages_of_any_size_give_the_whole_feed_newest_first(limit: int) -> None:
    found = await everything(source_at(FIRST_POST_AT + 4 * HOUR), limit)
    assert len(found) == 4 * 60 // 11 + 1
    assert [item.time for item in found] == sorted((item.time for item in found), reverse=True)
    assert len({item.uri for item in found}) == len(found)
    assert found[-1].time == FIRST_POST_AT


async def test_a_post_is_the_same_whenever_it_is_read() -> None:
    early, late = source_at(FIRST_POST_AT + HOUR), source_at(FIRST_POST_AT + 900 * HOUR)
    before, after = await everything(early, 100), await everything(late, 100)
    assert after[-len(before) :] == before


async def test_no_account_has_posts_before_it_was_created() -> None:
    page = await page_of(source_at(FIRST_POST_AT - 1))
    assert (page.items, page.cursor) == ((), None)


async def test_an_unchanged_feed_is_not_sent_again() -> None:
    clock = Clock(FIRST_POST_AT + HOUR)
    source = SimulatedSource(clock=clock)
    etag = (await page_of(source)).etag
    assert await source.page(ADA, limit=10, etag=etag) is None
    clock.now += 11 * MINUTE
    assert await source.page(ADA, limit=10, etag=etag) is not None


async def test_what_it_does_not_have_it_refuses() -> None:
    source = source_at(FIRST_POST_AT + HOUR)
    with pytest.raises(AccountUnavailable):
        await source.page("did:plc:unknown", limit=10)
    with pytest.raises(CursorRejected):
        await source.page(ADA, limit=10, cursor="yesterday")


async def test_people_are_found_by_id_and_by_handle() -> None:
    source = source_at(FIRST_POST_AT + HOUR)
    found = await source.profiles([ADA, "grace.example", "unknown.example"])
    assert {profile.handle for profile in found} == {"ada.example", "grace.example"}
    assert {profile.post_count for profile in found if profile.account_id == ADA} == {6}


def test_what_they_share_is_written_as_links_are_stored() -> None:
    urls = [link.url for link in load_sample_data().links]
    assert [normalize_url(url) for url in urls] == urls


async def test_a_poller_reads_all_of_it_and_nothing_twice() -> None:
    clock = Clock(FIRST_POST_AT + 48 * HOUR)
    source: FeedSource = SimulatedSource(clock=clock)
    async with await open_storage("memory:") as storage:
        store = FeedStore(storage, clock=clock)
        poller = Poller(store, source, PollSettings(posts_per_page=10))
        (ada,) = await source.profiles([ADA])
        await store.add(transitions.new_account(ada, now=clock.now, settings=PollSettings()))
        first = await poller.poll(await store.get(ADA))
        clock.now += 110 * MINUTE
        second = await poller.poll(await store.get(ADA))

    assert isinstance(first, PollSucceeded)
    assert isinstance(second, PollSucceeded)
    assert first.new_items >= 24 * 60 // 11
    assert second.new_items == 10


def test_simulated_feeds_and_those_of_bluesky_do_not_poll_each_others_accounts() -> None:
    simulated, bluesky = simulated_feeds(), SampleFeeds()
    assert (simulated.owns(ADA), bluesky.owns(ADA)) == (True, False)
    assert (simulated.owns("did:plc:alice"), bluesky.owns("did:plc:alice")) == (False, True)


# The tools


async def test_a_task_that_is_done_returns_what_it_did_and_shows_a_full_bar() -> None:
    client_tasks = ClientTasks()
    tasks = Tasks("memory:")
    async with Client(make_server(tasks, simulated_feeds(latency=0)), extensions=[client_tasks]) as client:
        report = await client_tasks.start(client, "build_report", {"year": 2026, "seconds": 0})
        feeds = await client_tasks.start(client, "read_feeds", {})
        results, states = list[CallToolResult](), list[TaskState]()
        for handle in (report, feeds):
            results.append(await handle.wait(60))
            states.append(await handle.status())

    assert "12 pages" in str(results[0].structured_content)
    assert (results[1].structured_content or {})["accounts"] == 8
    assert [state.progress for state in states] == [{"done": each, "total": each} for each in (12, 8)]


async def test_a_suspended_account_is_not_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'feeds.db'}"
    async with await open_storage(url) as storage:
        store = FeedStore(storage)
        (ada,) = await SimulatedSource().profiles([ADA])
        account = transitions.new_account(ada, now=store.clock(), settings=PollSettings())
        await store.add(transitions.suspended(account))
        calls = ClientTasks()
        async with Client(make_server(Tasks(url), simulated_feeds(latency=0)), extensions=[calls]) as client:
            started = await calls.start(client, "read_feeds", {})
            result = await started.wait(60)
            assert (result.structured_content or {})["accounts"] == 7
        assert (await store.get(ADA)).account.poll_count == 0


async def test_an_account_of_a_follow_list_stays_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'feeds.db'}"
    async with await open_storage(url) as storage:
        store = FeedStore(storage)
        (ada,) = await SimulatedSource().profiles([ADA])
        origin = "follows:did:plc:alice"
        await store.add(
            transitions.new_account(ada, now=store.clock(), settings=PollSettings(), origin=origin)
        )
        calls = ClientTasks()
        async with Client(make_server(Tasks(url), simulated_feeds(latency=0)), extensions=[calls]) as client:
            started = await calls.start(client, "read_feeds", {"accounts": ["@ada.example", "alan.example"]})
            result = await started.wait(60)
            assert (result.structured_content or {})["accounts"] == 2
        assert (await store.get(ADA)).account.origins == (origin,)


@row(130)
async def test_one_damaged_item_breaks_no_tool(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'feeds.db'}"
    calls = ClientTasks()
    async with Client(make_server(Tasks(url), simulated_feeds(latency=0)), extensions=[calls]) as client:
        started = await calls.start(client, "read_feeds", {})
        await started.wait(60)
        async with await open_storage(url) as storage:
            now = FeedStore(storage).clock()
            (record,) = await storage.page(ITEMS, limit=1, now=now, descending=True)
            damaged = record.replace_with(body='{"handle": 1}', tag=record.tag)
            assert isinstance(await storage.commit([damaged], now=now), Committed)
        for tool in ("recent_posts", "shared_links"):
            answer = await client.call_tool(tool, {})
            assert not answer.is_error
            assert answer.content
        again = await calls.start(client, "read_feeds", {})
        result = await again.wait(60)
        assert (result.structured_content or {})["accounts"] == 8
