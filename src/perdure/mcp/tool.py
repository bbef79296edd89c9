"""`DurableTool`, the options of a tool whose calls become tasks, and the function that `durable` returns.

The server registers that function as the tool. It has the parameters of the original function without the
task, and runs only inside a task: the call of a client never reaches it, because `admission` answers that.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Literal, TypeAlias, TypedDict, cast

import msgspec
from msgspec import UNSET, UnsetType

from ..runtime import Function, Task
from ..runtime.function import Handler, is_coroutine_function, task_parameter
from ..runtime.task import find_current_task
from ..runtime.threads import call_in_thread
from ..storage.time_types import Duration, to_milliseconds
from ..tasks.config import check_poll_interval, check_seconds
from ..tasks.errors import InvalidValue
from .errors import ATTACH_TO_FASTMCP, not_a_task

TaskMode: TypeAlias = Literal["optional", "required"]
"""Whether a client that does not understand tasks may call the tool, and wait for its result."""


class ToolOptions(TypedDict, total=False):
    """The options of a durable tool."""

    name: str | None
    """The name of the function for workers, if not its own. The tool may be registered under another."""
    mode: TaskMode
    """With `required`, only clients that understand tasks may call the tool. Default: `optional`."""
    retries: int
    """How often the function runs again after one of the exceptions in `retry_on`, after `Again`, or after a
    timeout. Default: 0."""
    retry_on: tuple[type[Exception], ...]
    backoff: Duration
    """The time before the first retry; it doubles with each. Default: 1 second."""
    restart: bool
    """Whether the function runs again if its worker is lost or stops. Default: true."""
    timeout: Duration | None
    """How long an attempt may take, not counting the time in which it waits for answers."""
    ttl: Duration | None
    """How long a task may wait for its first start, and a question for its answer."""
    poll_interval: Duration
    """The longest interval that clients are advised to poll in. Default: 5 seconds."""
    input_deadline: Duration | None
    """The time within which a question must be answered, else the task fails. Default: the ttl."""
    operators_answer: bool
    """Whether the tool can ask questions that its client does not support, because operators answer them."""
    concurrency: int | None
    """Maximum number of concurrent runs of the function in one worker."""


class DurableTool(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a tool whose calls become tasks."""

    name: str
    """The name of the function. The tool may be registered under another name."""
    function: Callable[..., object]
    """The original function."""
    mode: TaskMode = "optional"
    ttl_ms: int | UnsetType = UNSET
    """The ttl for clients that do not request one. If unset, the store's default applies."""
    poll_interval_ms: int = 5000
    """The longest poll interval that clients are advised to use."""
    operators_answer: bool = False
    """Whether the tool can ask questions that its client does not support, because operators answer them."""
    retry_on: tuple[type[Exception], ...] = ()
    """The exceptions after which the function is run again, if it has retries left."""

    def __post_init__(self) -> None:
        if self.mode not in ("optional", "required"):
            raise InvalidValue("mode", f"must be 'optional' or 'required', not {self.mode!r}")
        check_poll_interval("poll_interval", self.poll_interval_ms)


def checked(options: ToolOptions) -> dict[str, Any]:
    """Return options with their durations as numbers, named as in `DurableTool` and `Function`.

    Raise TypeError if an option is unknown, and InvalidValue if a duration is not one.
    """
    given: dict[str, Any] = {**options}
    for name in given.keys() - ToolOptions.__annotations__.keys():
        raise TypeError(f"durable() got an unexpected keyword argument {name!r}")
    if given.get("ttl", UNSET) is None:
        del given["ttl"]
    for name in {"ttl", "poll_interval"} & given.keys():
        given[f"{name}_ms"] = to_milliseconds(check_seconds(name, given.pop(name)))
    for name in ("backoff", "timeout", "input_deadline"):
        if given.get(name) is not None:
            given[name] = check_seconds(name, given[name])
    return given


def make_tool(function: object, options: dict[str, Any]) -> DurableTool:
    """Return the tool of a function, with options that were checked."""
    function = check_function(function)
    name = options.get("name") or getattr(function, "__name__", "")
    return DurableTool(name=name, function=function, **_picked(options, DurableTool))


def make_function(tool: DurableTool, options: dict[str, Any], handler: Handler) -> Function:
    """Return the function that workers run for a tool."""
    return Function(name=tool.name, handler=handler, **_picked(options, Function))


def _picked(options: dict[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: options[name] for name in struct.__struct_fields__ if name in options and name != "name"}


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
                f"takes FastMCP's Context as {name!r}, and @tasks.durable is for the official SDK; with "
                f"FastMCP, {ATTACH_TO_FASTMCP}",
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
