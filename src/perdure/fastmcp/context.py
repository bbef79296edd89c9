"""The `Context` and the `Progress` of FastMCP for a tool that runs in a task, outside of any request."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial, wraps
from inspect import Parameter
from typing import Any, cast

from fastmcp import Context, FastMCP
from fastmcp.dependencies import Depends, Progress, Shared
from fastmcp.server import elicitation
from fastmcp.server.dependencies import InMemoryProgress, bind_request_context
from mcp.server.context import ServerRequestContext
from mcp_types import ServerNotification
from pydantic import RootModel
from uncalled_for import get_dependency_parameters

from ..mcp.wire import JsonObject
from ..runtime import Task, current_task
from ..tasks import LogLevel
from ..tasks.task_log import LOG_LEVELS

log = logging.getLogger("perdure.fastmcp")

AnyFunction = Callable[..., Any]

MAX_CACHED_FUNCTIONS = 5000
"""The size of FastMCP's cache of prepared functions, and of perdure's caches of functions to prepare."""

_DEPENDS = type(cast("object", Depends(lambda: None))), type(cast("object", Shared(lambda: None)))


class TaskState(RootModel[JsonObject]):
    """The result that middleware receives for a call that is answered with a task. It must not be cached."""


class TaskContext(Context):
    """The FastMCP context of a tool that runs in a task."""

    def __init__(self, server: FastMCP[Any], request: ServerRequestContext[Any, Any], task: Task) -> None:
        super().__init__(server, request.session, task_id=task.id, origin_request_id=str(request.request_id))
        self._request, self._task = request, task

    @asynccontextmanager
    async def entered(self) -> AsyncGenerator[None]:
        """Make this the current context until the `async with` block ends."""
        with bind_request_context(self._request):
            await super().__aenter__()
            try:
                yield
            finally:
                await super().__aexit__(None, None, None)  # pyright: ignore[reportUnknownMemberType]

    async def __aexit__(self, *_: object) -> None:
        """Do nothing. `CurrentContext()` exits the context while other dependencies may still need it."""

    async def log(
        self,
        message: str,
        level: LogLevel | None = None,
        logger_name: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a message with the task. FastMCP would write it to the log of the server too."""
        level, minimum = level or "info", self.fastmcp.client_log_level
        if not self._task.is_encrypted:
            await super().log(message, level, logger_name, extra)
        elif minimum is None or LOG_LEVELS.index(level) >= LOG_LEVELS.index(minimum):
            await self._task.log(level, {"msg": message, "extra": extra}, logger=logger_name)

    async def send_notification(self, notification: ServerNotification) -> None:
        """Send a notification. Drop it if it is about a changed list or resource: there is no connection."""
        if notification.method.endswith(("/list_changed", "/updated")):
            log.info("%s is not sent, because task %s has no connection", notification.method, self._task.id)
        else:
            await super().send_notification(notification)

    async def elicit(  # pyright: ignore[reportIncompatibleMethodOverride], which has overloads
        self, message: str, response_type: object, **titles: str | None
    ) -> Any:  # noqa: ANN401
        """Ask the user to fill in a form. The question and its answer are stored with the task."""
        config = elicitation.parse_elicit_response_type(response_type, **titles)
        result = await self.session.elicit(message, config.schema, self.request_id)
        if result.action == "accept":
            return elicitation.handle_elicit_accept(config, result.content)
        is_declined = result.action == "decline"
        return elicitation.DeclinedElicitation() if is_declined else elicitation.CancelledElicitation()


class TaskProgress(InMemoryProgress, Progress):
    """A FastMCP `Progress` that is stored as the progress of the task."""

    async def __aenter__(self) -> TaskProgress:
        return TaskProgress()  # all calls of the tool share the object in its signature

    async def set_total(self, total: int) -> None:
        await self._report(super().set_total(total))

    async def increment(self, amount: int = 1) -> None:
        await self._report(super().increment(amount))

    async def set_message(self, message: str | None) -> None:
        await self._report(super().set_message(message))

    async def _report(self, change: Awaitable[None]) -> None:
        await change
        await current_task().report_progress(self.current or 0, self.total, self.message)


@lru_cache(maxsize=MAX_CACHED_FUNCTIONS)
def for_task(function: AnyFunction) -> AnyFunction:
    """Return the function of a tool or a `Depends`, with a `TaskProgress` for each `Progress` parameter."""
    replaced = _replaced(get_dependency_parameters(function))
    if not replaced:
        return function
    adapted: Any = wraps(function)(partial(function))  # FastMCP still sees whether it is a coroutine function
    signature = inspect.signature(function)
    kept = [each for name, each in signature.parameters.items() if name not in replaced]
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=each) for name, each in replaced.items()]
    adapted.__signature__ = signature.replace(parameters=sorted([*kept, *added], key=lambda each: each.kind))
    hints: Mapping[str, Any] = getattr(function, "__annotations__", {})
    adapted.__annotations__ = {name: hint for name, hint in hints.items() if name not in replaced}
    return cast("AnyFunction", adapted)


def _replaced(dependencies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dependencies that must be replaced in a task, with their replacements."""
    found = {name: _dependency_for_task(each) for name, each in dependencies.items()}
    return {name: each for name, each in found.items() if each is not dependencies[name]}


def _dependency_for_task(dependency: Any) -> Any:  # noqa: ANN401
    if isinstance(dependency, Progress) and type(dependency).__aenter__ is Progress.__aenter__:
        return TaskProgress()
    if not isinstance(dependency, _DEPENDS):
        return dependency
    depends = cast("Any", dependency)
    given = getattr(depends, "bindings", {})  # `Shared` has none
    factory, bindings = for_task(depends.factory), _replaced(given)
    if factory is depends.factory and not bindings:
        return dependency
    changed = copy.copy(depends)
    changed.factory, changed.bindings = factory, {**given, **bindings}
    return changed
