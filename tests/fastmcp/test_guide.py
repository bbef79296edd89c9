"""The changes that docs/guides/fastmcp.md shows as differences: both sides are run."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP

from perdure.fastmcp import TaskOptions
from perdure.operating import Operator
from perdure.storage import open_storage

from ..doc_pages.pages import DOCS, blocks_of
from .served import Served, done, modern_of

pytestmark = pytest.mark.anyio

GUIDE = DOCS / "guides" / "fastmcp.md"
EXISTING, PLAIN, IMPORT = [block.text for block in blocks_of(GUIDE) if block.language == "diff"]


def side(difference: str, sign: str) -> str:
    """Return the code before (`-`) or after (`+`) a change."""
    lines = [line[1:] for line in difference.splitlines() if line[:1] in (sign, " ")]
    assert len(lines) < len(difference.splitlines())
    return "\n".join(lines)


def run(code: str, **names: Any) -> dict[str, Any]:
    """Run code as in the program of a reader, and return all names that it has then."""
    exec(compile(code, "guide", "exec"), names)  # noqa: S102 - it is ours
    return names


@asynccontextmanager
async def lifespan(_: object) -> AsyncGenerator[dict[str, Any]]:
    yield {}


async def tasks_in(folder: Path) -> list[str]:
    async with await open_storage(f"sqlite:///{folder / 'tasks.db'}") as storage:
        return sorted(task.name for task in (await Operator(storage).tasks()).tasks)


@pytest.mark.parametrize(("sign", "expected"), [("-", []), ("+", ["build", "print_page"])])
async def test_an_existing_server_and_one_mounted_in_it_get_tasks_by_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: str, expected: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(side(EXISTING, sign), FastMCP=FastMCP, lifespan=lifespan)
    mcp: Served = names["mcp"]
    printing: Served = names["printing"]

    @mcp.tool
    async def build() -> str:
        return "built"

    @printing.tool
    async def page() -> str:
        return "printed"

    async with Client(mcp) as client:
        results = [(await client.call_tool(tool)).data for tool in ("build", "print_page")]
    assert results == ["built", "printed"]
    assert await tasks_in(tmp_path) == expected


COPY = '    """Copy a file."""\n    return len(source)\n'


async def test_a_plain_function_is_refused_as_quoted_and_becomes_a_task_by_the_change(mcp: Served) -> None:
    quoted = re.findall(r"`('copy' [^`]*)`", GUIDE.read_text("utf-8"))
    assert len(quoted) == 1
    with pytest.raises(ValueError, match="sync function") as refused:
        run(f"{side(PLAIN, '-')}\n{COPY}", mcp=FastMCP("all", tasks=True))
    assert " ".join(quoted[0].split()) in str(refused.value)
    run(f"{side(PLAIN, '+')}\n{COPY}", mcp=mcp, TaskOptions=TaskOptions)
    async with modern_of(mcp) as client:
        task = await done(client, "copy", {"source": "four"})
    assert task["result"]["structuredContent"] == {"result": 4}


@pytest.mark.parametrize("sign", ["-", "+"])
async def test_the_import_of_either_extension_works_in_the_same_server(sign: str) -> None:
    extension = run(side(IMPORT, sign))["TasksExtension"]
    mcp: Served = FastMCP("moving")
    mcp.add_extension(extension(url="memory://"))

    @mcp.tool(task=True)
    async def build(year: int) -> str:
        return f"report {year}"

    async with modern_of(mcp) as client:
        task = await done(client, "build", {"year": 2026})
    assert task["result"]["structuredContent"] == {"result": "report 2026"}
