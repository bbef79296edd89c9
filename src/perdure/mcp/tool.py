"""`DurableTool`, the options of a tool whose calls become tasks, and the function that `durable` returns.

The server registers that function as the tool. It has the parameters of the original function without the
task, and runs only inside a task: the call of a client never reaches it, because `admission` answers that.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from ..runtime import Task
from ..runtime.function import is_coroutine_function, task_parameter
from ..runtime.task import find_current_task
from ..runtime.threads import call_in_thread
from ..tasks.config import MAX_POLL_INTERVAL_MS, MIN_POLL_INTERVAL_MS
from ..tasks.errors import InvalidValue
from .errors import not_a_task

TaskMode: TypeAlias = Literal["optional", "required"]
"""Whether a client that does not understand tasks may call the tool, and wait for its result."""


class DurableTool(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a tool whose calls become tasks."""

    name: str
    """The name of the function. The tool may be registered under another name."""
    function: Callable[..., object]
    """The original function."""
    mode: TaskMode
    ttl_ms: int | UnsetType = UNSET
    """The ttl for clients that do not request one. If unset, the store's default applies."""
    poll_interval_ms: int
    """The longest poll interval that clients are advised to use."""
    operators_answer: bool = False
    """Whether the tool can ask questions that its client does not support, because operators answer them."""
    retry_on: tuple[type[Exception], ...] = ()
    """The exceptions after which the function is run again, if it has retries left."""

    def __post_init__(self) -> None:
        if self.mode not in ("optional", "required"):
            raise InvalidValue("mode", f"must be 'optional' or 'required', not {self.mode!r}")
        if not MIN_POLL_INTERVAL_MS <= self.poll_interval_ms <= MAX_POLL_INTERVAL_MS:
            least, most = MIN_POLL_INTERVAL_MS / 1000, MAX_POLL_INTERVAL_MS / 1000
            raise InvalidValue(
                "poll_interval",
                f"must be from {least:g} to {most:g} seconds, not {self.poll_interval_ms / 1000:g}",
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
            raise not_a_task(tool.name)
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
    """Return the options of the function of a tool, or None if it is not durable."""
    tool = getattr(function, "durable", None)
    return tool if isinstance(tool, DurableTool) else None


def check_function(function: object) -> Callable[..., object]:
    if not callable(function):
        raise InvalidValue(
            "function",
            f"must be a function, not a {type(function).__name__}; write @tasks.durable below the decorator "
            "that registers the tool, directly above the function",
        )
    return function


def _type_hints(function: Callable[..., object]) -> dict[str, object]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:  # if only type checkers import it, `Task` is perdure's
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
                f"takes FastMCP's Context as {name!r}, which needs a request; a durable tool runs outside of "
                "any request: take a Task instead",
            )


def _is_fastmcp_context(hint: object) -> bool:
    if isinstance(hint, type):
        return any(f"{each.__module__}.{each.__name__}" == _FASTMCP_CONTEXT for each in hint.__mro__)
    parts = (typing.get_origin(hint), *typing.get_args(hint))
    return any(_is_fastmcp_context(part) for part in parts if part)


_FASTMCP_CONTEXT = "fastmcp.server.context.Context"
"""By name, because FastMCP may be missing."""


# The check at the start of a server: each durable function is one of its tools

RegisteredFunctions: TypeAlias = Sequence[tuple[str, object]]
"""The names of tools, each with the function that the tool calls."""


def check_owner(known: Mapping[str, DurableTool], functions: RegisteredFunctions) -> None:
    """Raise InvalidValue if a tool was made durable with a `Tasks` that is not the server's."""
    for name, function in functions:
        tool = durable_of(function)
        if tool is not None and known.get(tool.name) is not tool:
            raise InvalidValue(
                "tool",
                f"{name!r} was made durable with another Tasks than the one that is attached to this server; "
                "use the same Tasks for both",
            )


def find_unregistered(known: Mapping[str, DurableTool], functions: RegisteredFunctions) -> list[DurableTool]:
    """Return the durable functions that are not tools."""
    names = {tool.name for _, function in functions if (tool := durable_of(function)) is not None}
    return [tool for name, tool in known.items() if name not in names]


def refuse_unregistered(missing: Iterable[DurableTool], functions: RegisteredFunctions) -> None:
    """Raise InvalidValue for a durable function that is not a tool, with what to write instead."""
    for tool in missing:
        for name, function in functions:
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
