"""What a client is told when something cannot be done: each error of ours as a JSON-RPC error.

Absent, foreign and expired tasks are one answer. What only an operator can mend is logged here and named to
nobody.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from ..runtime import QueueFull
from ..storage.errors import NewerFormat, PerdureError
from ..tasks import errors
from .protocol import EXTENSION

log = logging.getLogger("perdure.mcp")

P = ParamSpec("P")
R = TypeVar("R")

_CLIENTS_FAULT = (
    errors.NotFound,
    errors.InvalidValue,
    errors.InvalidCursor,
    errors.MalformedAnswer,
    errors.IdempotencyKeyReused,
    errors.IllegalTransition,
)
_COME_BACK_LATER = (errors.QuotaExceeded, QueueFull)

ATTACH_TO_MCPSERVER = "build it with MCPServer(..., **tasks.attach())"
ATTACH_TO_FASTMCP = (
    "call attach(tasks, server), from perdure.mcp.fastmcp, with the server that you run, before it starts"
)
ATTACH_TO_LOW_LEVEL = "call tasks.install(server) before it starts"


def refusal_of(error: PerdureError) -> MCPError:
    """The JSON-RPC error that a client gets for an error of ours."""
    if isinstance(error, _CLIENTS_FAULT):
        return MCPError(INVALID_PARAMS, str(error))
    if isinstance(error, errors.AuthenticationRequired):
        return MCPError(INVALID_REQUEST, str(error))
    if isinstance(error, _COME_BACK_LATER):
        return MCPError(INTERNAL_ERROR, str(error), {"retryable": True})
    if isinstance(error, NewerFormat):
        log.warning("a request met a record of a newer version: %s", error)
        return MCPError(
            INTERNAL_ERROR, "the task was written by a newer version of the server", {"retryable": True}
        )
    if error.retryable:
        log.warning("a request met a storage that is busy: %s", error)
        return MCPError(INTERNAL_ERROR, "the server is busy; try again", {"retryable": True})
    log.error("a request failed: %s", error, exc_info=error)
    return MCPError(INTERNAL_ERROR, "Internal error")


def refusing(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Errors of ours, raised in this, become what a client is told."""

    @wraps(method)
    async def refuse(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await method(*args, **kwargs)
        except PerdureError as error:
            raise refusal_of(error) from error

    return refuse


def undeclared() -> MCPError:
    """The client did not say, with this request, that it understands tasks."""
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        "Missing required client capability",
        {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    )


def wrong_mode(tool: str, what: str) -> MCPError:
    """A call as a task of a tool that cannot be one, or the other way round."""
    return MCPError(METHOD_NOT_FOUND, f"tool {tool!r} {what}")


def wrong_caller(tool: str) -> MCPError:
    """Return the error for a tool that reached a durable function, for example one of a mounted server."""
    return MCPError(
        INTERNAL_ERROR,
        f"tool {tool!r} is not durable itself and calls a durable function; register that function as a tool "
        "of this server, or call it without its decorator",
    )


def wrong_header(header: str) -> MCPError:
    return MCPError(HEADER_MISMATCH, f"{header} header does not match the request body's 'taskId' parameter")


def unauthenticated() -> MCPError:
    return MCPError(INVALID_REQUEST, "this server serves tasks to authenticated callers only")


def not_set_up(part: str) -> MCPError:
    """Return the error for a server that was built without one of the three arguments."""
    return MCPError(INTERNAL_ERROR, f"tasks are not set up: the server lacks {part}; {ATTACH_TO_MCPSERVER}")


def not_attached(function: str) -> MCPError:
    """Return the error for a durable function that was called by a server without tasks."""
    if _is_in_fastmcp():
        return MCPError(
            INTERNAL_ERROR,
            f"tasks are not set up: the server has no tasks for {function!r}; {ATTACH_TO_FASTMCP}",
        )
    message = not_set_up("middleware=[tasks.middleware]").error.message
    return MCPError(INTERNAL_ERROR, f"{message}; with a low-level Server, {ATTACH_TO_LOW_LEVEL}")


def not_running() -> MCPError:
    """Return the error for a use of the runtime outside of the server's lifespan."""
    return MCPError(
        INTERNAL_ERROR,
        "tasks are not running: the server has not started, has stopped, or lacks lifespan=tasks.lifespan",
    )


def _is_in_fastmcp() -> bool:
    """Return whether FastMCP handles the current request. It is not imported here: it may be missing."""
    dependencies: Any = sys.modules.get("fastmcp.server.dependencies")
    if dependencies is None:
        return False
    try:
        dependencies.get_context()
    except RuntimeError:  # there is none
        return False
    return True
