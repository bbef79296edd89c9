"""The values of `task=` for a FastMCP tool: True, FastMCP's `TaskConfig`, or `TaskOptions` of perdure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
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

    `mode` and `poll_interval` are options of FastMCP. `perdure.mcp.ToolOptions` explains the others. Without
    `retry_on`, `retries` counts only timeouts and `raise perdure.Retry`.
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
        """Accept every function. FastMCP would reject plain functions, but perdure runs them in a thread."""


def tool_options(config: TaskConfig) -> ToolOptions:
    """Return the options for `Tasks.register`, for a tool that was declared with any value of `task=`."""
    options = config if isinstance(config, TaskOptions) else TaskOptions(config.mode, config.poll_interval)
    return cast("ToolOptions", {field.name: getattr(options, field.name) for field in fields(options)})


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
"""What to use instead of the dependencies of docket, by the name of the dependency."""
_NO_ALTERNATIVE = "remove the parameter, or move the tool to a separate server that uses fastmcp-tasks"


def check_tool(tools: Sequence[Tool]) -> None:
    """Raise InvalidValue if a tool, or one of its parents, is decorated with the SDK's `@tasks.durable`."""
    if any(durable_of(getattr(tool, "fn", None)) is not None for tool in tools):
        raise InvalidValue("tool", f"{tools[0].name!r} uses @tasks.durable; use @mcp.tool(task=True) instead")


def check_task(name: str, tools: Sequence[Tool]) -> None:
    """Raise InvalidValue if calls of a tool, or of one of its parents, cannot become tasks."""
    if any(isinstance(tool, ProxyTool) for tool in tools):
        raise InvalidValue(
            "task",
            f"{name!r} is a proxy for a tool of another server, and perdure cannot make it durable; "
            "declare it as a task on that server, and connect clients to that server without a proxy",
        )
    for dependency in chain.from_iterable(_dependencies_of(getattr(tool, "fn", None)) for tool in tools):
        kind = type(dependency)
        if kind.__module__.partition(".")[0] in ("docket", "fastmcp_tasks"):
            called = kind.__name__.removeprefix("_")
            raise InvalidValue(
                "task",
                f"{name!r} has a parameter of the docket type {called}, which works only with fastmcp-tasks; "
                f"{_ALTERNATIVES.get(called, _NO_ALTERNATIVE)}",
            )


def _dependencies_of(function: object) -> Iterator[object]:
    """Yield the dependencies of a function and, instead of each `Depends`, those of its factory."""
    if not callable(function):
        return
    if not isinstance(cast("Any", function), Hashable):
        raise InvalidValue("task", f"FastMCP cannot call {function!r}; its class needs a __hash__")
    annotated = get_annotation_dependencies(function).values()
    for dependency in chain(get_dependency_parameters(function).values(), *annotated):
        factory = getattr(dependency, "factory", None)
        yield from [dependency] if factory is None else _dependencies_of(factory)
