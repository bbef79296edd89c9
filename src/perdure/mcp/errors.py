"""The JSON-RPC errors of task requests.

Absent, foreign and expired tasks are one answer. What only an operator can repair is logged here, and no
client sees it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)

from ..runtime import ClientCannotAnswer, QueueFull
from ..storage.errors import NewerFormat, NotReadableHere, PerdureError
from ..tasks import errors
from .wire import EXTENSION, required_capability

log = logging.getLogger("perdure.mcp")

_CLIENT_ERRORS = (
    errors.NotFound,
    errors.InvalidValue,
    errors.InvalidCursor,
    errors.MalformedAnswer,
    errors.IdempotencyKeyReused,
    errors.IllegalTransition,
)
_BUSY_ERRORS = (errors.QuotaExceeded, QueueFull)

ATTACH_TO_MCPSERVER = "build it with MCPServer(..., **tasks.attach())"
ATTACH_TO_FASTMCP = (
    "call mcp.add_extension(TasksExtension(url)), from perdure.fastmcp, on the server that you run, and "
    "declare tools with @mcp.tool(task=True)"
)
ATTACH_TO_LOW_LEVEL = "call tasks.install(server) before it starts"


def to_mcp_error(error: PerdureError) -> MCPError:
    """Return the JSON-RPC error that a client receives for an error of ours."""
    if isinstance(error, _CLIENT_ERRORS):
        return MCPError(INVALID_PARAMS, str(error))
    if isinstance(error, errors.AuthenticationRequired):
        return MCPError(INVALID_REQUEST, str(error))
    if isinstance(error, ClientCannotAnswer):
        return cannot_answer(error)
    if isinstance(error, _BUSY_ERRORS):
        return MCPError(INTERNAL_ERROR, str(error), {"retryable": True})
    if isinstance(error, NewerFormat):
        log.warning("a request met a record of a newer version: %s", error)
        return MCPError(
            INTERNAL_ERROR, "the task was written by a newer version of the server", {"retryable": True}
        )
    if isinstance(error, NotReadableHere):
        log.error("a request met a task that this process cannot read: %s", error)
        return MCPError(
            INTERNAL_ERROR, "the task cannot be read by this server at the moment", {"retryable": True}
        )
    if error.retryable:
        log.warning("a request met a storage that is busy: %s", error)
        return MCPError(INTERNAL_ERROR, "the server is busy; try again", {"retryable": True})
    log.error("a request failed: %s", error, exc_info=error)
    return MCPError(INTERNAL_ERROR, "Internal error")


def missing_capability() -> MCPError:
    """Return the error for a request that does not declare the tasks extension."""
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        "Missing required client capability",
        {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    )


def cannot_answer(error: ClientCannotAnswer) -> MCPError:
    """Return the error for a question that the client did not declare to support."""
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, str(error), required_capability(error.capability))


def wrong_task_mode(tool: str, what: str) -> MCPError:
    """Return the error for a call as a task of a tool that cannot be one, or the other way round."""
    return MCPError(METHOD_NOT_FOUND, f"tool {tool!r} {what}")


def header_mismatch(header: str) -> MCPError:
    return MCPError(HEADER_MISMATCH, f"{header} header does not match the request body's 'taskId' parameter")


def authentication_required() -> MCPError:
    return MCPError(INVALID_REQUEST, "this server serves tasks to authenticated callers only")


def not_attached(part: str) -> MCPError:
    """Return the error for a server that was built without a part of `tasks.attach()`."""
    return MCPError(INTERNAL_ERROR, f"tasks are not set up: the server lacks {part}; {ATTACH_TO_MCPSERVER}")


def not_a_task(function: str) -> MCPError:
    """Return the error for a durable function that was called outside of a task."""
    if _is_in_fastmcp():
        return MCPError(
            INTERNAL_ERROR,
            f"{function!r} is made durable by @tasks.durable, which is for the official SDK; with FastMCP, "
            f"{ATTACH_TO_FASTMCP}",
        )
    return MCPError(
        INTERNAL_ERROR,
        f"{function!r} is durable and runs only as a task. If a client called it, the server has no tasks: "
        f"{ATTACH_TO_MCPSERVER}; with a low-level Server, {ATTACH_TO_LOW_LEVEL}. To start a task from other "
        f"code, use tasks.runtime.submit({function!r}, arguments); to call the function itself, without a "
        f"task, use {function}.__wrapped__(...)",
    )


def not_running() -> MCPError:
    """Return the error for a use of the runtime outside of the server's lifespan."""
    return MCPError(
        INTERNAL_ERROR,
        "tasks are not running: the server has not started, or has stopped",
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
