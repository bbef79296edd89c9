"""What can go wrong with a task, as one tree.

    PerdureError
    └── TaskError
        ├── NotFound                   no such task for this owner: absent, foreign or expired alike
        ├── AlreadyExists              create met a task of the same id
        ├── ConcurrentModification     somebody wrote in between (retryable)
        ├── ClaimLost                  the worker no longer holds the task; what it wrote was dropped
        ├── IllegalTransition          the lifecycle has no such move
        │   └── TerminalTask           the task has ended, and nothing about it moves any more
        ├── InvalidValue               a field that cannot be what it is
        │   └── LimitExceeded          a field larger than allowed
        ├── QuotaExceeded              too many active tasks (retryable: others end)
        ├── IdempotencyKeyReused       the key was used for another call
        ├── InvalidCursor              not a cursor of this listing
        ├── AuthenticationRequired     this store serves only callers that it can tell apart
        ├── InputKeyReused             a task asks under each key once
        ├── MalformedAnswer            an answer that is not of the kind that was asked
        ├── WrongVariableType          a variable of another type than the getter's
        └── CorruptRecord              what is stored is not a task

The storage's own errors (`perdure.storage.errors`) pass through as they are. NewerFormat is one of them: a
newer version of perdure wrote the task.
"""

from __future__ import annotations

from typing import Literal

from ..storage.errors import PerdureError


class TaskError(PerdureError):
    """Something that cannot be done with a task. Nothing was changed."""


class NotFound(TaskError):
    """No such task for this owner. The text is one for all reasons, and names no id."""

    def __init__(self) -> None:
        super().__init__("Task not found")


class AlreadyExists(TaskError):
    """Create met a task of the same id, and left it alone."""

    def __init__(self) -> None:
        super().__init__("a task with this id exists already")


class ConcurrentModification(TaskError):
    """Somebody wrote the task after it was read here. Read it again and decide anew, or use `update`."""

    retryable = True

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"the task was read at version {expected} and is now at version {actual}")
        self.expected = expected
        self.actual = actual


class ClaimLost(TaskError):
    """The worker's lease ran out and was taken, or the task was ended over its head. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("this worker no longer holds the task; what it meant to write was dropped")


class IllegalTransition(TaskError):
    """The lifecycle has no such move."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(f"a task cannot go from {source} to {target}")
        self.source = source
        self.target = target


class TerminalTask(IllegalTransition):
    """The task has ended: status, outcome, variables and inputs are final."""

    def __init__(self, source: str, target: str) -> None:
        super().__init__(source, target)
        self.args = (f"the task is {source}, which is final",)


class InvalidValue(TaskError):
    """A field that cannot be what it is."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class LimitExceeded(InvalidValue):
    """A field larger than allowed."""

    def __init__(self, field: str, limit: int, actual: int, unit: str = "bytes") -> None:
        super().__init__(field, f"{actual} {unit}, at most {limit} allowed")
        self.limit = limit
        self.actual = actual
        self.unit = unit


class QuotaExceeded(TaskError):
    """Too many active tasks, of this owner or altogether."""

    retryable = True

    def __init__(self, scope: Literal["owner", "server"], limit: int) -> None:
        whose = "you have" if scope == "owner" else "this server has"
        hint = "wait for one to finish, or cancel one"
        super().__init__(f"{whose} {limit} active tasks, which is the maximum; {hint}")
        self.scope = scope
        self.limit = limit


class IdempotencyKeyReused(TaskError):
    """The idempotency key already stands for a call with another method or other parameters."""

    def __init__(self) -> None:
        super().__init__("this idempotency key was used for another call; choose a new one")


class InvalidCursor(TaskError):
    """Not a cursor of this listing: forged, damaged, or made for another owner or filter."""

    def __init__(self) -> None:
        super().__init__("invalid cursor; begin the listing anew")


class AuthenticationRequired(TaskError):
    """The store serves only callers that it can tell apart."""

    def __init__(self) -> None:
        super().__init__("anonymous callers are not served here; authenticate first")


class InputKeyReused(TaskError):
    """The task asked something else under this key before."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the task has already asked another question under the key {key!r}; "
            "give each question a key of its own"
        )
        self.key = key


class MalformedAnswer(TaskError):
    """An answer that is not of the kind that was asked."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the answer to {key!r} is malformed: {reason}")
        self.key = key
        self.reason = reason


class WrongVariableType(TaskError):
    """A variable of another type than the getter's."""

    def __init__(self, name: str, expected: str, actual: str) -> None:
        super().__init__(f"the variable {name!r} is of type {actual}, not {expected}")
        self.name = name
        self.expected = expected
        self.actual = actual


class CorruptRecord(TaskError):
    """What is stored under a task's address is not a task."""

    def __init__(self, task_id: str, reason: str) -> None:
        super().__init__(f"the record of task {task_id} cannot be read: {reason}")
        self.task_id = task_id
        self.reason = reason
