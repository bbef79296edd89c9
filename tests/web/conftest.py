from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import Browser, BrowserContext, Page

from perdure.feeds import FeedStore
from perdure.runtime import App, Retry, Runtime, Task
from perdure.tasks import Success
from perdure.web import Dashboard, cache, live

from . import feed_data
from .browser import Keep, browsing
from .tool_dashboard import ME, SLOW_HEARTBEAT, ToolDashboard, open_tool_dashboard, served, visiting


@pytest.fixture
async def desk(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[ToolDashboard]:
    async with open_tool_dashboard(tmp_path) as desk:
        yield desk


@pytest.fixture
def drawn_often() -> Generator[None]:
    """Pages are drawn as often as ever, though a look may take long on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "COST_FACTOR", 1)
        patch.setattr(live, "COST_FACTOR", 1)
        yield


@pytest.fixture
async def client(desk: ToolDashboard) -> AsyncGenerator[httpx2.AsyncClient]:
    """Of a dashboard without a token."""
    async with visiting(Dashboard(desk.storage)) as client:
        yield client


# A real browser. The modules that use it have an event loop of their own, so that its tests share it.


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("PERDURE_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.getbasetemp() / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
async def browser(anyio_backend: str) -> AsyncGenerator[Browser]:
    async with browsing() as browser:
        yield browser


@pytest.fixture
def keep(folder: Path) -> Keep:
    """Keep a picture of a page."""

    async def keep(page: Page, name: str) -> None:
        await page.screenshot(path=folder / f"{name}.png", full_page=True)

    return keep


@pytest.fixture
async def page(desk: ToolDashboard, browser: Browser) -> AsyncGenerator[Page]:
    """The overview in a browser that must not complain: no script fails, nothing is refused."""
    await feed_data.insert_feed_data(FeedStore(desk.storage))
    complaints: list[str] = []
    async with (
        served(Dashboard(desk.storage, feeds=True).app) as address,
        await browser.new_page(base_url=address, viewport={"width": 1280, "height": 900}) as page,
    ):
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith(address) else complaints.append(asked.url)
        )
        await page.goto("/")
        yield page
    assert complaints == []


@pytest.fixture
async def tabs(desk: ToolDashboard, browser: Browser) -> AsyncGenerator[BrowserContext]:
    """A browser for several pages, which may complain: what they show goes, or its server does."""
    async with (
        served(Dashboard(desk.storage).app) as address,
        await browser.new_context(base_url=address) as context,
    ):
        yield context


@pytest.fixture
async def mending(desk: ToolDashboard) -> AsyncGenerator[Runtime]:
    """Work that goes well in its second attempt, and work that ends with a result that reports an error."""
    app = App(desk.storage, runtime=SLOW_HEARTBEAT, application="tests")

    @app.function(retries=1, backoff=0.1)
    async def mend_report(year: int, task: Task) -> str:
        if task.attempt == 1:
            raise Retry(f"no glue for <{year}>")
        return "mended"

    @app.function
    async def weigh_report(year: int) -> Success:
        text = f"no scales for <{year}>"
        return Success.of({"content": [{"type": "text", "text": text}], "isError": True}, error=text)

    async with app.open() as runtime:
        for each in (mend_report, weigh_report):
            submitted = await runtime.submit(each.__name__, {"year": 2026}, owner=ME)
            await runtime.wait(ME, submitted.task.task_id, 20)
        yield runtime
