"""`make pictures`: takes screenshots for the README: the dashboard of the sample server, light and dark."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import anyio
from mcp.client import Client
from playwright.async_api import Page, ViewportSize, expect

from perdure.mcp.client import ClientTasks
from tests.test_examples import Person, sampled, started, visiting
from tests.web.browser import browsing, is_live

IMAGES = Path(__file__).parents[1] / "docs" / "images"
MAX_BYTES = 200_000
SIZE: ViewportSize = {"width": 1120, "height": 585}
SECONDS = 8
"""Duration of the shortest report in seconds."""
QUESTION = "approve_report"

Scheme: TypeAlias = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


async def main() -> None:
    with TemporaryDirectory() as folder:
        async with (
            sampled(Path(folder)) as server,
            browsing() as browser,
            visiting(server.url, Person(name="Ada Lovelace")) as (client, tasks),
        ):
            await _call_tools(client, tasks)
            root = server.url.removesuffix("/mcp")
            page = await browser.new_page(base_url=root, viewport=SIZE)
            await _open_list(page)
            for scheme in SCHEMES:
                await page.emulate_media(color_scheme=scheme)
                await page.screenshot(path=_path(scheme))
    for scheme in SCHEMES:
        name, size = _path(scheme).name, _path(scheme).stat().st_size
        if size > MAX_BYTES:
            sys.exit(f"{name} has {size} bytes; the limit is {MAX_BYTES}")
        sys.stdout.write(f"docs/images/{name}: {size} bytes\n")


def _path(scheme: Scheme) -> Path:
    return IMAGES / f"dashboard-{scheme}.png"


async def _call_tools(client: Client, tasks: ClientTasks) -> None:
    """Create finished, failed and running tasks, and a task that asks a question."""
    await client.call_tool("build_report", {"year": 2024, "seconds": SECONDS})
    await client.call_tool("sign_report", {"year": 2024})
    await client.call_tool("print_report", {"year": 2024})
    await started(client, tasks, "build_report", {"year": 2025, "seconds": 8 * SECONDS})
    await started(client, tasks, QUESTION, {"year": 2025})
    await started(client, tasks, "build_report", {"year": 2026, "seconds": 4 * SECONDS})


async def _open_list(page: Page) -> None:
    """Open the task list, and wait until a report shows progress and the question is open."""
    await page.goto("/tasks")
    await is_live(page)
    rows = page.locator("#rows")
    await expect(rows.locator("tr", has_text=QUESTION)).to_contain_text("input required")
    await expect(rows).to_contain_text("writing page 4 of 12")


if __name__ == "__main__":
    anyio.run(main)
