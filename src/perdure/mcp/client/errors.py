"""The errors of a client that follows a task.

    PerdureError
    └── ClientTaskError
        ├── TaskWasCancelled        the task was cancelled, so it has no result
        ├── WaitTimeout             the task did not end in time; it keeps running
        ├── ConnectionLost          the server cannot be reached, and the client may not repeat the request
        ├── InvalidTaskResponse     the server's response is not a task
        ├── ExtensionNotInstalled   the client was created without the extension
        ├── TasksNotSupported       the negotiated protocol version has no tasks
        └── AnswersNotSupported     at 2025-11-25 only callbacks answer questions

Each has the id of its task in `task_id`, if there is a task. An error that the server returns stays the SDK's
`MCPError`; while the task is waited for, the error's notes name the task.
"""

from __future__ import annotations

from ...storage.errors import PerdureError


class ClientTaskError(PerdureError):
    """The base class of the errors of a client that follows a task."""

    task_id: str | None = None


class TaskWasCancelled(ClientTaskError):
    """Raised when the task was cancelled, so that it has no result."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id} was cancelled")
        self.task_id = task_id


class WaitTimeout(ClientTaskError, TimeoutError):
    """Raised when a task did not end in time. The task keeps running, and can be waited for again."""

    retryable = True

    def __init__(self, seconds: float, task_id: str | None) -> None:
        what = "the call was not answered" if task_id is None else f"task {task_id} did not end"
        super().__init__(f"{what} within {seconds:g} seconds")
        self.task_id = task_id


class ConnectionLost(ClientTaskError):
    """Raised when the server cannot be reached.

    `was_sent` is False if no tool was called, so that the call can be repeated safely.
    """

    retryable = True

    def __init__(self, reason: str, *, was_sent: bool = True) -> None:
        super().__init__(f"the connection to the server is lost: {reason}")
        self.reason = reason
        self.was_sent = was_sent


class InvalidTaskResponse(ClientTaskError):
    """Raised when the server's response, or a saved text, is not a task."""

    def __init__(self, reason: str, task_id: str | None = None) -> None:
        super().__init__(f"this is not a task: {reason}")
        self.task_id = task_id


class ExtensionNotInstalled(ClientTaskError):
    """Raised when the client was created without the extension, so that it does not declare tasks."""

    def __init__(self) -> None:
        super().__init__("create the client with this extension: Client(..., extensions=[tasks])")


class TasksNotSupported(ClientTaskError):
    """Raised when the negotiated protocol version has no tasks."""

    def __init__(self, version: str | None, task_id: str) -> None:
        super().__init__(f"protocol version {version} has no tasks")
        self.task_id = task_id


class AnswersNotSupported(ClientTaskError):
    """Raised at 2025-11-25, where a server asks the client itself, while it waits for the result."""

    def __init__(self, task_id: str) -> None:
        super().__init__("at 2025-11-25 the callbacks of the client answer questions, during wait()")
        self.task_id = task_id
