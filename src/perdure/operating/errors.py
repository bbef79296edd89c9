"""What can be wrong with what an operator asks for; the rest is told by the errors of tasks and storage.

PerdureError
└── TaskError
    ├── AmbiguousId      several tasks begin with these letters
    ├── TooShort         so few letters of an id that they could be anybody's
    └── NotAsked         the task has no open question under this key
"""

from __future__ import annotations

from collections.abc import Iterable

from ..tasks.errors import TaskError


class AmbiguousId(TaskError):
    """Several tasks begin with these letters."""

    def __init__(self, prefix: str, found: Iterable[str]) -> None:
        self.prefix = prefix
        self.found = tuple(found)
        super().__init__(f"{' and '.join(self.found)} both begin with {prefix}; give more of the id")


class TooShort(TaskError):
    """So few letters of an id that they could be anybody's."""

    def __init__(self, least: int) -> None:
        super().__init__(f"give at least {least} letters of the task's id, which has letters and digits only")
        self.least = least


class NotAsked(TaskError):
    """The task has no open question under this key."""

    def __init__(self, key: str, outstanding: Iterable[str]) -> None:
        self.key = key
        self.outstanding = tuple(outstanding)
        names = ", ".join(repr(each) for each in self.outstanding)
        rest = f"what is open is {names}" if names else "nothing is open"
        super().__init__(f"the task does not wait for an answer to {key!r}; {rest}")
