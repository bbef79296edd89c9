"""What cannot be a task is refused when the server starts, with the reason and the alternative."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import fastmcp
import pytest
from docket import ConcurrencyLimit, Cron, ExponentialRetry, Perpetual, Retry, Timeout
from docket.dependencies import CurrentExecution, TaskArgument, TaskKey, TaskLogger
from docket.dependencies import Depends as DocketDepends
from docket.dependencies import Progress as DocketProgress
from fastmcp import Context, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.exceptions import ToolError
from fastmcp.server import create_proxy
from fastmcp.server.providers.proxy import ProxyProvider, ProxyTool
from fastmcp.tools import Tool
from fastmcp.tools.tool_transform import forward
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks.dependencies import CurrentDocket, CurrentWorker
from pydantic import BaseModel

from perdure import Task, Tasks
from perdure.fastmcp import TaskOptions, TasksExtension
from perdure.tasks.errors import InvalidValue

from ..conditions import wait_until
from ..mcp.raw_clients import Client2026, serving
from .features import feature
from .served import Served, said
from .tool_server import ToolServer, opened

pytestmark = pytest.mark.anyio


async def refused(server: Served) -> str:
    """Return the error with which a server does not start."""
    app = server.http_app()
    with pytest.raises(InvalidValue) as raised:
        async with app.router.lifespan_context(app):
            pass
    return str(raised.value)


# Options of the extension


@feature(
    "`TasksExtension(url=...)`",
    peer="Redis or memory; the default is `FASTMCP_DOCKET_URL`",
    here="any database that perdure supports; also accepted as the first argument; the default is "
    "`PERDURE_URL`; with `memory://name`, each extension has its own memory",
)
async def test_the_url_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (f"sqlite:///{tmp_path}/{number}.db" for number in (1, 2, 3))
    monkeypatch.setenv("PERDURE_URL", first)
    for extension, databases in (
        (TasksExtension("memory:"), 0),
        (TasksExtension(url="memory://"), 0),
        (TasksExtension(url="memory://tests"), 0),
        (TasksExtension(), 1),
        (TasksExtension(second), 2),
        (TasksExtension(url=third), 3),
    ):
        mcp: Served = FastMCP("root")
        mcp.add_extension(extension)

        @mcp.tool(task=True)
        async def where(ctx: Context) -> bool:
            return ctx.is_background_task

        assert await said(mcp, "where") == "true"
        assert databases_in(tmp_path) == {f"{number}.db" for number in range(1, databases + 1)}


def databases_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.db")}


async def test_extensions_with_one_name_of_a_memory_do_not_share_it() -> None:
    first, second = ToolServer("memory://tests"), ToolServer("memory://tests")
    async with opened(first) as url, opened(second), Client2026(url) as client:
        await client.start("hold")
        assert (await first.count(), await second.count()) == (1, 0)


def test_without_a_url_a_warning_says_that_tasks_are_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PERDURE_URL", raising=False)
    TasksExtension()
    assert caplog.messages == [
        "tasks are lost when the server stops; pass TasksExtension a URL, or set PERDURE_URL"
    ]


@feature(
    "`TasksExtension(concurrency=...)`",
    peer="how many tasks run at once in a process, by default 10",
    here="the same, by default 64",
)
@pytest.mark.parametrize(("options", "at_once"), [({"concurrency": 3}, 3), ({}, 64)])
async def test_as_many_tasks_run_at_once_as_the_extension_says(options: Any, at_once: int) -> None:
    shop = ToolServer(**options)
    async with opened(shop) as url, Client2026(url) as client:
        tasks = [await client.start("hold") for _ in range(at_once + 2)]
        await wait_until(lambda: len(shop.ran) == at_once)
        assert (await client.get(tasks[-1]))["status"] == "working"
        assert len(shop.ran) == at_once
        shop.gate.set()
        await client.until(tasks[-1], "completed")
    assert len(shop.ran) == at_once + 2


@feature(
    "`name`, `worker_name` and other options of docket",
    peer="options of the extension, like `redelivery_timeout`, `reconnection_delay` and "
    "`minimum_check_interval`",
    here="refused with a reason; the extension accepts the options of `Tasks` instead",
)
@pytest.mark.parametrize(
    ("options", "because"),
    [
        (
            {"name": "queue"},
            "name: is an option of fastmcp-tasks, but not of perdure; perdure separates tasks by the name",
        ),
        (
            {"worker_name": "one"},
            "worker_name: is an option of fastmcp-tasks, but not of perdure; perdure generates the",
        ),
        ({"redelivery_timeout": timedelta(1)}, "set heartbeat_interval in RuntimeConfig"),
        ({"reconnection_delay": timedelta(1)}, "perdure reconnects automatically"),
        (
            {"minimum_check_interval": timedelta(1)},
            "to change how often workers read the queue, set queue_poll_interval",
        ),
    ],
)
def test_an_option_of_docket_is_refused_with_the_reason(options: Any, because: str) -> None:
    TasksExtension("memory:", ttl=timedelta(hours=1))
    unset: dict[str, Any] = dict.fromkeys(options)
    TasksExtension("memory:", **unset)
    with pytest.raises(InvalidValue) as raised:
        TasksExtension("memory:", **options)
    assert because in str(raised.value)


@pytest.mark.parametrize("made", [TasksExtension, Tasks])
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("heartbeat_interval", "; pass runtime=RuntimeConfig(heartbeat_interval=...)"),
        ("max_tasks", "; pass store=StoreConfig(max_tasks=...)"),
        ("allow_anonymous", ""),
        ("speed", ""),
    ],
)
def test_an_unknown_option_is_refused_with_the_place_where_it_belongs(
    made: type[TasksExtension | Tasks], name: str, advice: str
) -> None:
    options: dict[str, Any] = {"concurrency": 3, name: 1}
    with pytest.raises(TypeError) as raised:
        made("memory:", **options)
    assert str(raised.value) == f"{made.__name__}() got an unexpected keyword argument {name!r}{advice}"


async def test_a_server_without_a_name_must_pin_its_application(tmp_path: Path) -> None:
    """FastMCP makes up another name at each start, so its tasks would not be found after a restart."""
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    unnamed: Served = FastMCP()
    unnamed.add_extension(TasksExtension(url))
    assert (await refused(unnamed)).startswith("application: the server has no name")
    named: Served = FastMCP("root")
    pinned: Served = FastMCP()
    for mcp, application in ((named, None), (pinned, "root")):
        extension = TasksExtension(url, application=application)
        mcp.add_extension(extension)
        async with fastmcp.Client(mcp):
            assert extension.tasks.runtime.store.application == "root"


@feature(
    "`FASTMCP_DOCKET_*`, `FASTMCP_TASKS_ENCRYPTION_KEY`",
    peer="configure the database, and the encryption of credentials",
    here="ignored, with a warning in the log",
)
async def test_environment_variables_of_docket_are_named_in_the_log(
    mcp: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FASTMCP_DOCKET_URL", "redis://nowhere:1")
    monkeypatch.setenv("FASTMCP_DOCKET_NAME", "queue")
    monkeypatch.setenv("fastmcp_docket_Concurrency", "3")
    monkeypatch.setenv("FASTMCP_TASKS_ENCRYPTION_KEY", "secret")
    app = mcp.http_app()
    with caplog.at_level(logging.WARNING, "perdure.fastmcp"):
        async with app.router.lifespan_context(app):
            pass
    assert [record.getMessage() for record in caplog.records if record.name == "perdure.fastmcp"] == [
        "environment variable FASTMCP_DOCKET_URL is for fastmcp-tasks and is ignored; pass the URL to "
        "TasksExtension, or set PERDURE_URL",
        "environment variable FASTMCP_DOCKET_NAME is for fastmcp-tasks and is ignored; perdure separates "
        "tasks by the name of the server; to use another name, set application",
        "environment variable fastmcp_docket_Concurrency is for fastmcp-tasks and is ignored; pass "
        "concurrency to TasksExtension",
        "environment variable FASTMCP_TASKS_ENCRYPTION_KEY is for fastmcp-tasks and is ignored; set "
        "PERDURE_ENCRYPTION_KEY to a key from `perdure key`",
    ]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (TaskOptions(retries=-1), "retries"),
        (TaskOptions(retry_on=(OSError,)), "retry_on"),
        (TaskOptions(timeout=0), "timeout"),
        (TaskOptions(ttl=timedelta(days=400)), "ttl"),
        (TaskConfig(poll_interval=timedelta(days=1)), "poll_interval"),
    ],
)
async def test_an_option_that_is_out_of_range_is_an_error_at_start(
    mcp: Served, options: TaskConfig, field: str
) -> None:
    async def nap() -> None: ...

    mcp.tool(nap, task=options)
    assert (await refused(mcp)).startswith(f"{field}: ")


# Parameters of docket


async def retry(retry: Any = Retry(attempts=3)) -> None: ...
async def backoff(retry: Any = ExponentialRetry(attempts=3)) -> None: ...
async def timeout(limit: Any = Timeout(timedelta(seconds=1))) -> None: ...
async def limit(limit: Any = ConcurrencyLimit("one", 1)) -> None: ...
async def annotated(one: Annotated[int, ConcurrencyLimit(1)]) -> None: ...
async def progress(progress: Any = DocketProgress()) -> None: ...
async def execution(execution: Any = CurrentExecution()) -> None: ...
async def key(key: str = TaskKey()) -> None: ...
async def logger(logger: Any = TaskLogger()) -> None: ...
async def argument(one: int, other: int = TaskArgument("one")) -> None: ...
async def docket(docket: Any = CurrentDocket()) -> None: ...
async def worker(worker: Any = CurrentWorker()) -> None: ...
async def perpetual(again: Any = Perpetual(every=timedelta(1))) -> None: ...
async def cron(again: Any = Cron("0 0 * * *")) -> None: ...
async def nested(value: Any = Depends(retry)) -> None: ...
async def nested_by_docket(value: Any = DocketDepends(timeout)) -> None: ...


@feature(
    "`Retry`, `Timeout`, `ConcurrencyLimit`, `CurrentDocket()` and the other parameters of docket",
    peer="work as in docket",
    here="refused at startup, with the name of the option to use instead",
)
@pytest.mark.parametrize(
    ("function", "because"),
    [
        (
            retry,
            "Retry, which works only with fastmcp-tasks; use task=TaskOptions(retries=..., retry_on=...)",
        ),
        (backoff, "use task=TaskOptions(retries=..., retry_on=..., backoff=...)"),
        (timeout, "use task=TaskOptions(timeout=...)"),
        (limit, "use task=TaskOptions(concurrency=...)"),
        (annotated, "use task=TaskOptions(concurrency=...)"),
        (progress, "use Progress of fastmcp.dependencies"),
        (execution, "use perdure.current_task()"),
        (key, "use ctx.task_id, or perdure.current_task().id"),
        (logger, "use ctx.info, or a logger of your own"),
        (argument, "use CallArgument of fastmcp.dependencies"),
        (docket, "CurrentDocket, which works only with fastmcp-tasks; remove the parameter"),
        (worker, "CurrentWorker, which works only with fastmcp-tasks; remove the parameter"),
        (perpetual, "Perpetual, which works only with fastmcp-tasks; remove the parameter"),
        (cron, "Cron, which works only with fastmcp-tasks; remove the parameter"),
        (nested, "use task=TaskOptions(retries=..., retry_on=...)"),
        (nested_by_docket, "use task=TaskOptions(timeout=...)"),
    ],
)
async def test_a_parameter_of_docket_is_refused_with_the_option_to_use_instead(
    mcp: Served, function: Any, because: str
) -> None:
    sub: Served = FastMCP("sub")
    sub.tool(function, task=True)
    mcp.mount(sub, namespace="sub")
    said = await refused(mcp)
    assert said.startswith(f"task: 'sub_{function.__name__}' has a parameter of the docket type ")
    assert because in said


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> int:
        return 5


async def test_a_dependency_that_fastmcp_cannot_call_is_refused_at_start(mcp: Served) -> None:
    @mcp.tool(task=True)
    async def base(number: int = Depends(Unhashable())) -> int:
        return number

    said = await refused(mcp)
    assert said.startswith("task: FastMCP cannot call ")
    assert said.endswith("; its class needs a __hash__")


@dataclass
class Paging:
    """Its objects are not hashable, but the class is."""

    limit: int = 10


class Model(BaseModel):
    limit: int = 10


@pytest.mark.parametrize("kind", [Paging, Model])
async def test_a_class_whose_objects_are_not_hashable_is_a_dependency(mcp: Served, kind: Any) -> None:
    @mcp.tool(task=True)
    async def limit(paging: Any = Depends(kind)) -> int:
        return paging.limit

    assert await said(mcp, "limit") == "10"


async def test_a_parameter_of_docket_in_a_transformation_is_refused_too(mcp: Served) -> None:
    @mcp.tool(task=True)
    async def base(number: int) -> int:
        return number

    async def twice(number: int, retry: Any = Retry(attempts=2)) -> Any:
        return await forward(number=2 * number)

    mcp.add_tool(Tool.from_tool(base, name="twice", transform_fn=twice))
    assert (await refused(mcp)).startswith("task: 'twice' has a parameter of the docket type Retry")


async def test_depends_of_docket_is_that_of_fastmcp(mcp: Served) -> None:
    async def greeting() -> str:
        return "hello"

    @mcp.tool(task=True)
    async def greet(text: str = DocketDepends(greeting)) -> str:
        return text

    assert await said(mcp, "greet") == "hello"


# Proxies


def nowhere() -> Any:
    raise ConnectionError("not at the start")


@feature(
    "tools behind a proxy",
    peer="run within the request",
    here="the same; a tool that is declared as a task is refused at startup",
)
async def test_a_tool_behind_a_proxy_that_is_declared_as_a_task_is_refused(mcp: Served) -> None:
    mcp.add_provider(ProxyProvider(nowhere))
    app = mcp.http_app()
    async with app.router.lifespan_context(app):
        pass  # and there was no connection
    proxied = ProxyTool(nowhere, name="far", parameters={})
    mcp.add_tool(Tool.from_tool(proxied, name="near").model_copy(update={"task_config": TaskConfig()}))
    assert "task: 'near' is a proxy for a tool of another server" in await refused(mcp)


async def test_a_tool_behind_a_proxy_runs_within_the_request(mcp: Served) -> None:
    far: Served = FastMCP("far")

    @far.tool(task=False)
    async def nap() -> str:
        return "slept"

    mcp.mount(create_proxy(far), namespace="far")
    async with serving(mcp.http_app(path="/mcp")) as url, Client2026(url) as client:
        assert (await client.call("far_nap")).result["structuredContent"] == {"result": "slept"}


# Tools of the official SDK


async def test_a_tool_that_is_durable_by_the_decorator_of_the_sdk_is_refused(mcp: Served) -> None:
    tasks = Tasks("memory:")

    @mcp.tool
    @tasks.durable
    async def nap() -> None: ...

    assert await refused(mcp) == ("tool: 'nap' uses @tasks.durable; use @mcp.tool(task=True) instead")


async def test_without_the_extension_its_call_fails_with_the_same_advice() -> None:
    tasks, mcp = Tasks("memory:"), FastMCP("root")

    @mcp.tool
    @tasks.durable
    async def nap() -> None: ...

    async with fastmcp.Client(mcp) as client:
        with pytest.raises(
            ToolError, match=r"import TasksExtension from perdure.fastmcp, call mcp.add_extension"
        ):
            await client.call_tool("nap")


def test_a_tool_that_takes_a_task_is_refused_with_the_way_to_have_one(mcp: Served) -> None:
    with pytest.raises(InvalidValue, match=r"with FastMCP, write task: Task = Depends\(current_task\)"):

        @mcp.tool(task=True)
        async def nap(task: Task) -> None: ...  # pyright: ignore[reportUnusedFunction]


# What only FastMCP can see


async def test_a_task_that_callers_may_not_see_does_not_hinder_the_start(mcp: Served) -> None:
    async def nap() -> None: ...

    mcp.tool(nap, auth=lambda _: False, task=True)
    mcp.tool(nap, name="off", task=True)
    mcp.disable(names={"off"})
    app = mcp.http_app()
    async with app.router.lifespan_context(app):
        pass


@pytest.mark.parametrize("name", ["hidden", "sub_hidden"])
async def test_a_task_whose_tool_was_hidden_since_then_still_runs(mcp: Served, name: str) -> None:
    sub: Served = FastMCP("sub")

    async def hidden() -> str:
        mcp.disable(names={"hidden", "sub_hidden"})
        if not await mcp.get_tool(name):
            raise ConnectionError
        return "seen"

    mcp.tool(hidden, task=TaskOptions(retries=1, retry_on=(ConnectionError,), backoff=0.01))
    sub.tool(hidden, task=TaskOptions(retries=1, retry_on=(ConnectionError,), backoff=0.01))
    mcp.mount(sub, namespace="sub")
    assert await said(mcp, name) == "Error calling tool 'hidden': "
