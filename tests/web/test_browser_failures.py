"""Failures in a real browser: they are counted, listed and coloured as failures, and say why."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from .browser import Keep, colour_of, open_task
from .tool_dashboard import ME, ToolDashboard

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("drawn_often", "mending")]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """All tests of this file run in one event loop, so that they can share a browser."""
    return "asyncio"


async def test_the_failure_of_an_earlier_attempt_is_no_alarm_once_the_task_completed(
    desk: ToolDashboard, page: Page
) -> None:
    await open_task(page, "mend_report")
    note = page.locator("#summary").get_by_text("no glue for <2026>")
    await expect(note).to_contain_text("An earlier attempt failed:")
    await expect(page.locator("#summary .status")).to_have_text("completed")
    assert await colour_of(note) != await _colour_of_failing(desk, page)


async def test_the_timeline_shows_each_attempt_and_why_it_was_released(page: Page) -> None:
    await open_task(page, "mend_report")
    events = [await each.inner_text() for each in await page.locator(".timeline .what").all()]
    worker = await page.locator("#summary dd code").first.inner_text()
    assert [each.strip().lower() for each in events] == [
        "created",
        f"started by {worker}",
        "released no glue for <2026>",
        f"started by {worker}",
        "finished completed",
        "expires",
    ]


async def test_a_task_whose_result_reports_an_error_is_a_failure_on_every_page(
    desk: ToolDashboard, page: Page, keep: Keep
) -> None:
    await expect(page.locator("#counts .failed .count")).to_have_text("1")
    await expect(page.locator("#counts .completed .count")).to_have_text("1")
    await expect(page.locator("#finished_chart .column.failed")).to_have_count(1, timeout=30_000)
    await keep(page, "overview-with-a-failure")
    await page.locator("#counts .failed a").click()
    await expect(page.locator("#tabs [aria-current]")).to_have_text("failed 1")
    row = page.locator("#rows tr")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("weigh_report")
    await expect(row.locator(".message")).to_have_text("no scales for <2026>")
    status = row.locator(".status")
    await expect(status).to_have_text("failed")
    listed = await colour_of(status)
    await page.goto("/tasks?status=completed")
    await expect(page.get_by_role("row", name="weigh_report")).to_have_count(0)
    await open_task(page, "weigh_report")
    state = page.locator("#summary .state")
    await expect(state).to_have_text("failed")
    await expect(page.get_by_role("heading", name="Result (error)")).to_be_visible()
    await expect(page.get_by_text("no scales for <2026>")).to_have_count(1)
    await expect(page.locator(".timeline .finished")).to_contain_text("failed")
    assert listed == await colour_of(state.locator(".status")) == await _colour_of_failing(desk, page)


async def _colour_of_failing(desk: ToolDashboard, page: Page) -> str:
    await desk.runtime.wait(ME, await desk.submit("print_report"), 10)
    await open_task(page, "print_report")
    return await colour_of(page.locator("#summary .status"))
