"""The errors that the author of a server or a client sees, and the JSON-RPC errors that a server sends.

    PerdureError
    ├── RunError
    │   └── NotDurable              a durable function was called outside of a task
    └── ClientTaskError
        ├── TaskWasCancelled        the task was cancelled, so it has no result
        ├── WaitTimeout             the task did not end in time
        ├── ConnectionLost          the server cannot be reached, and the client may not repeat the request
        ├── InvalidTaskResponse     the server's response is not a task
        ├── ExtensionNotInstalled   the client was created without the extension
        ├── TasksNotSupported       the negotiated protocol version has no tasks
        └── AnswersNotSupported     at 2025-11-25 only callbacks answer questions

A ClientTaskError has the id of its task in `task_id`, if there is a task. An error that the server returns is
raised as the SDK's `MCPError`. If it is raised while a client waits for a task, its notes name the task.

A server sends the same error for a task that does not exist, has expired or belongs to another caller. An
error that only an operator can repair is logged here, and clients receive no details of it.
"""

from __future__ import annotations

import logging

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ErrorData,
)

from ..runtime import ClientCannotAnswer, QueueFull
from ..runtime.errors import RunError
from ..storage.errors import NewerFormat, NotReadableHere, PerdureError
from ..tasks import errors
from .wire import EXTENSION, JsonObject, client_capabilities

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
    "import TasksExtension from perdure.fastmcp, call mcp.add_extension(TasksExtension(url)) on the server "
    "that you run, and declare tools with @mcp.tool(task=True)"
)
ATTACH_TO_LOW_LEVEL = "call tasks.install(server) before it starts"


def to_mcp_error(error: PerdureError) -> MCPError:
    """Return the JSON-RPC error that a client receives for an error of perdure."""
    if isinstance(error, _CLIENT_ERRORS):
        return MCPError(INVALID_PARAMS, str(error))
    if isinstance(error, errors.AuthenticationRequired):
        return MCPError(INVALID_REQUEST, str(error))
    if isinstance(error, ClientCannotAnswer):
        return cannot_answer(error)
    if isinstance(error, _BUSY_ERRORS):
        return retryable(str(error))
    if isinstance(error, NewerFormat):
        log.warning("a request needs a record that this version of perdure cannot read: %s", error)
        return retryable("the task was written by a newer version of the server; try again later")
    if isinstance(error, NotReadableHere):
        log.error("a request needs a task that this process cannot read: %s", error)
        return retryable("this server cannot read the task at the moment; try again later")
    if error.retryable:
        log.warning("a request failed, but may succeed if the client sends it again: %s", error)
        return retryable("the server is busy; try again")
    log.error("a request failed: %s", error, exc_info=error)
    return MCPError(INTERNAL_ERROR, "Internal error")


def retryable(message: str) -> MCPError:
    """Return the error for a request that a client may send again later."""
    return MCPError(INTERNAL_ERROR, message, {"retryable": True})


def missing_capability() -> MCPError:
    """Return the error for a request that does not declare the tasks extension."""
    required: JsonObject = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "Missing required client capability", required)


def cannot_answer(error: ClientCannotAnswer) -> MCPError:
    """Return the error for a question that the client did not declare it can answer."""
    required = {"requiredCapabilities": client_capabilities([error.capability])}
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, str(error), required)


def wrong_task_mode(tool: str, what: str) -> MCPError:
    """Return the error for a call that requests a task but must not, or does not request one but must.

    `what` completes the message, which starts with the name of the tool.
    """
    return MCPError(METHOD_NOT_FOUND, f"tool {tool!r} {what}")


def not_attached(part: str) -> str:
    """Return the error message for a server that was created without a part of `tasks.attach()`."""
    return f"tasks are not set up: the server lacks {part}; {ATTACH_TO_MCPSERVER}"


class NotDurable(RunError, MCPError):
    """Raised when a durable function is called outside of a task.

    It is also an MCPError, because the SDK does not show clients the text of other exceptions.
    """

    def __init__(self, function: str) -> None:
        reason = (
            f"{function!r} is durable and runs only as a task. If a client called it, the server has no "
            f"tasks: {ATTACH_TO_MCPSERVER}; with a low-level Server, {ATTACH_TO_LOW_LEVEL}; with FastMCP, "
            f"{ATTACH_TO_FASTMCP}, without @tasks.durable. To start a task from other code, use "
            f"tasks.runtime.submit({function!r}, arguments); to call the function itself, without a task, "
            f"use {function}.__wrapped__(...)"
        )
        PerdureError.__init__(self, reason)
        self.error = ErrorData(code=INTERNAL_ERROR, message=reason)

    def __str__(self) -> str:
        return str(self.args[0])


def not_running() -> MCPError:
    """Return the error for a use of the runtime outside of the server's lifespan."""
    return MCPError(
        INTERNAL_ERROR,
        "tasks cannot run: the server has not started, or has stopped; if this server runs on its own and is "
        "also mounted in another server, start this server first",
    )


# Errors of clients


class ClientTaskError(PerdureError):
    """The base class of the errors of a client that follows a task."""

    def __init__(self, reason: str, task_id: str | None = None) -> None:
        super().__init__(reason)
        self.task_id = task_id


class TaskWasCancelled(ClientTaskError):
    """Raised when the task was cancelled, so that it has no result."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id} was cancelled", task_id)


class WaitTimeout(ClientTaskError, TimeoutError):
    """Raised when a task did not end in time. `ClientTask.wait` can be called again for the same task."""

    retryable = True

    def __init__(self, seconds: float, task_id: str | None) -> None:
        if task_id is None:
            message = f"the call was not answered within {seconds:g} seconds"
        else:
            message = f"stopped waiting for task {task_id}, which did not end within {seconds:g} seconds"
        super().__init__(message, task_id)


class ConnectionLost(ClientTaskError):
    """Raised when the server cannot be reached.

    `was_sent` is False if no tool call was sent, so that the call can be repeated safely.
    """

    retryable = True

    def __init__(self, reason: str, *, was_sent: bool = True) -> None:
        super().__init__(f"the connection to the server failed: {reason}")
        self.reason = reason
        self.was_sent = was_sent


class InvalidTaskResponse(ClientTaskError):
    """Raised when the server's response, or a saved text, is not a task."""

    def __init__(self, reason: str, task_id: str | None = None) -> None:
        super().__init__(f"invalid task: {reason}", task_id)


class ExtensionNotInstalled(ClientTaskError):
    """Raised when the client was created without the extension, so that it does not declare tasks."""

    def __init__(self) -> None:
        super().__init__(
            "the client was created without the tasks extension; "
            "use mcp.client.Client(..., extensions=[tasks])"
        )


class TasksNotSupported(ClientTaskError):
    """Raised when the negotiated protocol version does not support tasks."""

    def __init__(self, version: str | None, task_id: str) -> None:
        super().__init__(
            f"the connection uses protocol version {version}, which does not support tasks; "
            "use 2025-11-25 or 2026-07-28",
            task_id,
        )


class AnswersNotSupported(ClientTaskError):
    """Raised by `answer` at 2025-11-25, where only the callbacks of a waiting client answer questions."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            "answer() is not supported with protocol version 2025-11-25; the callbacks of the client answer "
            "questions during wait()",
            task_id,
        )
