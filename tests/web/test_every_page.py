"""What holds for every page: landmarks have names, columns fit, and an empty page says how to fill it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import httpx2
import pytest
from playwright.async_api import Browser, Page

from perdure.feeds import FeedStore
from perdure.storage import open_storage
from perdure.web import Dashboard

from . import feed_data
from .browser import Keep, fits
from .tool_dashboard import ME, ToolDashboard, path_of, served, visiting

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("drawn_often")]

Scheme: TypeAlias = Literal["light", "dark"]

ACCOUNT = "/feeds/accounts/did:plc:ben.example"
PAGES = ("/", "/tasks", "/workers", "/feeds", "/feeds/items", "/feeds/links", ACCOUNT)
FIRST_TASK = "perdure samples"
FIRST_ACCOUNT = "<code>perdure feeds add HANDLE</code>"
TOKEN = "a token that is long enough"  # noqa: S105 - of a server of this test
NAME = "a server with quite a long name"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """All tests of this file run in one event loop, so that they can share a browser."""
    return "asyncio"


@pytest.fixture
async def paths(desk: ToolDashboard) -> tuple[str, ...]:
    """The addresses of all pages of a dashboard that has tasks of each kind, accounts, items and links."""
    await feed_data.insert_feed_data(FeedStore(desk.storage))
    await desk.submit("build_report")
    asking = await desk.submit("sign_report")
    await desk.until(asking, "input_required")
    printed = await desk.submit("print_report")
    await desk.runtime.wait(ME, printed, 10)
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        tasks = [await path_of(client, each) for each in (asking, printed)]
    return (*PAGES, *tasks, "/nothing")


@asynccontextmanager
async def browsed(dashboard: Dashboard, browser: Browser, width: int) -> AsyncGenerator[Page]:
    async with (
        served(dashboard.app) as address,
        await browser.new_page(base_url=address, viewport={"width": width, "height": 844}) as page,
    ):
        yield page


# Landmarks


async def test_landmarks_of_the_same_kind_have_names_of_their_own(
    desk: ToolDashboard, paths: tuple[str, ...]
) -> None:
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        for path in paths:
            names = _landmarks((await client.get(path)).text)
            assert "Main" in names, path
            assert None not in names, path
            assert len({*names}) == len(names), path
    async with visiting(Dashboard(desk.storage, token=TOKEN)) as client:
        assert _landmarks((await client.get("/login")).text) == []


def _landmarks(page: str) -> list[str | None]:
    found = re.findall(r"<nav[^>]*>|<[^>]*role=\"search\"[^>]*>", page)
    names = [re.search(r'aria-label="([^"]+)"', each) for each in found]
    assert page.count("<main ") == 1
    return [None if each is None else each[1] for each in names]


# Width


@pytest.mark.parametrize("width", [1280, 800, 390])
async def test_no_column_runs_over_its_edge(
    desk: ToolDashboard, paths: tuple[str, ...], browser: Browser, width: int
) -> None:
    async with browsed(Dashboard(desk.storage, feeds=True, name=NAME), browser, width) as page:
        for path in paths:
            await page.goto(path)
            assert await _overflowing(page) == [], path


async def _overflowing(page: Page) -> list[str]:
    """Return the cells whose content is wider than they are, and the page if it is wider than the window."""
    return await page.evaluate(
        """() => [...document.querySelectorAll("td, th"), document.documentElement]
            .filter((each) => each.getClientRects().length && each.scrollWidth > each.clientWidth + 1)
            .map((each) => `${each.tagName} ${each.className} ${each.textContent.trim().slice(0, 40)}`)"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("device", "width"), [("desktop", 1280), ("phone", 390)])
async def test_login_errors_and_empty_pages_fit_their_screen(
    browser: Browser, keep: Keep, scheme: Scheme, device: str, width: int
) -> None:
    async with await open_storage("memory:") as storage:
        dashboard = Dashboard(storage, token=TOKEN, feeds=True, name=NAME, first_task=FIRST_TASK)
        async with browsed(dashboard, browser, width) as page:
            await page.emulate_media(color_scheme=scheme)

            async def look_at(name: str) -> None:
                await fits(page, width)
                await keep(page, f"{name}-{scheme}-{device}")

            await page.goto("/workers")
            await look_at("login")
            for typed, shown, name in (
                ("another", "Wrong token.", "login-refused"),
                (TOKEN, FIRST_TASK, "workers-empty"),
            ):
                await page.get_by_label("Token").fill(typed)
                await page.get_by_role("button", name="Log in").click()
                await page.get_by_text(shown).wait_for()
                await look_at(name)
            for path in ("/", "/tasks", "/feeds", "/feeds/items", "/feeds/links", "/nothing"):
                await page.goto(path)
                await look_at(f"{path.strip('/').replace('/', '-') or 'overview'}-empty")


# Empty pages


@pytest.mark.parametrize("path", ["/", "/tasks", "/workers"])
async def test_a_page_without_tasks_shows_how_to_create_the_first_one(path: str) -> None:
    async with await open_storage("memory:") as storage:
        async with visiting(Dashboard(storage, first_task=FIRST_TASK)) as client:
            shown = await _text(client, path)
            assert shown.count("To create the first task, run this in another terminal:") == 1
            assert FIRST_TASK in shown
        async with visiting(Dashboard(storage)) as client:
            assert "To create the first task" not in await _text(client, path)


async def test_the_workers_page_is_silent_about_the_first_task_when_there_was_one(
    desk: ToolDashboard,
) -> None:
    await desk.runtime.wait(ME, await desk.submit("print_report"), 10)
    async with visiting(Dashboard(desk.storage, first_task=FIRST_TASK)) as client:
        page = await _text(client, "/workers")
    assert "No tasks are claimed at the moment." in page
    assert "To create the first task" not in page


@pytest.mark.parametrize("path", ["/feeds", "/feeds/items", "/feeds/links"])
async def test_a_page_of_feeds_without_accounts_shows_how_to_add_one(path: str) -> None:
    async with (
        await open_storage("memory:") as storage,
        visiting(Dashboard(storage, feeds=True)) as client,
    ):
        assert (await _text(client, path)).count(FIRST_ACCOUNT) == 1


async def test_a_period_without_links_leads_to_a_longer_one(desk: ToolDashboard) -> None:
    await feed_data.insert_account(FeedStore(desk.storage))
    async with visiting(Dashboard(desk.storage, feeds=True)) as client:
        day, month = [await _text(client, f"/feeds/links?since={each}") for each in ("24h", "30d")]
        items = await _text(client, "/feeds/items")
    longest = '<a href="/feeds/links?since=30d">the last 30 days</a>'
    assert "No account shared a link in the last 24 hours." in day
    assert (longest in day, longest in month) == (True, False)
    assert "No items yet. When a poll finds new items, they appear here." in items
    assert FIRST_ACCOUNT not in day + month + items


@pytest.mark.parametrize("path", ["/tasks", "/feeds"])
async def test_a_table_without_rows_is_hidden(
    desk: ToolDashboard, paths: tuple[str, ...], browser: Browser, path: str
) -> None:
    assert path in paths
    async with browsed(Dashboard(desk.storage, feeds=True), browser, 1280) as page:
        await page.goto(path)
        assert await page.locator(".card > table").is_visible()
    async with (
        await open_storage("memory:") as storage,
        browsed(Dashboard(storage, feeds=True), browser, 1280) as page,
    ):
        await page.goto(path)
        assert await page.locator(".card > table").count() == 1
        assert not await page.locator(".card:has(> table)").is_visible()


async def _text(client: httpx2.AsyncClient, path: str) -> str:
    return (await client.get(path)).text
