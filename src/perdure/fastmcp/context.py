"""FastMCP's own `Context` and `Progress` for a tool that runs in a task, outside of any request.

The tool runs as FastMCP runs it: dependencies are resolved and closed around its body. Only the session under
the context and the progress are ours.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, wraps
from typing import Any, cast

from fastmcp import Context, FastMCP
from fastmcp.dependencies import Dependency, Depends, Progress
from fastmcp.server import elicitation
from fastmcp.server.dependencies import InMemoryProgress, bind_request_context, get_context
from fastmcp.utilities.async_utils import is_coroutine_function
from fastmcp.utilities.types import get_function_type_hints
from mcp.server.context import ServerRequestContext
from pydantic import RootModel
from uncalled_for import get_dependency_parameters

from ..mcp.wire import JsonObject
from ..runtime import Task, current_task

AnyFunction = Callable[..., Any]

MAX_CACHED_FUNCTIONS = 5000
"""As many as FastMCP keeps: it prepares a function once, and would prepare a new copy at each run."""

_DEPENDS = type(cast("object", Depends(lambda: None)))


class TaskCreated(RootModel[JsonObject]):
    """The answer to a call that became a task, as middleware of FastMCP sees it."""


class TaskContext(Context):
    """The context of a tool that runs in a task."""

    def __init__(self, server: FastMCP[Any], request: ServerRequestContext[Any, Any], task: Task) -> None:
        super().__init__(server, request.session, task_id=task.id, origin_request_id=str(request.request_id))
        self._request = request
        self.has_started = False
        """Whether the body of the tool was reached. Before it, dependencies are resolved."""

    @asynccontextmanager
    async def entered(self) -> AsyncGenerator[None]:
        """Make this the current context."""
        with bind_request_context(self._request):
            await super().__aenter__()
            try:
                yield
            finally:
                await super().__aexit__(None, None, None)  # pyright: ignore[reportUnknownMemberType]

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: `CurrentContext()` leaves the context of a task, before other dependencies end."""

    async def elicit(  # pyright: ignore[reportIncompatibleMethodOverride], which has overloads
        self,
        message: str,
        response_type: Any,  # noqa: ANN401
        *,
        response_title: str | None = None,
        response_description: str | None = None,
    ) -> Any:  # noqa: ANN401
        """Ask the user for a form. The question and its answer are stored with the task."""
        config = elicitation.parse_elicit_response_type(
            response_type, response_title=response_title, response_description=response_description
        )
        result = await self.session.elicit(message, config.schema, self.request_id)
        if result.action == "accept":
            return elicitation.handle_elicit_accept(config, result.content)
        is_declined = result.action == "decline"
        return elicitation.DeclinedElicitation() if is_declined else elicitation.CancelledElicitation()


class TaskProgress(InMemoryProgress, Progress):
    """The progress of a task."""

    async def __aenter__(self) -> TaskProgress:
        return TaskProgress()  # the one in the signature of the tool is shared by all of its calls

    async def set_total(self, total: int) -> None:
        await super().set_total(total)
        await self._report()

    async def increment(self, amount: int = 1) -> None:
        await super().increment(amount)
        await self._report()

    async def set_message(self, message: str | None) -> None:
        await super().set_message(message)
        await self._report()

    async def _report(self) -> None:
        await current_task().report_progress(self.current or 0, self.total, self.message)


@lru_cache(maxsize=MAX_CACHED_FUNCTIONS)
def for_task(function: AnyFunction) -> AnyFunction:
    """Return the function of a tool for its runs in tasks.

    It notes that it was reached, and its `Progress` is that of the task, also in a `Depends`.
    """
    if is_coroutine_function(function):

        @wraps(function)
        async def run(*args: object, **kwargs: object) -> object:
            _note_start()
            return await function(*args, **kwargs)

        body: AnyFunction = run
    else:

        @wraps(function)
        def run_in_thread(*args: object, **kwargs: object) -> object:
            _note_start()
            return function(*args, **kwargs)

        body = run_in_thread
    return with_signature(body, function, _replaced(get_dependency_parameters(function)))


def _note_start() -> None:
    cast("TaskContext", get_context()).has_started = True


@lru_cache(maxsize=MAX_CACHED_FUNCTIONS)
def _factory_for_task(factory: AnyFunction) -> AnyFunction:
    """Return the function of a `Depends`, with the progress of the task in place of `Progress`."""
    replaced = _replaced(get_dependency_parameters(factory))
    if not replaced:
        return factory

    @wraps(factory)
    def call(*args: object, **kwargs: object) -> object:
        return factory(*args, **kwargs)

    return with_signature(call, factory, replaced)


def _replaced(dependencies: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the dependencies that are others in a task."""
    found = {name: _dependency_for_task(each) for name, each in dependencies.items()}
    return {name: each for name, each in found.items() if each is not dependencies[name]}


def _dependency_for_task(dependency: Any) -> Any:  # noqa: ANN401
    if type(dependency) is Progress:
        return TaskProgress()
    if not isinstance(dependency, _DEPENDS):
        return dependency
    depends = cast("Any", dependency)
    factory = _factory_for_task(depends.factory)
    bindings = _replaced(
        {name: each for name, each in depends.bindings.items() if isinstance(each, Dependency)}
    )
    if factory is depends.factory and not bindings:
        return dependency
    changed = copy.copy(depends)
    changed.factory, changed.bindings = factory, {**depends.bindings, **bindings}
    return changed


def with_signature(
    wrapper: AnyFunction, function: AnyFunction, dependencies: Mapping[str, object] = {}
) -> AnyFunction:
    """Give a wrapper the signature of its function, with these dependencies in place of the function's."""
    signature, described = inspect.signature(function), cast("Any", wrapper)
    parameters = dict(signature.parameters)
    for name, each in dependencies.items():
        parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each)
    ordered = sorted(parameters.values(), key=lambda each: each.kind)
    described.__signature__ = signature.replace(parameters=ordered)
    hints: dict[str, Any] = dict(getattr(function, "__annotations__", {}))
    with suppress(Exception):  # FastMCP too takes them as they are written if they cannot be resolved
        hints = get_function_type_hints(function)
    described.__annotations__ = {name: hint for name, hint in hints.items() if name not in dependencies}
    return wrapper
