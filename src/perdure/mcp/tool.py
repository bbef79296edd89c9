"""`DurableTool`, the options of a tool whose calls become tasks, and the function that `durable` returns.

The server registers that function as the tool. It has the parameters of the original function, except the
`Task` parameter, and runs only in a task. Calls of clients never reach it, because `admission` answers them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from typing import Any, Literal, TypeAlias, cast

import msgspec

from ..runtime import Function, Task
from ..runtime.function import FunctionOptions, Result, is_coroutine_function, task_parameter
from ..runtime.task import find_current_task
from ..runtime.threads import call_in_thread
from ..storage.time_types import Duration
from ..tasks.config import check_poll_interval
from ..tasks.errors import InvalidValue
from .errors import ATTACH_TO_FASTMCP, NotDurable

TaskMode: TypeAlias = Literal["optional", "required"]
"""Whether a client that does not understand tasks may call the tool, and wait for its result."""


class ToolOptions(FunctionOptions, total=False):
    """The options of a durable tool, which may be registered under another name than its function."""

    mode: TaskMode
    """With `required`, only clients that understand tasks may call the tool. Default: `optional`."""
    poll_interval: Duration
    """The longest interval at which clients are advised to poll. Default: 5 seconds."""


class DurableTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool whose calls become tasks."""

    function: Callable[..., object]
    """The original function."""
    run: Function
    """What workers run for a call, with all options that are not about the protocols."""
    mode: TaskMode = "optional"
    poll_interval_ms: int = 5000

    def __post_init__(self) -> None:
        if self.mode not in ("optional", "required"):
            raise InvalidValue("mode", f"must be 'optional' or 'required', not {self.mode!r}")
        check_poll_interval("poll_interval", self.poll_interval_ms)

    @property
    def name(self) -> str:
        """The name of the function. The tool may be registered under another name."""
        return self.run.name


def make_tool(
    function: object, options: dict[str, Any], run: Callable[[str, Task], Awaitable[Result]]
) -> DurableTool:
    """Return the tool of a function. `options` were checked. Workers call `run` with the tool's name."""
    if not callable(function):
        raise InvalidValue(
            "function",
            f"must be a function, not a {type(function).__name__}; write @tasks.durable below the decorator "
            "that registers the tool, directly above the function",
        )
    own = {name: options[name] for name in ("mode", "poll_interval_ms") if name in options}
    others = {name: value for name, value in options.items() if name not in own}
    name = others.pop("name", None) or getattr(function, "__name__", "")
    return DurableTool(
        function=function, run=Function(name=name, handler=partial(run, name), **others), **own
    )


def wrap(tool: DurableTool) -> Callable[..., Awaitable[object]]:
    """Return the function that a server registers as the tool."""
    function = tool.function
    hints = _type_hints(function)
    _refuse_fastmcp_context(hints)
    parameter = task_parameter(function)
    signature = _without_task_parameter(parameter, inspect.signature(function), hints)

    @wraps(function)
    async def run(*args: object, **kwargs: object) -> object:
        task = find_current_task()
        if task is None:
            raise NotDurable(tool.name)
        given = signature.bind(*args, **kwargs).arguments if args else kwargs
        if parameter is not None:
            given = {**given, parameter: task}
        if is_coroutine_function(function):
            return await cast("Awaitable[object]", function(**given))
        return await call_in_thread(partial(function, **given))

    run.__name__ = tool.name
    run.durable = tool  # pyright: ignore[reportAttributeAccessIssue]
    run.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {name: hint for name, hint in hints.items() if name != parameter}
    return run


def durable_of(function: object) -> DurableTool | None:
    """Return the DurableTool of a registered function, or None if the function is not durable."""
    tool = getattr(function, "durable", None)
    return tool if isinstance(tool, DurableTool) else None


def _type_hints(function: Callable[..., object]) -> dict[str, object]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:  # `Task` may be imported only for type checkers
        return typing.get_type_hints(function, localns={"Task": Task}, include_extras=True)


def _without_task_parameter(
    task: str | None, signature: inspect.Signature, hints: Mapping[str, object]
) -> inspect.Signature:
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in signature.parameters.items()
        if name != task
    ]
    return signature.replace(
        parameters=parameters, return_annotation=hints.get("return", signature.return_annotation)
    )


def _refuse_fastmcp_context(hints: Mapping[str, object]) -> None:
    for name, hint in hints.items():
        if name != "return" and _is_fastmcp_context(hint):
            raise InvalidValue(
                "function",
                f"parameter {name!r} is FastMCP's Context, but @tasks.durable works only with the official "
                f"SDK; with FastMCP, {ATTACH_TO_FASTMCP}",
            )


def _is_fastmcp_context(hint: object) -> bool:
    if isinstance(hint, type):
        return any(f"{each.__module__}.{each.__name__}" == _FASTMCP_CONTEXT for each in hint.__mro__)
    parts = (typing.get_origin(hint), *typing.get_args(hint))
    return any(_is_fastmcp_context(part) for part in parts if part)


_FASTMCP_CONTEXT = "fastmcp.server.context.Context"
"""The name of FastMCP's class. It is compared by name, because FastMCP may not be installed."""


def check_registered(known: Mapping[str, DurableTool], functions: Mapping[str, object]) -> None:
    """Raise InvalidValue unless the durable functions behind a server's tools are exactly those in `known`.

    The error message says how to correct the code. `functions` maps the name of each tool to its function.
    """
    registered = {name: durable_of(function) for name, function in functions.items()}
    for name, tool in registered.items():
        if tool is not None and known.get(tool.name) is not tool:
            raise InvalidValue(
                "tool",
                f"{name!r} was made durable with a different Tasks object than the one that is attached to "
                "this server; use the same Tasks object for both",
            )
    for tool in known.values():
        if tool in registered.values():
            continue
        for name, function in functions.items():
            if function == tool.function:
                raise InvalidValue(
                    "tool",
                    f"{name!r} is not durable: it was registered before its function was made durable; write "
                    "@tasks.durable below @server.tool(), directly above the function",
                )
        raise InvalidValue(
            "function",
            f"{tool.name!r} is durable but is not a tool of this server; write @server.tool() directly "
            "above @tasks.durable",
        )
