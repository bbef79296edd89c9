"""What a person does in a real browser: watch a task, answer it, cancel one, follow links, see charts.

Screenshots are kept in the folder that `PERDURE_SCREENSHOTS` names, else in that of the test run.
"""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from playwright.async_api import Browser, BrowserContext, Dialog, Page, expect

from perdure.storage.kit.servers.process import free_port
from perdure.web import Dashboard, live

from .. import task_edits
from ..test_examples import Served, sampled
from .browser import Keep, be_seen, fits, is_live, open_task
from .tool_dashboard import ME, PAGES, ToolDashboard, served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("drawn_often")]

Scheme: TypeAlias = Literal["light", "dark"]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """All tests of this file run in one event loop, so that they can share a browser."""
    return "asyncio"


async def test_a_task_is_followed_from_the_list_to_its_page_and_watched_to_its_end(
    desk: ToolDashboard, page: Page, keep: Keep
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
    desk: ToolDashboard, page: Page, keep: Keep
) -> None:
    task_id = await desk.submit("sign_report")
    await desk.until(task_id, "input_required")
    await page.goto("/tasks?status=input_required")
    await page.get_by_role("link", name="sign_report").click()
    form = page.get_by_role("form", name="Who signs <2026>?")
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


async def test_what_is_typed_stays_while_the_page_is_kept_up_to_date(desk: ToolDashboard, page: Page) -> None:
    task_id = await desk.submit("sign_report")
    snapshot = await desk.until(task_id, "input_required")
    await page.goto("/tasks?status=input_required")
    await page.get_by_role("link", name="sign_report").click()
    await expect(page.locator("#live")).to_have_text("live")
    await page.get_by_label("Full name").fill("Ana")
    await task_edits.set_variables(desk.runtime.store, snapshot, {"seen": 1})
    await expect(page.locator("#variables")).to_contain_text('"seen": 1')
    await expect(page.get_by_label("Full name")).to_have_value("Ana")
    await expect(page.get_by_label("Full name")).to_be_focused()


@asynccontextmanager
async def _killed_and_started_again(
    desk: ToolDashboard, browser: Browser, folder: Path
) -> AsyncGenerator[tuple[Page, Callable[[], Awaitable[None]]]]:
    """The page of a task that asks, at a server that can be killed and started again."""
    await desk.until(await desk.submit("sign_report"), "input_required")
    port = free_port()

    def at_work() -> AbstractAsyncContextManager[Served]:
        return sampled(folder, "--url", f"sqlite:///{folder / 'tasks.db'}", port=port)

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(at_work())
        page = await stack.enter_async_context(await browser.new_page(base_url=f"http://127.0.0.1:{port}"))
        await open_task(page, "sign_report")

        async def again() -> None:
            await server.program.end(signal.SIGKILL)
            await expect(page.locator("#live")).to_have_text("reconnecting")
            await stack.enter_async_context(at_work())
            await is_live(page)

        yield page, again


async def test_what_is_typed_and_where_stays_when_the_server_is_killed_and_started_again(
    desk: ToolDashboard, browser: Browser, tmp_path: Path
) -> None:
    async with _killed_and_started_again(desk, browser, tmp_path) as (page, again):
        question, name = page.locator("#questions > *"), page.get_by_label("Full name")
        before = await question.get_attribute("data-digest")
        assert before is not None
        await page.get_by_label("Colour").select_option("teal")
        await page.get_by_label("Copies").fill("3")
        await page.get_by_label("Signed").check()
        await name.fill("Ana Lee")
        await name.evaluate("element => element.setSelectionRange(4, 7, 'backward')")
        await again()
        await expect(question).not_to_have_attribute("data-digest", before)  # another server's form
        await expect(page.get_by_label("Colour")).to_have_value("teal")
        await expect(page.get_by_label("Copies")).to_have_value("3")
        await expect(page.get_by_label("Signed")).to_be_checked()
        await expect(page.get_by_label("Weight")).to_have_value("")
        await expect(name).to_be_focused()
        await page.keyboard.type("Lovelace")  # in the place of what was selected
        await expect(name).to_have_value("Ana Lovelace")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator("#outcome")).to_contain_text('"name": "Ana Lovelace"')


async def test_a_refused_answer_is_mended_and_sent_to_a_server_that_was_killed_and_started_again(
    desk: ToolDashboard, browser: Browser, tmp_path: Path
) -> None:
    async with _killed_and_started_again(desk, browser, tmp_path) as (page, again):
        await page.get_by_label("Full name").fill("  ")
        await page.get_by_label("Colour").select_option("teal")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.get_by_text("Full name is required")).to_be_visible()
        await is_live(page)
        await again()
        await expect(page.get_by_text("Full name is required")).to_be_visible()
        await page.get_by_label("Full name").fill("Ana")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator("#outcome")).to_contain_text('"colour": "teal"')


CONNECTIONS = 6
"""How many a browser has to one server, for all its tabs."""


async def test_only_tabs_that_are_seen_are_live_so_there_may_be_any_number(
    desk: ToolDashboard, tabs: BrowserContext
) -> None:
    pages: list[Page] = []
    for _ in range(CONNECTIONS + 1):
        page = await tabs.new_page()
        await page.goto("/tasks")
        await is_live(page)
        await be_seen(page, seen=False)
        pages.append(page)
    first, last = pages[0], pages[-1]
    await be_seen(last, seen=True)
    row = f"#task-{await desk.submit('build_report')}"
    await expect(last.locator(row)).to_contain_text("page 1")
    await expect(first.locator(row)).to_have_count(0)
    await be_seen(first, seen=True)
    await expect(first.locator(row)).to_contain_text("page 1")
    desk.turn_page()
    await expect(first.locator(row)).to_contain_text("page 2")


async def test_a_page_of_a_task_that_is_gone_says_so_and_asks_no_more(
    desk: ToolDashboard, tabs: BrowserContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = await desk.submit("print_report")
    await desk.runtime.wait(ME, task_id, 10)
    page = await tabs.new_page()
    await page.clock.install()
    await page.goto("/tasks")
    monkeypatch.setattr(live, "MAX_OPEN_PAGES", 0)
    await page.get_by_role("link", name="print_report").click()
    await expect(page.locator("#summary")).to_be_visible()
    await expect(page.locator("#live")).to_have_text("reconnecting")
    assert await desk.runtime.store.delete(ME, task_id)
    monkeypatch.undo()
    await _time_passes(page, lambda: _stands(page, "ended"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await be_seen(page, seen=False)
    await be_seen(page, seen=True)
    await page.clock.run_for(120_000)
    await expect(page.locator("#live")).to_have_text("ended")
    assert asked == []


async def _stands(page: Page, word: str) -> bool:
    return await page.locator("#live").text_content() == word


async def _time_passes(page: Page, until: Callable[[], Awaitable[bool]]) -> None:
    """By the clock of the page, in steps that let it be answered in between."""
    for _ in range(1500):
        if await until():
            return
        await page.clock.run_for(200)
    raise AssertionError("that has not come in five minutes")


async def test_a_page_of_a_browser_that_is_logged_in_no_longer_asks_for_the_token(
    desk: ToolDashboard, browser: Browser
) -> None:
    token = "a token that is hard to guess"  # noqa: S105 - a test value
    async with (
        served(Dashboard(desk.storage, token=token).app) as address,
        await browser.new_page(base_url=address) as page,
    ):
        await page.goto("/workers")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Log in").click()
        await is_live(page)
        await be_seen(page, seen=False)
        await page.context.clear_cookies()
        await be_seen(page, seen=True)
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        await expect(page).to_have_url(re.compile("/login.*workers"))


async def test_a_page_that_is_refused_asks_ever_less_often_and_is_live_when_there_is_room(
    tabs: BrowserContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await tabs.new_page()
    await page.clock.install()
    await page.add_init_script(_NOTES_WHEN_IT_ASKS)
    monkeypatch.setattr(live, "MAX_OPEN_PAGES", 0)
    await page.goto("/tasks")
    await expect(page.locator("#live")).to_have_text("reconnecting")
    await _time_passes(page, lambda: page.evaluate("asked.length > 6"))
    asked, refused = [await page.evaluate(f"{times}.slice(0, 7)") for times in ("asked", "refused")]
    pauses = [(again - last) / 1000 for last, again in zip(refused, asked[1:], strict=False)]
    assert [pause >= least for pause, least in zip(pauses, (3, 6, 12, 24, 30, 30), strict=True)] == [True] * 6
    assert pauses[-1] < 48, pauses  # it does not grow forever
    monkeypatch.undo()
    await _time_passes(page, lambda: _stands(page, "live"))


_NOTES_WHEN_IT_ASKS = """
  window.asked = [];
  window.EventSource = class extends EventSource {
    constructor(path) { super(path); asked.push(Date.now()); }
  };
  const ask = window.fetch;
  window.refused = [];  // the clock runs on while it waits for an answer, which is no pause of its own
  window.fetch = async (...words) => {
    const answer = await ask(...words);
    refused.push(Date.now());
    return answer;
  };
"""


async def test_a_task_is_cancelled_only_if_one_is_sure(desk: ToolDashboard, page: Page, keep: Keep) -> None:
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
    desk: ToolDashboard, page: Page, keep: Keep
) -> None:
    await expect(page.locator("#finished_chart svg")).to_be_visible()
    await expect(page.locator("#finished_chart .column")).to_have_count(0)
    await expect(page.locator("#live")).to_have_text("live")
    await desk.runtime.wait(ME, await desk.submit("print_report"), 10)
    await expect(page.locator("#counts .failed .count")).to_have_text("1")
    await expect(page.locator("#finished_chart .column.failed")).to_have_count(1, timeout=30_000)
    await expect(page.locator("#active_chart .line.working")).to_have_count(1)
    await page.locator("#finished_chart summary").click()
    await expect(page.get_by_role("table", name="Finished tasks per")).to_be_visible()
    await keep(page, "overview")


@pytest.mark.usefixtures("mending")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("device", "width"), [("desktop", 1280), ("phone", 390)])
async def test_every_page_fits_its_screen(
    desk: ToolDashboard, page: Page, keep: Keep, scheme: Scheme, device: str, width: int
) -> None:
    await page.emulate_media(color_scheme=scheme)
    await page.set_viewport_size({"width": width, "height": 844})
    await desk.submit("build_report")
    await desk.until(await desk.submit("sign_report"), "input_required")
    await desk.runtime.wait(ME, await desk.submit("print_report"), 10)
    account = "/feeds/accounts/did:plc:ben.example"
    for path in ("/", "/tasks", "/workers", "/feeds", "/feeds/items", "/feeds/links", account):
        await page.goto(path)
        await fits(page, width)
        await keep(
            page, f"{path.strip('/').replace('/', '-').replace(':', '-') or 'overview'}-{scheme}-{device}"
        )
    for name in ("sign_report", "print_report", "mend_report", "weigh_report"):
        await open_task(page, name)
        await fits(page, width)
        await keep(page, f"{name.replace('_', '-')}-{scheme}-{device}")


async def test_the_keyboard_reaches_the_content_first_and_then_every_row(
    desk: ToolDashboard, page: Page
) -> None:
    task_id = await desk.submit("build_report")
    await page.goto("/tasks")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    link = page.locator(f"#task-{task_id} a")
    for _ in range(20):
        await page.keyboard.press("Tab")
        if await link.evaluate("element => element === document.activeElement"):
            break
    await expect(link).to_be_focused()
    desk.turn_page()  # the row is replaced and keeps the focus
    await expect(page.locator(f"#task-{task_id}")).to_contain_text("page 2")
    await expect(link).to_be_focused()
