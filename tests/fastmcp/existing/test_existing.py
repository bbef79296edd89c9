"""A server becomes durable by one line, or moves from fastmcp-tasks by one import, and looks the same."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import fastmcp
import pytest
from fastmcp import FastMCP
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from fastmcp.server.extensions import ServerExtension
from fastmcp.utilities.tasks import TASKS_EXTENSION_ID
from fastmcp_tasks import call_tool_task  # pyright: ignore[reportUnknownVariableType]

from ...markers import row
from ...mcp.raw_clients import Json, serving
from . import after, after_move, before, before_move

pytestmark = pytest.mark.anyio

REPORT_CALLS: list[tuple[str, Json]] = [
    ("build_report", {"year": 2026}),
    ("build_report", {"year": "this one"}),
    ("sign_report", {"year": 2026}),
    ("print_on_paper", {"pages": 3}),
    ("print_on_paper", {"pages": 300}),
    ("unknown", {}),
]
KITCHEN_CALLS: list[tuple[str, Json]] = [
    ("brew", {"cups": 2}),
    ("brew", {"cups": 20}),
    ("brew", {"cups": 0}),
    ("brew", {"cups": "many"}),
    ("grind", {}),
    ("cellar_fetch", {"bottle": "port"}),
    ("cellar_fetch", {}),
]


class NoTasks(ServerExtension):
    """Runs tools with `task=True` within the request. Without an extension, FastMCP does not start them."""

    identifier = TASKS_EXTENSION_ID


class Visit:
    """What a client of FastMCP sees of a server."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.seen: list[Any] = []

    async def elicit(self, message: str, *_: object) -> ElicitResult[Json]:
        self.asked.append(message)
        return ElicitResult(action="accept", content={"name": "Ada", "beans": "arabica"})

    async def call_all(self, url: str, calls: list[tuple[str, Json]], **options: Any) -> None:
        async with fastmcp.Client(url, elicitation_handler=self.elicit, **options) as client:
            self.seen.append([tool.model_dump(exclude_none=True) for tool in await client.list_tools()])
            for name, arguments in calls:
                try:
                    result = await client.call_tool(name, arguments)
                except ToolError as error:
                    # fastmcp-tasks names a function of its own in place of the tool
                    self.seen.append(re.sub(r"call\[\w+\]", "call", str(error)))
                else:
                    self.seen += [result.content, result.structured_content, result.data]


async def seen_of(server: FastMCP[Any], calls: list[tuple[str, Json]], **options: Any) -> tuple[Any, Any]:
    visit = Visit()
    async with serving(server.http_app(path="/mcp")) as url:
        await visit.call_all(url, calls, **options)
    return visit.seen, visit.asked


@row(120, 121)
async def test_a_client_sees_the_same_before_and_after_the_one_line() -> None:
    is_ = await seen_of(after.mcp, REPORT_CALLS, auth="ada")
    before.mcp.add_extension(NoTasks())
    was = await seen_of(before.mcp, REPORT_CALLS, auth="ada")
    assert is_ == was
    assert is_[1] == ["Who signs it?"]


async def test_after_the_line_its_calls_are_tasks() -> None:
    async with (
        serving(after.mcp.http_app(path="/mcp")) as url,
        fastmcp.Client(url, auth="ada", elicitation_handler=Visit().elicit) as client,
    ):
        for name, arguments in (REPORT_CALLS[0], REPORT_CALLS[2], REPORT_CALLS[3]):
            task = await call_tool_task(client, name, arguments)
            assert not (await task.result()).is_error
        await task.wait(timeout=20)
        assert (await task.status()).status == "completed"


@row(120, 121)
async def test_a_client_sees_the_same_before_and_after_the_move() -> None:
    was = await seen_of(before_move.mcp, KITCHEN_CALLS)
    is_ = await seen_of(after_move.mcp, KITCHEN_CALLS)
    assert is_ == was
    assert is_[1] == ["Which beans?"]


@pytest.mark.parametrize(
    ("modules", "removed", "added"),
    [
        (
            (before, after),
            [],
            [
                "from perdure.fastmcp import TasksExtension",
                'mcp.add_extension(TasksExtension("memory:"))',
            ],
        ),
        (
            (before_move, after_move),
            ["from fastmcp_tasks import TasksExtension"],
            ["from perdure.fastmcp import TasksExtension"],
        ),
    ],
    ids=["line", "import"],
)
def test_one_line_or_one_import_is_the_difference(
    modules: tuple[ModuleType, ModuleType], removed: list[str], added: list[str]
) -> None:
    was, is_ = (Path(str(module.__file__)).read_text().splitlines()[2:] for module in modules)
    changes = [line for line in difflib.ndiff(was, is_) if line[:2] in ("+ ", "- ") and line[2:].strip()]
    assert [line[2:] for line in changes if line.startswith("- ")] == removed
    assert [line[2:] for line in changes if line.startswith("+ ")] == added
