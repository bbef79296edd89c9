"""A tool that fails: both generations say why, operators see a failure, and the log names the task."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest
from fastmcp import FastMCP
from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from perdure import Task, Tasks
from perdure.fastmcp import TasksExtension
from perdure.operating import Operator
from perdure.tasks import Status

from ...markers import row
from ..raw_clients import Client2026, serving
from .tool_server import FAST_CONFIG, ToolServer

pytestmark = pytest.mark.anyio


async def reports_then_fails(task: Task) -> str:
    await task.report_progress(3, 12, "page 3 of 12")
    raise ToolError("disk is full\nand so is the other one")


async def raises() -> str:
    raise ValueError("secret\nof two lines")


async def returns_an_error() -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text="\n  out of paper \n"), TextContent(text="b")], is_error=True
    )


async def says_nothing() -> CallToolResult:
    return CallToolResult(content=[TextContent(text=" ")], is_error=True)


async def breaks() -> str:
    raise MCPError(-32099, "the printer is gone")


REASONS: dict[Callable[..., Awaitable[object]], tuple[str, ...]] = {
    reports_then_fails: ("Error executing tool reports_then_fails: disk is full",) * 2,
    raises: ("Error executing tool raises", "ValueError: secret"),
    returns_an_error: ("out of paper",) * 2,
    says_nothing: ("the tool reported an error",) * 2,
    breaks: ("the printer is gone",) * 2,
}
"""What clients see of the error of each tool, and what operators see."""


@row(19)
@pytest.mark.parametrize("function", REASONS, ids=lambda function: function.__name__)
async def test_a_failure_says_why_in_both_generations_and_is_a_failure_to_operators(
    bench: ToolServer, function: Callable[..., Any]
) -> None:
    bench.tool()(function)
    to_clients, to_operators = REASONS[function]
    async with bench.running():
        modern = await bench.ended(function.__name__)
        core = (await bench.core.send("tasks/get", {"taskId": modern["taskId"]})).result
        operator = Operator(bench.tasks.runtime.store.storage)
        counts = await operator.counts()
        (failed,) = (await operator.tasks(statuses=[Status.FAILED])).tasks
        completed = (await operator.tasks(statuses=[Status.COMPLETED])).tasks

    assert modern["status"] == ("failed" if function is breaks else "completed")
    assert core["status"] == "failed"
    assert modern["statusMessage"] == core["statusMessage"] == to_clients
    assert "secret" not in f"{modern}{core}"
    assert {status: count for status, count in counts.items() if count} == {Status.FAILED: 1}
    assert (failed.task_id, failed.status, failed.display_status) == (
        modern["taskId"],
        Status.FAILED,
        "failed",
    )
    assert (failed.message, failed.has_error) == (to_operators, function is not breaks)
    assert completed == ()


async def test_a_task_that_completed_has_no_message_of_its_work_and_keeps_its_progress(
    bench: ToolServer,
) -> None:
    @bench.tool()
    async def work(task: Task) -> str:
        await task.report_progress(0, 0.3, message="computing x")
        return "done"

    async with bench.running():
        modern = await bench.ended("work")
        core = await bench.core.get(modern["taskId"])
    for ended in (modern, core):
        assert (ended["status"], ended.get("statusMessage")) == ("completed", None)
        assert ended["_meta"]["perdure/progress"] == {"done": 0, "total": 0.3}


# The log


class Log(logging.Handler):
    """Everything that is logged of a tool."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def failures(self) -> list[logging.LogRecord]:
        return [each for each in self.records if each.levelno >= logging.WARNING]

    def lines_of(self, task_id: str) -> list[str]:
        """What is logged from INFO on and names the task."""
        lines = [each.getMessage() for each in self.records if each.levelno >= logging.INFO]
        return [line.removeprefix(f"task {task_id}: ") for line in lines if task_id in line]


@pytest.fixture
def log() -> Generator[Log]:
    log = Log()
    loggers = [logging.getLogger(name) for name in ("perdure", "mcp", "fastmcp")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.addHandler(log)
        each.setLevel(logging.INFO)
    yield log
    for each, level in zip(loggers, levels, strict=True):
        each.removeHandler(log)
        each.setLevel(level)


def of_the_sdk() -> Any:
    tasks = Tasks("memory:", runtime=FAST_CONFIG)
    server = MCPServer("sdk", **tasks.attach())
    server.tool()(tasks.durable()(raises))
    return server.streamable_http_app()


def of_fastmcp() -> Any:
    server: FastMCP[Any] = FastMCP("fast")
    server.add_extension(TasksExtension("memory:", runtime=FAST_CONFIG))
    server.tool(raises, task=True)
    return server.http_app(path="/mcp")


def of_the_low_level_server() -> Any:
    tasks = Tasks("memory:", runtime=FAST_CONFIG)
    durable = tasks.durable()(raises)

    async def call(_: object, __: object) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=str(await durable()))])

    server: Server[Any] = Server("low", on_call_tool=call)
    tasks.install(server)
    return server.streamable_http_app()


@pytest.mark.parametrize("make", [of_the_sdk, of_fastmcp, of_the_low_level_server])
async def test_an_exception_of_a_tool_is_logged_once_with_its_traceback_and_its_task(
    make: Callable[[], Any], log: Log
) -> None:
    async with serving(make()) as url, Client2026(url) as modern:
        task_id = await modern.start("raises")
        await modern.until(task_id, "completed", "failed")
    (record,) = log.failures
    assert f"task {task_id}: " in record.getMessage()
    told = logging.Formatter().format(record)
    assert "in raises\n" in told
    assert told.count("ValueError: secret") == 1


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (
            reports_then_fails,
            "tool 'reports_then_fails' failed: 'Error executing tool reports_then_fails: disk is full'",
        ),
        (breaks, "tool 'breaks' failed: 'the printer is gone'"),
    ],
)
async def test_an_error_that_a_tool_raises_on_purpose_is_a_line_without_a_traceback(
    bench: ToolServer, log: Log, function: Callable[..., Any], line: str
) -> None:
    bench.tool()(function)
    async with bench.running():
        ended = await bench.ended(function.__name__)
    assert log.lines_of(ended["taskId"]) == [line]
    assert log.failures == []
