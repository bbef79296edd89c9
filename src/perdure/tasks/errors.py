"""The error classes for tasks.

    PerdureError
    └── TaskError
        ├── NotFound                   the owner has no task with this id
        ├── AlreadyExists              a task with this id already exists
        ├── ConcurrentModification     the task has changed since it was read (retryable)
        ├── ClaimLost                  the worker's claim on the task was lost; nothing was written
        ├── IllegalTransition          the lifecycle does not allow this change of status
        │   └── TerminalTask           the task has finished and can no longer change
        ├── InvalidValue               a field has an invalid value
        │   └── LimitExceeded          a value exceeds a limit
        ├── QuotaExceeded              too many tasks are active (retryable)
        ├── IdempotencyKeyReused       the idempotency key was already used for a different call
        ├── InvalidCursor              the cursor is invalid for this list
        ├── AuthenticationRequired     anonymous access is disabled
        ├── QuestionChanged            the task has already used this input key
        ├── MalformedAnswer            an answer does not fit its question
        ├── WrongVariableType          a variable does not have the requested type
        └── CorruptRecord              a stored record is damaged

A call can also raise the storage errors of `perdure.storage.errors`, for example NewerFormat if a newer
version of perdure wrote the task. One storage error is defined here: KeyMissing, which is raised if this
process does not have the key to encrypt or decrypt the task.
"""

from __future__ import annotations

from typing import Literal

from ..storage.errors import NotReadableHere, PerdureError


class TaskError(PerdureError):
    """The base class of task errors. An operation that raises a TaskError has changed nothing."""


class NotFound(TaskError):
    """Raised when the owner has no task with this id, even if another owner has one."""

    def __init__(self) -> None:
        super().__init__("Task not found")


class AlreadyExists(TaskError):
    """Raised when the id of a new task is already in use."""

    def __init__(self) -> None:
        super().__init__("a task with this id already exists")


class ConcurrentModification(TaskError):
    """Raised when a task has changed since it was read.

    Read it again and retry, or use `TaskStore.update`.
    """

    retryable = True

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"the task has changed from version {expected} to {actual}; read it again and retry")
        self.expected = expected
        self.actual = actual


class ClaimLost(TaskError):
    """Raised when a worker writes to a task after losing its claim, or after another caller ended the task.

    A claim is a worker's right to run a task. Nothing was written.
    """

    def __init__(self) -> None:
        super().__init__("this worker's claim on the task was lost; nothing was written")


class IllegalTransition(TaskError):
    """Raised when the lifecycle does not allow a change of status."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(f"a task cannot change from {source} to {target}")
        self.source = source
        self.target = target


class TerminalTask(IllegalTransition):
    """Raised when an edit would change a task that has finished."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(source, target)
        self.args = (f"the task is {source} and can no longer change",)


class InvalidValue(TaskError):
    """Raised when a field has an invalid value."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class LimitExceeded(InvalidValue):
    """Raised when a value exceeds a limit, such as a number of bytes, characters or levels of nesting."""

    def __init__(self, field: str, limit: int, actual: int, unit: str = "bytes") -> None:
        super().__init__(field, f"{actual} {unit} exceed the limit of {limit}")
        self.limit = limit
        self.actual = actual
        self.unit = unit


class QuotaExceeded(TaskError):
    """Raised when the owner or the whole storage already has the maximum number of active tasks."""

    retryable = True

    def __init__(self, scope: Literal["owner", "server"], limit: int) -> None:
        whose = "you have" if scope == "owner" else "this server has"
        hint = "wait for one to finish, or cancel one"
        super().__init__(f"{whose} {limit} active tasks, which is the maximum; {hint}")
        self.scope = scope
        self.limit = limit


class IdempotencyKeyReused(TaskError):
    """Raised when an idempotency key was already used with a different method or different parameters."""

    def __init__(self) -> None:
        super().__init__("this idempotency key was already used for a different call; use a new key")


class InvalidCursor(TaskError):
    """Raised when a cursor is damaged or forged, or belongs to a list with another owner, filter or order."""

    def __init__(self) -> None:
        super().__init__("invalid cursor; omit the cursor to list from the first page")


class AuthenticationRequired(TaskError):
    """Raised when a caller is anonymous and the store does not accept anonymous callers."""

    def __init__(self) -> None:
        super().__init__("anonymous access is disabled; authenticate first")


class QuestionChanged(TaskError):
    """Raised when a task asks a question with a key that it has already used."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the task has already used the input key {key!r} for another question; use a different key"
        )
        self.key = key


class MalformedAnswer(TaskError):
    """Raised when an answer has the wrong type for its question, or does not match the schema of its form."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the answer to {key!r} is malformed: {reason}")
        self.key = key
        self.reason = reason

    def without_values(self) -> MalformedAnswer:
        """Return a copy whose message does not quote the answer. The MCP SDK includes messages in traces."""
        reason = "it does not match its question (the reason is not shown, because the task is encrypted)"
        return MalformedAnswer(self.key, reason)


class WrongVariableType(TaskError):
    """Raised when a variable does not have the requested type."""

    def __init__(self, name: str, expected: str, actual: str) -> None:
        super().__init__(f"the value of {name!r} has type {actual}, not {expected}")
        self.name = name
        self.expected = expected
        self.actual = actual


class CorruptRecord(TaskError):
    """Raised when a stored record is damaged and cannot be decoded."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the stored record {key} is damaged and cannot be read: {reason}")
        self.key = key
        """The key of the record. The key of a task's record is the task id."""
        self.reason = reason


class KeyMissing(NotReadableHere):
    """Raised when this process lacks the key to encrypt or decrypt a task. Nothing was written."""

    def __init__(self, task_id: str, key_id: str = "") -> None:
        problem = (
            f"is encrypted with key {key_id}, which this process does not have"
            if key_id
            else "must be encrypted, but this process has no key"
        )
        remedy = "set PERDURE_ENCRYPTION_KEY to the same keys in all processes"
        super().__init__(task_id, f"task {task_id} {problem}; {remedy}")
        self.key_id = key_id
