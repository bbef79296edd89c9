"""`@tasks.durable`: a tool function whose calls become tasks.

A decorated function never runs in the request that calls it. There it only says that it was reached, which
means that the server has found the tool, validated its arguments and had all its resolvers answered; the call
is then stored. A worker calls the tool again by its name, and then the function runs, with its task.
"""

from __future__ import annotations

import inspect
import re
import secrets
import typing
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Literal, TypeAlias, cast

import msgspec
from mcp.server.context import HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult
from msgspec import UNSET, UnsetType

from ..runtime import Task
from ..runtime.errors import is_signal
from ..runtime.function import is_coroutine_function, task_parameter
from ..runtime.threads import call_in_thread
from ..storage.errors import PerdureError
from ..tasks.config import check_poll_interval
from ..tasks.errors import InvalidValue
from .protocol import Request
from .refusals import not_attached

Handler: TypeAlias = Callable[[Request, Any], Awaitable[HandlerResult]]

Mode: TypeAlias = Literal["optional", "required"]
"""Whether a client that does not understand tasks may call the tool, and wait for it."""


class Durable(msgspec.Struct, frozen=True, kw_only=True):
    """What a server knows of a tool whose calls become tasks."""

    name: str
    """Of the function. The tool may be registered under another."""
    function: Callable[..., object]
    """The function without its decorator."""
    mode: Mode
    ttl: int | UnsetType | None = UNSET
    """Milliseconds, for clients that name none; unset: as the store is configured."""
    poll_interval: int
    """Milliseconds that clients are told to wait between two looks, at most."""
    operators_answer: bool = False
    """Whether it may ask what the client did not declare, because operators answer."""

    def __post_init__(self) -> None:
        if self.mode not in ("optional", "required"):
            raise InvalidValue("mode", f"must be 'optional' or 'required', not {self.mode!r}")
        check_poll_interval("poll_interval", self.poll_interval)


# Where a decorated function finds itself


class Admission:
    """In a request: the function is not to run, only to say that it was reached."""

    def __init__(self) -> None:
        self.reached: Durable | None = None
        """The call was let through by everything on its way, and may become a task of this tool."""
        self.called: CallToolRequestParams | None = None
        """The call as it came to the tool, after all who may have changed it on its way."""
        self.asked: InputRequiredResult | None = None
        """What a resolver asks first, at a protocol that has no such answer."""


class Running:
    """In a worker: the function is to run, for this task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_begun = False
        """Functions that are called by the one that runs are part of it."""
        self.raised: PerdureError | None = None
        """By what it asked for something else than to end with a result or an error of the tool."""
        self.cause: BaseException | None = None
        """The exception behind a result that reports an error."""


_MARK = ("perdure/nothing", secrets.token_hex(8))
_NOTHING = CallToolResult(content=[], is_error=True, _meta=dict([_MARK]))
"""What servers are given where the function has no result: they let it pass as it is."""

Place: TypeAlias = Admission | Running

_place: ContextVar[Place | None] = ContextVar("perdure_place", default=None)


@contextmanager
def at(place: Place) -> Generator[None]:
    """Let decorated functions that are called within this block find themselves there."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def current_admission() -> Admission | None:
    place = _place.get()
    return place if isinstance(place, Admission) else None


def current_run() -> Running | None:
    place = _place.get()
    return place if isinstance(place, Running) else None


def is_nothing(result: HandlerResult) -> bool:
    """Whether this is what a function returned that has not run, and nobody has put anything in its place."""
    if isinstance(result, CallToolResult):
        meta: object = result.meta
    else:
        meta = result.get("_meta") if isinstance(result, dict) else None
    key, value = _MARK
    return isinstance(meta, Mapping) and cast("Mapping[str, object]", meta).get(key) == value


def forgiving(handler: Handler) -> Handler:
    """A low-level handler of `tools/call`. Whatever it makes of a function that has not run is nothing."""

    async def handle(request: Request, params: Any) -> HandlerResult:  # noqa: ANN401
        admission = current_admission()
        if admission is not None:
            admission.called = params
        try:
            result = await handler(request, params)
        except MCPError:
            raise
        except Exception:
            if admission is None or admission.reached is None:
                raise
            return _NOTHING
        return result if admission is None or admission.reached is None else _NOTHING

    return handle


def entry(function: Callable[..., object], durable: Durable) -> Callable[..., Awaitable[object]]:
    """What a server registers in place of the function: of the same name and parameters, less the task."""
    if not callable(function):
        raise InvalidValue(
            "function",
            f"must be a function, not a {type(function).__name__}; write @tasks.durable below the decorator "
            "that registers the tool, directly above the function",
        )
    hints = _hints(function)
    _refuse_context(hints)
    task = task_parameter(function)
    signature = _without(task, inspect.signature(function), hints)

    @wraps(function)
    async def enter(*given: object, **arguments: object) -> object:
        if given:
            arguments = signature.bind(*given, **arguments).arguments
        match _place.get():
            case Running() as running:
                with_task = arguments if task is None else {**arguments, task: running.task}
                return await _run(partial(function, **with_task), function, running)
            case Admission() as admission:
                admission.reached = durable
                return _NOTHING
            case None:
                raise not_attached(durable.name)

    enter.__name__ = durable.name
    enter.durable = durable  # pyright: ignore[reportAttributeAccessIssue]
    enter.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    enter.__annotations__ = {name: hint for name, hint in hints.items() if name != task}
    return enter


async def _run(call: Callable[[], object], function: Callable[..., object], running: Running) -> object:
    if running.is_begun:
        return await _call(call, function)
    running.is_begun = True
    try:
        return await _call(call, function)
    except PerdureError as error:
        if not is_signal(error):
            raise
        running.raised = error
        return _NOTHING


async def _call(call: Callable[[], object], function: Callable[..., object]) -> object:
    if is_coroutine_function(function):
        return await cast("Awaitable[object]", call())
    return await call_in_thread(call)


def _hints(function: Callable[..., object]) -> dict[str, object]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:  # where only type checkers import it, a Task is what perdure calls so
        return typing.get_type_hints(function, localns={"Task": Task}, include_extras=True)


def _without(
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


def _refuse_context(hints: Mapping[str, object]) -> None:
    for name, hint in hints.items():
        if name != "return" and _is_context(hint):
            raise InvalidValue(
                "function",
                f"takes a Context as {name!r}; a durable tool runs outside of any request, and again after a "
                "crash, when there is none: take a Task instead, or ask in a resolver",
            )


def _is_context(hint: object) -> bool:
    """Whether this is the Context of the official SDK, or FastMCP's, whatever it is wrapped in."""
    if isinstance(hint, type):
        return any(_NAMES_OF_CONTEXT.fullmatch(f"{each.__module__}.{each.__name__}") for each in hint.__mro__)
    return any(_is_context(part) for part in (typing.get_origin(hint), *typing.get_args(hint)) if part)


_NAMES_OF_CONTEXT = re.compile(r"(mcp|fastmcp)\..*\.Context")
