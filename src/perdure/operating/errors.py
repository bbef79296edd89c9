"""The error classes of the operator API. The API also raises the errors of tasks and storages.

PerdureError
├── MaintenanceError     a storage cannot be copied to itself
└── TaskError
    ├── AmbiguousId      several task ids start with the given characters
    ├── IdTooShort       a task id, or part of it, is too short or invalid
    └── NoOpenQuestion   the task has no open question with this key
"""

from __future__ import annotations

from collections.abc import Iterable

from ..storage.errors import PerdureError
from ..tasks.errors import TaskError


class MaintenanceError(PerdureError):
    """Raised when the source and the target of a copy are the same storage."""


class AmbiguousId(TaskError):
    """Raised when several task ids start with the given characters."""

    def __init__(self, prefix: str, found: Iterable[str]) -> None:
        self.prefix = prefix
        self.found = tuple(found)
        super().__init__(f"id prefix {prefix} is ambiguous ({', '.join(self.found)}); use more characters")


class IdTooShort(TaskError):
    """Raised when a task id, or part of it, is too short to search for, or contains invalid characters."""

    def __init__(self, min_length: int) -> None:
        super().__init__(f"invalid task id; use at least {min_length} characters, only letters and digits")
        self.min_length = min_length


class NoOpenQuestion(TaskError):
    """Raised when the task has no open question with this key."""

    def __init__(self, key: str, outstanding: Iterable[str]) -> None:
        self.key = key
        self.outstanding = tuple(outstanding)
        names = ", ".join(repr(each) for each in self.outstanding)
        hint = f"its open questions are {names}" if names else "no question is open"
        super().__init__(f"the task has no open question {key!r}; {hint}")
