"""What a function must be to be made durable, and what clients then see of it."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import typing
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest
from fastmcp.server.context import Context as FastMCPContext
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import Field

from perdure import NotDurable, Task, Tasks
from perdure.runtime import RuntimeConfig
from perdure.storage.errors import PerdureError
from perdure.tasks import Owner, StoreConfig
from perdure.tasks.errors import InvalidValue

from ...conditions import wait_until
from ...markers import row, server
from ..raw_clients import Client2026, Json, serving
from .tool_server import ToolServer, first

pytestmark = pytest.mark.anyio


# What clients see of the function


class Shown(msgspec.Struct):
    """A durable function with its task, and its twin that has none."""

    durable: Callable[..., Any]
    plain: Callable[..., Any]


def pair(durable: Callable[..., Any], plain: Callable[..., Any]) -> Shown:
    plain.__name__ = durable.__name__
    plain.__doc__ = durable.__doc__
    return Shown(durable, plain)


async def first_twin(year: int) -> str:
    return ""


Title = Annotated[str, Field(description="on the cover")]
Parts = Annotated[list[int], Field(max_length=3)]


async def between(year: int, task: Task, title: Title = "x") -> str:
    """Takes the task between others, of which one is described and has a default."""
    return f"{year} {title} {task.attempt}"


async def between_twin(year: int, title: Title = "x") -> str:
    return ""


async def keyword_only(year: int, *, note: str | None = None, task: Task) -> str:
    """Takes the task by its name."""
    return f"{year} {note} {task.attempt}"


async def keyword_only_twin(year: int, *, note: str | None = None) -> str:
    return ""


async def annotated(year: Annotated[int, Field(ge=1900)], task: Annotated[Task, "the task"]) -> str:
    """Takes a task that says more than its type."""
    return f"{year} {task.attempt}"


async def annotated_twin(year: Annotated[int, Field(ge=1900)]) -> str:
    return ""


async def optional(year: int, task: Task | None = None) -> str:
    """Can be called by hand too, without a task."""
    assert task is not None
    return f"{year} {task.attempt}"


async def optional_twin(year: int) -> str:
    return ""


async def none_at_all(kind: Literal["a", "b"], parts: Parts) -> list[int]:
    """Takes no task."""
    return parts


async def none_at_all_twin(kind: Literal["a", "b"], parts: Parts) -> list[int]:
    return []


SHOWN = {
    "first": pair(first, first_twin),
    "between": pair(between, between_twin),
    "keyword-only": pair(keyword_only, keyword_only_twin),
    "annotated": pair(annotated, annotated_twin),
    "optional": pair(optional, optional_twin),
    "none": pair(none_at_all, none_at_all_twin),
}


async def listed(*functions: Callable[..., Any], server: MCPServer[Any]) -> list[Json]:
    for function in functions:
        server.add_tool(function)
    return [tool.model_dump(by_alias=True, exclude_none=True) for tool in await server.list_tools()]


def unstrung(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as if its module had no `from __future__ import annotations`."""

    @wraps(function)
    async def same(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    same.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    same.__annotations__ = typing.get_type_hints(function, include_extras=True)
    return same


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("spelled", ["as text", "as types"])
async def test_a_tool_is_listed_as_its_twin_without_a_task(
    bench: ToolServer, shown: Shown, spelled: str
) -> None:
    durable = shown.durable if spelled == "as text" else unstrung(shown.durable)
    tools = await listed(bench.tasks.durable()(durable), server=bench.server)
    assert tools == await listed(shown.plain, server=MCPServer("plain"))
    assert tools[0]["description"] == shown.durable.__doc__


@pytest.mark.parametrize(
    ("shown", "arguments", "said"),
    [
        ("first", {"year": 2026}, "2026 1"),
        ("between", {"year": 2026}, "2026 x 1"),
        ("between", {"year": 2026, "title": "y"}, "2026 y 1"),
        ("keyword-only", {"year": 2026}, "2026 None 1"),
        ("annotated", {"year": 2026}, "2026 1"),
        ("optional", {"year": 2026}, "2026 1"),
    ],
)
@server
async def test_a_function_is_given_its_task_wherever_it_takes_it(
    bench: ToolServer, shown: str, arguments: Json, said: str
) -> None:
    function = SHOWN[shown].durable
    bench.tool()(function)
    async with bench.running():
        assert await bench.said(function.__name__, **arguments) == said


@server
async def test_a_client_cannot_bring_a_task_of_its_own(bench: ToolServer) -> None:
    bench.tool()(first)
    async with bench.running():
        assert await bench.said("first", year=2026, task="mine") == "2026 1"


@server
async def test_a_task_that_only_type_checkers_can_see_is_known_by_its_text(
    bench: ToolServer, tmp_path: Path
) -> None:
    module = tmp_path / "tools.py"
    module.write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from perdure import Task\n"
        "async def work(year: int, task: Task) -> str:\n"
        "    return f'{year} {task.attempt}'\n"
    )
    spec = importlib.util.spec_from_file_location("tools", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    bench.tool()(loaded.work)
    async with bench.running():
        assert await bench.said("work", year=2026) == "2026 1"


def test_a_decorated_function_keeps_its_name_its_words_and_itself(bench: ToolServer) -> None:
    durable = bench.tasks.durable()(between)
    assert (durable.__name__, durable.__doc__) == (between.__name__, between.__doc__)
    assert durable.__module__ == between.__module__
    assert inspect.unwrap(durable) is between
    assert list(inspect.signature(durable).parameters) == ["year", "title"]


async def test_a_decorated_function_can_be_tested_as_the_plain_function_that_it_was(
    bench: ToolServer,
) -> None:
    durable = bench.tasks.durable()(none_at_all)
    assert await inspect.unwrap(durable)("a", [2]) == [2]


@row(89)
@server
async def test_tools_say_how_they_may_be_called_where_they_are_durable_and_only_in_2025(
    bench: ToolServer,
) -> None:
    bench.tool(mode="required")(first)
    bench.tool()(between)
    bench.server.add_tool(none_at_all)
    async with bench.running():
        core = (await bench.core.send("tools/list")).result["tools"]
        modern = (await bench.modern.send("tools/list")).result["tools"]
    assert {tool["name"]: tool.get("execution") for tool in core} == {
        "first": {"taskSupport": "required"},
        "between": {"taskSupport": "optional"},
        "none_at_all": None,
    }
    assert not any("execution" in tool for tool in modern)


# What is refused when it is declared


def refused(bench: ToolServer, function: Callable[..., Any], **options: Any) -> PerdureError:
    with pytest.raises(InvalidValue) as raised:
        bench.tasks.durable(**options)(function)
    return raised.value


async def takes_fastmcp_context(ctx: FastMCPContext) -> None: ...
async def takes_a_fastmcp_context_or_not(year: int, ctx: FastMCPContext | None = None) -> None: ...


@pytest.mark.parametrize("function", [takes_fastmcp_context, takes_a_fastmcp_context_or_not])
def test_a_function_that_takes_the_context_of_fastmcp_is_refused_with_the_reason(
    bench: ToolServer, function: Callable[..., Any]
) -> None:
    said = str(refused(bench, function))
    assert "'ctx'" in said
    assert "declare tools with @mcp.tool(task=True)" in said


async def takes_two(task: Task, other: Task) -> None: ...


def test_a_function_that_takes_two_tasks_is_refused(bench: ToolServer) -> None:
    assert "task, other" in str(refused(bench, takes_two))


DAY = 24 * 3600


@row(88)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "sometimes"),
        ("mode", None),
        ("ttl", 0),
        ("ttl", -1),
        ("ttl", "1h"),
        ("ttl", True),
        ("ttl", 30 * DAY + 1),
        ("poll_interval", 0.049),
        ("poll_interval", 30.001),
        ("poll_interval", "1s"),
        ("retries", -1),
        ("retries", 1.5),
        ("retries", "2"),
        ("backoff", -1.0),
        ("timeout", 0.0),
        ("concurrency", 0),
        ("input_deadline", 0),
        ("retry_on", (int,)),
        ("retry_on", ValueError),
        ("retry_on", (ValueError,)),  # without retries
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(
    bench: ToolServer, option: str, value: object
) -> None:
    assert cast("Any", refused(bench, first, **{option: value})).field == option


def test_what_the_store_was_told_to_allow_is_not_refused() -> None:
    tasks = Tasks("memory:", store=StoreConfig(max_ttl=None))
    tasks.durable(first)
    tasks.durable(ttl=60 * DAY)(between)
    tasks.durable(ttl=None, poll_interval=0.05, retries=0)(annotated)


def test_a_name_is_taken_once(bench: ToolServer) -> None:
    bench.tasks.durable()(first)
    assert "first" in str(refused(bench, first))
    assert "first" in str(refused(bench, between, name="first"))


@server
async def test_what_was_refused_leaves_its_name_free(bench: ToolServer) -> None:
    for options in ({"mode": "sometimes"}, {"poll_interval": 0}, {"retries": -1}, {"ttl": -1}):
        refused(bench, first, **options)
    bench.tool()(first)
    async with bench.running():
        assert await bench.said("first", year=2026) == "2026 1"


@server
async def test_functions_of_one_name_are_told_apart_by_the_name_they_are_given(bench: ToolServer) -> None:
    def namesake(number: int) -> Callable[..., Any]:
        async def work() -> int:
            return number

        return work

    bench.server.add_tool(bench.tasks.durable()(namesake(1)), name="one")
    bench.server.add_tool(bench.tasks.durable(name="work_of_two")(namesake(2)), name="two")
    async with bench.running():
        assert [await bench.said("one"), await bench.said("two")] == ["1", "2"]
        made = await bench.modern.start("two")
        stored = await bench.tasks.runtime.get(Owner.anonymous(), made)
    assert stored.task.function == "work_of_two"


@pytest.mark.parametrize("how", ["by name", "by position"])
async def test_a_durable_function_that_other_code_calls_says_what_to_do_instead(
    bench: ToolServer, how: str
) -> None:
    durable = cast("Any", bench.tasks.durable()(first))
    with pytest.raises(NotDurable) as raised:
        await (durable(year=2026) if how == "by name" else durable(2026))
    assert isinstance(raised.value, MCPError)  # else a client would not see its text
    said = raised.value.error.message
    assert "'first' is durable and runs only as a task" in said
    assert "MCPServer(..., **tasks.attach())" in said
    assert "tasks.runtime.submit('first', arguments)" in said
    assert "first.__wrapped__(...)" in said


# Options of Tasks


async def test_an_option_of_tasks_is_that_of_its_settings() -> None:
    tasks = Tasks(
        "memory:",
        ttl=60,
        max_ttl=timedelta(hours=1),
        max_tasks_per_owner=3,
        concurrency=2,
        identify=lambda _: Owner.user("https://issuer.example", "ada"),
    )
    assert "ttl: " in str(refused_by(tasks, ttl=3601))
    host: MCPServer[Any] = MCPServer("host", log_level="ERROR", **tasks.attach())
    running = 0
    gate = asyncio.Event()

    @host.tool()
    @tasks.durable
    async def wait() -> None:
        nonlocal running
        running += 1
        await gate.wait()

    async with serving(host.streamable_http_app()) as url, Client2026(url) as client:
        answers = [await client.call("wait") for _ in range(4)]
        assert [answer.result["ttlMs"] for answer in answers[:3]] == [60_000] * 3
        assert answers[3].error["data"] == {"retryable": True}
        await wait_until(lambda: running >= 2)
        await asyncio.sleep(0.1)  # in which a third one could start
        assert running == 2
        gate.set()
        await wait_until(lambda: running == 3)


def refused_by(tasks: Tasks, **options: Any) -> InvalidValue:
    with pytest.raises(InvalidValue) as raised:
        tasks.durable(**options)(first)
    return raised.value


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 60, "store": StoreConfig(ttl=120)},
        {"max_tasks_per_owner": 3, "store": StoreConfig(max_tasks_per_owner=4)},
        {"concurrency": 3, "runtime": RuntimeConfig(concurrency=4)},
    ],
)
def test_an_option_that_is_set_twice_is_an_error(options: Json) -> None:
    with pytest.raises(InvalidValue, match="is set twice"):
        Tasks("memory:", **options)


LATER = ("rate_limit", "priority", "executor", "input_grace")
LATER_OF_TASKS = ("answer_within", "executor")


@pytest.mark.parametrize("option", [*LATER, "every", "run_at"])
def test_options_that_come_later_are_not_accepted_by_durable(bench: ToolServer, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        bench.tasks.durable(**cast("Any", {option: 1}))


@pytest.mark.parametrize("option", LATER_OF_TASKS)
def test_options_that_come_later_are_not_accepted_by_tasks(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        Tasks("memory:", **cast("Any", {option: 1}))


@pytest.mark.parametrize("option", ["keep_alive", "hand_over_after"])
@pytest.mark.parametrize("duration", [0, -1.0, float("nan"), "15 s"])
def test_an_interval_that_would_flood_clients_is_refused(option: str, duration: Any) -> None:
    with pytest.raises(InvalidValue, match=option):
        Tasks("memory:", **cast("Any", {option: duration}))
