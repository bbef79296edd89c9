"""The journal of every call: request, result and times, by the clock of one process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from enum import Enum

import msgspec

from perdure.storage import Address, Change, Committed, Guard, Record, Refused


class Lost(Enum):
    """How a commit ended that has no answer."""

    UNKNOWN = "unknown"
    """It may have been written, or not, or will be."""
    REFUSED = "refused"
    """It was not written, by the word of the storage."""


class Got(msgspec.Struct, frozen=True, kw_only=True):
    address: Address
    record: Record | None
    called: int
    returned: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    changes: Sequence[Change]
    guard: Guard | None
    result: Committed | Refused | Lost
    called: int
    returned: int


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    partition: str
    number: int
    """Of the records that the guard bounds."""


class Journal:
    """Everything that the clients of one scenario noted."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.commits: list[Commit] = []
        self.answered = 0
        """Commits that were not lost."""
        self.guard_refusals = 0
        self.counted: list[Counted] = []
        self.errors: Counter[str] = Counter()
        """What was raised, by type, where the contract says that it may be."""
        self.complaints: list[str] = []
        """What was raised otherwise, and who never came back."""

    def saw(self, addresses: Sequence[Address], records: Sequence[Record | None], called: int) -> None:
        returned = clock()
        for address, record in zip(addresses, records, strict=True):
            self.got.append(Got(address=address, record=record, called=called, returned=returned))

    def wrote(
        self, changes: Sequence[Change], guard: Guard | None, result: Committed | Refused | Lost, called: int
    ) -> None:
        self.commits.append(
            Commit(changes=changes, guard=guard, result=result, called=called, returned=clock())
        )
        self.answered += not isinstance(result, Lost)
        self.guard_refusals += isinstance(result, Refused) and result.guard_count is not None


def clock() -> int:
    return time.monotonic_ns()
