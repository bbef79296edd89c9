"""A real browser for tests: Playwright's own Chromium, or the system's. Root installs it, others learn how.

`python -m tests.web.browser` installs it, or says where it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

from playwright.async_api import Browser, Locator, Page, Playwright, async_playwright, expect
from playwright.sync_api import sync_playwright

Keep: TypeAlias = Callable[[Page, str], Awaitable[None]]
"""Keeps a picture of a page under a name."""

expect.set_options(timeout=20_000)  # milliseconds; the machine may be busy

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALLS = (
    [sys.executable, "-m", "playwright", "install", "--with-deps", "chromium"],
    ["apt-get", "update"],
    ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"],
)
"""The system's, where the first has no way to the place that it downloads from."""


class NoBrowser(Exception):
    def __init__(self) -> None:
        program = os.path.relpath(Path(sys.executable).with_name("playwright"))
        super().__init__(f"there is no Chromium; run: {program} install --with-deps chromium")


@cache
def executable(own: str) -> str:
    """The program to run. `own` is where Playwright would have put its own."""
    found = _found(own)
    if found is None and os.geteuid() == 0:
        found = _installed(own)
    if found is None:
        raise NoBrowser
    return found


def _found(own: str) -> str | None:
    if Path(own).exists():
        return own
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def _installed(own: str) -> str | None:
    for command in INSTALLS:
        if shutil.which(command[0]) is None:
            continue
        subprocess.run(command, check=False, capture_output=True, timeout=600)
        if (found := _found(own)) is not None:
            return found
    return None


@asynccontextmanager
async def browsing() -> AsyncGenerator[Browser]:
    async with async_playwright() as playwright:
        browser = await _launched(playwright)
        try:
            yield browser
        finally:
            await browser.close()


async def _launched(playwright: Playwright) -> Browser:
    path = executable(playwright.chromium.executable_path)
    # root has no user namespaces for Chromium's sandbox; what is opened is our own page
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    return await playwright.chromium.launch(executable_path=path, args=arguments)


async def open_task(page: Page, name: str) -> None:
    """The page of the one task of this name."""
    await page.goto("/tasks")
    await page.get_by_role("link", name=name).click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(name)
    await is_live(page)


async def is_live(page: Page) -> None:
    await expect(page.locator("#live")).to_have_text("live")


async def colour_of(element: Locator) -> str:
    return await element.evaluate("element => getComputedStyle(element).color")


async def be_seen(page: Page, *, seen: bool) -> None:
    """Let a page come to the front, or go behind others: no browser without a screen does that by itself."""
    await page.evaluate(_SEEN, seen)


_SEEN = """(seen) => {
  const state = { hidden: !seen, visibilityState: seen ? "visible" : "hidden" };
  for (const [name, value] of Object.entries(state)) {
    Object.defineProperty(document, name, { value, configurable: true });
  }
  document.dispatchEvent(new Event("visibilitychange", { bubbles: true }));
}"""


async def fits(page: Page, width: int) -> None:
    """Check that no part of a page is beyond the right edge of its window."""
    await page.wait_for_load_state("domcontentloaded")
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert await page.evaluate(_CELLS_BEYOND, width) == []


_CELLS_BEYOND = """width => [...document.querySelectorAll("th, td")].filter((cell) => {
  const { left, right } = cell.getBoundingClientRect();
  return cell.checkVisibility() && (left < 0 || right > width);
}).map((cell) => cell.textContent)"""
"""Cells that are on the screen only if one moves their table sideways."""


def main() -> None:
    with sync_playwright() as playwright:
        try:
            sys.stdout.write(f"{executable(playwright.chromium.executable_path)}\n")
        except NoBrowser as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
