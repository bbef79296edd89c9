"""What a person does in a real browser: watch a task, answer it, cancel one, follow links, see charts.

Screenshots are kept in the folder that `PERDURE_SCREENSHOTS` names, else in that of the test run.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from playwright.async_api import Dialog, Page, expect

from perdure.feeds import FeedStore
from perdure.web import Dashboard

from . import feeding
from .browser import browsing
from .desk import ME, PAGES, Desk, served

pytestmark = pytest.mark.anyio
expect.set_options(timeout=20_000)  # milliseconds; the machine may be busy

Keep: TypeAlias = Callable[[Page, str], Awaitable[None]]
Scheme: TypeAlias = Literal["light", "dark"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("PERDURE_SCREENSHOTS")
    folder = Path(named) if named else tmp_path_factory.getbasetemp() / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def keep(folder: Path) -> Keep:
    """Keep a picture of a page."""

    async def keep(page: Page, name: str) -> None:
        await page.screenshot(path=folder / f"{name}.png", full_page=True)

    return keep


@pytest.fixture
async def page(desk: Desk) -> AsyncGenerator[Page]:
    """The overview in a browser that must not complain: no script fails, nothing is refused."""
    await feeding.feed(FeedStore(desk.storage))
    complaints: list[str] = []
    async with served(Dashboard(desk.storage, feeds=True).app) as address, browsing() as browser:
        page = await browser.new_page(base_url=address, viewport={"width": 1280, "height": 900})
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith(address) else complaints.append(asked.url)
        )
        await page.goto("/")
        yield page
    assert complaints == []


async def test_a_task_is_followed_from_the_list_to_its_page_and_watched_to_its_end(
    desk: Desk, page: Page, keep: Keep
) -> None:
    await page.get_by_role("link", name="Tasks", exact=True).click()
    await expect(page.locator("#live")).to_have_text("live")
    task_id = await desk.submit("build_report")
    row = page.locator(f"#task-{task_id}")  # it comes without a reload
    await expect(row).to_contain_text("page 1 of <2026>")
    desk.turn_page()
    await expect(row).to_contain_text("page 2 of <2026>")
    await expect(row.get_by_role("progressbar")).to_have_attribute("value", "0.5000")
    await keep(page, "tasks")
    await row.get_by_role("link", name="build_report").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(task_id)
    await expect(page.locator("#live")).to_have_text("live")
    await expect(page.locator("#summary")).to_contain_text("page 2 of <2026>")
    await keep(page, "task-working")
    for _ in range(PAGES - 1):
        desk.turn_page()
    await expect(page.locator("#summary .status")).to_have_text("completed")
    await expect(page.locator("#outcome")).to_contain_text(f"{PAGES} pages")
    await expect(page.get_by_role("status")).to_have_text("The task is completed.")
    await keep(page, "task-completed")


async def test_a_question_appears_and_is_answered_through_its_form(
    desk: Desk, page: Page, keep: Keep
) -> None:
    task_id = await desk.submit("sign_report")
    await desk.until(task_id, "input_required")
    await page.goto("/tasks?status=input_required")
    await page.get_by_role("link", name="sign_report").click()
    form = page.get_by_role("form", name="Whose name goes on <2026>?")
    await form.get_by_label("Full name").fill("Ana")
    await form.get_by_label("Colour").select_option("teal")
    await form.get_by_label("Copies").fill("3")
    await form.get_by_label("Signed").check()
    await keep(page, "question")
    await form.get_by_role("button", name="Answer").click()
    await expect(page.locator("#summary .status")).to_have_text("completed")
    await expect(page.locator("#outcome")).to_contain_text('"copies": 3')
    await expect(page.locator("#outcome")).to_contain_text('"signed": true')
    await expect(form).to_have_count(0)


async def test_what_is_typed_stays_while_the_page_is_kept_up_to_date(desk: Desk, page: Page) -> None:
    task_id = await desk.submit("sign_report")
    snapshot = await desk.until(task_id, "input_required")
    await page.goto("/tasks?status=input_required")
    await page.get_by_role("link", name="sign_report").click()
    await expect(page.locator("#live")).to_have_text("live")
    await page.get_by_label("Full name").fill("Ana")
    await desk.runtime.store.set_variables(snapshot, {"seen": 1})
    await expect(page.locator("#variables")).to_contain_text('"seen": 1')
    await expect(page.get_by_label("Full name")).to_have_value("Ana")
    await expect(page.get_by_label("Full name")).to_be_focused()


async def test_a_task_is_cancelled_only_if_one_is_sure(desk: Desk, page: Page, keep: Keep) -> None:
    task_id = await desk.submit("build_report")
    await page.goto("/tasks")
    await page.locator(f"#task-{task_id}").get_by_role("link").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(task_id)
    await expect(page.locator("#live")).to_have_text("live")  # the script that asks is there
    page.once("dialog", _dismiss)
    await page.get_by_role("button", name="Cancel task").click()
    assert (await desk.runtime.get(ME, task_id)).task.cancel_requested_at is None
    page.once("dialog", _accept)
    await page.get_by_role("button", name="Cancel task").click()
    await expect(page.locator("#summary .status")).to_have_text("cancelled")
    await expect(page.get_by_role("button", name="Cancel task")).to_have_count(0)
    await keep(page, "task-cancelled")


async def _dismiss(dialog: Dialog) -> None:
    await dialog.dismiss()


async def _accept(dialog: Dialog) -> None:
    await dialog.accept()


async def test_the_charts_are_drawn_and_drawn_again_when_something_ends(
    desk: Desk, page: Page, keep: Keep
) -> None:
    await expect(page.locator("#ended svg")).to_be_visible()
    await expect(page.locator("#ended .column")).to_have_count(0)
    await expect(page.locator("#live")).to_have_text("live")
    await desk.runtime.wait(ME, await desk.submit("print_report"), 10)
    await expect(page.locator("#figures .failed .count")).to_have_text("1")
    await expect(page.locator("#ended .column.failed")).to_have_count(1, timeout=15_000)
    await expect(page.locator("#underway .line.working")).to_have_count(1)
    await page.locator("#ended summary").click()
    await expect(page.get_by_role("table", name="Tasks that ended")).to_be_visible()
    await keep(page, "overview")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("device", "width"), [("desktop", 1280), ("phone", 390)])
async def test_every_page_fits_its_screen(
    desk: Desk, page: Page, keep: Keep, scheme: Scheme, device: str, width: int
) -> None:
    await page.emulate_media(color_scheme=scheme)
    await page.set_viewport_size({"width": width, "height": 844})
    await desk.submit("build_report")
    await desk.until(await desk.submit("sign_report"), "input_required")
    await desk.runtime.wait(ME, await desk.submit("print_report"), 10)
    for path in ("/", "/tasks", "/workers", "/feeds", "/feeds/items", "/feeds/links"):
        await page.goto(path)
        await _fits(page, width)
        await keep(page, f"{path.strip('/').replace('/', '-') or 'overview'}-{scheme}-{device}")
    for name in ("sign_report", "print_report"):
        await page.goto("/tasks")
        await page.get_by_role("link", name=name).click()
        await _fits(page, width)
        await keep(page, f"{name.replace('_', '-')}-{scheme}-{device}")


async def _fits(page: Page, width: int) -> None:
    await page.wait_for_load_state("domcontentloaded")
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_the_keyboard_reaches_the_content_first_and_then_every_row(desk: Desk, page: Page) -> None:
    task_id = await desk.submit("build_report")
    await page.goto("/tasks")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    link = page.locator(f"#task-{task_id} a")
    for _ in range(20):
        await page.keyboard.press("Tab")
        if await link.evaluate("element => element === document.activeElement"):
            break
    await expect(link).to_be_focused()
    desk.turn_page()  # the row is replaced, and who stood on it stands on it still
    await expect(page.locator(f"#task-{task_id}")).to_contain_text("page 2")
    await expect(link).to_be_focused()
