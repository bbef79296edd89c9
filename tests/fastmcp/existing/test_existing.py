"""A server becomes durable by a line and `tasks=True`, or moves from fastmcp-tasks by one import.

Its clients see the same as before.
"""

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
from fastmcp.client.logging import LogMessage
from fastmcp.exceptions import ToolError
from fastmcp_tasks import call_tool_task  # pyright: ignore[reportUnknownVariableType]

from ...markers import row
from ...mcp.raw_clients import Json, serving
from . import after, after_move, before, before_move

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:The .* capability is deprecated")]

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


class Visit:
    """What a client of FastMCP sees of a server."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.seen: list[Any] = []
        self.progress: list[tuple[Any, ...]] = []
        self.logged: list[Any] = []

    async def elicit(self, message: str, *_: object) -> ElicitResult[Json]:
        self.asked.append(message)
        return ElicitResult(action="accept", content={"name": "Ada", "beans": "arabica"})

    async def note_progress(self, *progress: Any) -> None:
        self.progress.append(progress)

    async def note_log(self, message: LogMessage) -> None:
        self.logged.append(message.data)

    async def call_all(self, url: str, calls: list[tuple[str, Json]], **options: Any) -> None:
        handlers: Any = {
            "elicitation_handler": self.elicit,
            "progress_handler": self.note_progress,
            "log_handler": self.note_log,
        }
        async with fastmcp.Client(url, **handlers, **options) as client:
            self.seen.append([tool.model_dump(exclude_none=True) for tool in await client.list_tools()])
            for name, arguments in calls:
                try:
                    result = await client.call_tool(name, arguments)
                except ToolError as error:
                    # fastmcp-tasks names a function of its own in place of the tool
                    self.seen.append(re.sub(r"call\[\w+\]", "call", str(error)))
                else:
                    self.seen += [result.content, result.structured_content, result.data]


async def visit(server: FastMCP[Any], calls: list[tuple[str, Json]], **options: Any) -> Visit:
    made = Visit()
    async with serving(server.http_app(path="/mcp")) as url:
        await made.call_all(url, calls, **options)
    return made


@row(120, 121)
async def test_a_client_sees_the_same_before_and_after_the_change() -> None:
    was = await visit(before.mcp, REPORT_CALLS, auth="ada")
    is_ = await visit(after.mcp, REPORT_CALLS, auth="ada")
    assert (is_.seen, is_.asked) == (was.seen, was.asked)
    assert is_.asked == ["Who signs it?"]
    assert was.progress == [(page, 3, f"page {page}") for page in (1, 2, 3)]
    assert was.logged == [{"msg": "the pages are written", "extra": None}]
    assert is_.progress == is_.logged == []  # at 2026-07-28 a task sends neither


async def test_a_client_of_2025_sees_the_same_and_what_progress_reports() -> None:
    calls = [call for call in REPORT_CALLS if call[0] != "sign_report"]  # FastMCP refuses it at 2025-11-25
    was = await visit(before.mcp, calls, auth="ada", mode="legacy")
    is_ = await visit(after.mcp, calls, auth="ada", mode="legacy")
    assert [tool.pop("execution") for tool in is_.seen[0]] == [{"task_support": "optional"}] * 3
    assert (is_.seen, is_.logged) == (was.seen, was.logged)
    assert is_.progress == [(0, 3, None), *was.progress]
    assert was.progress == [(page, 3, f"page {page}") for page in (1, 2, 3)]


async def test_after_the_change_its_calls_are_tasks() -> None:
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
    was = await visit(before_move.mcp, KITCHEN_CALLS)
    is_ = await visit(after_move.mcp, KITCHEN_CALLS)
    assert vars(is_) == vars(was)
    assert is_.asked == ["Which beans?"]


@pytest.mark.parametrize(
    ("modules", "removed", "added"),
    [
        (
            (before, after),
            [
                'mcp: FastMCP[Any] = FastMCP("reports", auth=StaticTokenVerifier(PEOPLE), lifespan=lifespan)',
                'printing: FastMCP[Any] = FastMCP("printing")',
            ],
            [
                "from perdure.fastmcp import TasksExtension",
                'mcp: FastMCP[Any] = FastMCP("reports", auth=StaticTokenVerifier(PEOPLE), lifespan=lifespan, '
                "tasks=True)",
                'mcp.add_extension(TasksExtension("memory:"))',
                'printing: FastMCP[Any] = FastMCP("printing", tasks=True)',
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
def test_a_line_and_tasks_or_one_import_is_the_difference(
    modules: tuple[ModuleType, ModuleType], removed: list[str], added: list[str]
) -> None:
    was, is_ = (Path(str(module.__file__)).read_text().splitlines()[2:] for module in modules)
    changes = [line for line in difflib.ndiff(was, is_) if line[:2] in ("+ ", "- ") and line[2:].strip()]
    assert [line[2:] for line in changes if line.startswith("- ")] == removed
    assert [line[2:] for line in changes if line.startswith("+ ")] == added
