"""What can go wrong for a client, as one tree.

    PerdureError
    └── ClientTaskError
        ├── WasCancelled       the task was cancelled, so there is no result
        ├── MalformedTask      the server's answer is no task
        ├── NotDeclared        the client was built without the extension
        ├── NoTasks            the protocol that the server speaks has none
        └── CannotAnswer       at 2025-11-25 questions are answered in another way

What a server answers with an error stays the SDK's `MCPError`.
"""

from __future__ import annotations

from ...storage.errors import PerdureError


class ClientTaskError(PerdureError):
    """Something about following a task."""


class WasCancelled(ClientTaskError):
    """The task was cancelled, so there is no result."""

    def __init__(self, task_id: str) -> None:
        super().__init__("the task was cancelled")
        self.task_id = task_id


class MalformedTask(ClientTaskError):
    """The server's answer is no task."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the server's answer is no task: {reason}")


class NotDeclared(ClientTaskError):
    """The client was built without the extension, so servers do not know that it understands tasks."""

    def __init__(self) -> None:
        super().__init__("build the client with this extension: Client(..., extensions=[tasks])")


class CannotAnswer(ClientTaskError):
    """In 2025-11-25 a server asks the client itself, while it waits for the result."""

    def __init__(self) -> None:
        super().__init__("at 2025-11-25 questions are answered by the client's callbacks, within wait()")


class NoTasks(ClientTaskError):
    """The protocol that the server speaks has no tasks."""

    def __init__(self, version: str | None) -> None:
        super().__init__(f"protocol version {version} has no tasks")
