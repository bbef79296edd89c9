"""What `task=` of a tool means: FastMCP's own `TaskConfig`, and `TaskOptions`, which has more options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, cast

from fastmcp.server.providers.proxy import ProxyTool
from fastmcp.tools import Tool
from fastmcp.utilities.tasks import TaskConfig
from uncalled_for import get_annotation_dependencies, get_dependency_parameters

from ..mcp.tool import ToolOptions, durable_of
from ..storage.time_types import Duration
from ..tasks.errors import InvalidValue


@dataclass(kw_only=True)
class TaskOptions(TaskConfig):
    """The options of a tool whose calls become tasks: `@mcp.tool(task=TaskOptions(retries=4))`.

    `mode` and `poll_interval` are FastMCP's. The others are those of `Tasks.durable`, which explains them.
    """

    retries: int = 0
    retry_on: tuple[type[Exception], ...] = ()
    backoff: Duration = 1
    restart: bool = True
    timeout: Duration | None = None
    ttl: Duration | None = None
    input_deadline: Duration | None = None
    operators_answer: bool = False
    concurrency: int | None = None

    def validate_function(self, fn: Callable[..., Any], name: str) -> None:
        """Admit plain functions too, which FastMCP refuses with `task=True`. They run in a thread."""


def tool_options(config: TaskConfig) -> ToolOptions:
    """Return the options of a tool that is declared with `task=True`, `TaskConfig` or `TaskOptions`."""
    options = config if isinstance(config, TaskOptions) else TaskOptions(config.mode, config.poll_interval)
    return cast("ToolOptions", {field.name: getattr(options, field.name) for field in fields(options)})


# What a tool cannot have

_ALTERNATIVES = {
    "Retry": "use task=TaskOptions(retries=..., retry_on=...)",
    "ExponentialRetry": "use task=TaskOptions(retries=..., retry_on=..., backoff=...)",
    "Timeout": "use task=TaskOptions(timeout=...)",
    "ConcurrencyLimit": "use task=TaskOptions(concurrency=...)",
    "Progress": "use Progress of fastmcp.dependencies",
    "TaskArgument": "use CallArgument of fastmcp.dependencies",
    "TaskKey": "use ctx.task_id, or perdure.current_task().id",
    "TaskLogger": "use ctx.info, or a logger of your own",
    "CurrentExecution": "use perdure.current_task()",
}
"""By the name of docket's own dependencies: what to write instead."""
_NO_ALTERNATIVE = "remove the parameter, or leave the tool with fastmcp-tasks, on a server of its own"


def check_tool(name: str, tool: Tool) -> None:
    """Raise InvalidValue if a tool is declared in the way of the official SDK."""
    if durable_of(getattr(tool, "fn", None)) is not None:
        raise InvalidValue(
            "tool",
            f"{name!r} is made durable by @tasks.durable, which is for the official SDK; remove that "
            "decorator, and write @mcp.tool(task=True)",
        )


def check_task(name: str, tool: Tool) -> None:
    """Raise InvalidValue if a tool cannot be a task; `name` is that of the tool that is made from it."""
    if isinstance(tool, ProxyTool):
        raise InvalidValue(
            "task",
            f"{name!r} is the tool of another server, behind a proxy: it runs there, and is lost if that "
            "server is; make it a task on that server, and use that server without a proxy",
        )
    for dependency in _dependencies_of(getattr(tool, "fn", None)):
        kind = type(dependency)
        if kind.__module__.partition(".")[0] in ("docket", "fastmcp_tasks"):
            called = kind.__name__.removeprefix("_")
            raise InvalidValue(
                "task",
                f"{name!r} has a parameter of docket, {called}, which works with fastmcp-tasks only; "
                f"{_ALTERNATIVES.get(called, _NO_ALTERNATIVE)}",
            )


def _dependencies_of(function: object) -> Iterator[object]:
    """Yield the dependencies of a function and of its dependencies, without the `Depends` themselves."""
    if not callable(function):
        return
    annotated = get_annotation_dependencies(function).values()
    for dependency in chain(get_dependency_parameters(function).values(), *annotated):
        factory = getattr(dependency, "factory", None)
        yield from [dependency] if factory is None else _dependencies_of(factory)
