"""The README's first minute: its server runs as it stands, and its picture exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mcp.client import Client

from .doc_pages.pages import blocks_of
from .mcp.tool_helpers import text_of
from .test_examples import sampled, visiting

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MAX_PICTURE_BYTES = 200_000


def pages_in(folder: Path) -> int:
    return len(list(folder.glob("report-2026-*.txt")))


@pytest.mark.parametrize("knows_tasks", [True, False], ids=["tasks", "plain"])
async def test_the_first_snippet_is_a_server_whose_tool_can_be_called(
    tmp_path: Path,
    knows_tasks: bool,  # noqa: FBT001
) -> None:
    first = next(block for block in blocks_of(README) if block.language == "python")
    assert first.title == "reports.py"
    (tmp_path / first.title).write_text(first.text, "utf-8")
    assert "perdure serve reports:server" in README.read_text("utf-8")
    async with sampled(tmp_path, "reports:server") as server:
        if knows_tasks:
            async with visiting(server.url) as (client, _):
                result = await client.call_tool("build_report", {"year": 2026})
        else:
            async with Client(server.url) as client:
                result = await client.call_tool("build_report", {"year": 2026})
    assert text_of(result) == "report-2026: 12 pages"
    assert pages_in(tmp_path) == 12


def test_every_picture_exists_and_is_small() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README.read_text("utf-8"))
    assert pictures == ["docs/images/dashboard.png"]
    for each in pictures:
        assert 0 < (ROOT / each).stat().st_size < MAX_PICTURE_BYTES
