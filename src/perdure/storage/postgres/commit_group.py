"""A group of commits as the arrays that `commit_group` takes, and its answer as the commits' own.

The server decides whether to write, and returns its decision and what was stored. The answer to each change
is judged here, by the one rule that all engines share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from ..errors import StorageFailed
from ..record import (
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    Keep,
    Micros,
    Refused,
    Replace,
    Standing,
    Tag,
    after_of,
    before_of,
)
from ..verdict import result_of

_KINDS = {Insert: "insert", Keep: "keep", Replace: "replace", Delete: "delete"}


class Commit(NamedTuple):
    """One call of the verb."""

    changes: Sequence[Change]
    guard: Guard | None
    now: Micros

    @property
    def partition(self) -> str:
        return self.changes[0].address.partition

    @property
    def weight(self) -> int:
        """About as many bytes as are to be sent."""
        afters = map(after_of, self.changes)
        return sum(len(after.body) for after in afters if after is not None)


class Judged(NamedTuple):
    """The server's answer: whether it wrote each commit, the counts that guards refused, and what was stored
    at the address of each change.

    Numbers and booleans are text, here and in what is sent.
    """

    written: Sequence[str]
    overs: Sequence[str | None]
    versions: Sequence[str | None]
    orders: Sequence[str]
    tags: Sequence[Tag]


def encoded(group: Sequence[Commit]) -> Iterator[list[str | None]]:
    """The arrays, in the order of the function's arguments."""
    yield [commit.partition for commit in group]
    yield _text(commit.now for commit in group)
    yield _ends(commit.changes for commit in group)
    yield from _encoded_guards([commit.guard for commit in group])
    yield from _encoded_changes([change for commit in group for change in commit.changes])


def decoded(group: Sequence[Commit], judged: Judged) -> Iterator[Committed | Refused | StorageFailed]:
    """Yield the result of each commit, or its error."""
    standings = (
        None if version is None else Standing(int(version), int(order), tag)
        for version, order, tag in zip(judged.versions, judged.orders, judged.tags, strict=True)
    )
    for commit, over, was_written in zip(group, judged.overs, judged.written, strict=True):
        yield result_of(
            commit.changes,
            islice(standings, len(commit.changes)),
            over=None if over is None else int(over),
            was_written=was_written == "true",
        )


def _encoded_guards(guards: Sequence[Guard | None]) -> Iterator[list[str | None]]:
    tags = [sorted(guard.tags) if guard else [] for guard in guards]
    yield [guard and guard.space for guard in guards]
    yield _text(guard and guard.at_most for guard in guards)
    yield _ends(tags)
    yield [tag for each in tags for tag in each]


def _encoded_changes(changes: Sequence[Change]) -> Iterator[list[str | None]]:
    befores = [before_of(change) for change in changes]
    afters = [after_of(change) for change in changes]
    either = [after or before for after, before in zip(afters, befores, strict=True)]
    yield [_KINDS[type(change)] for change in changes]
    yield [record and record.space for record in either]
    yield [record and record.key for record in either]
    yield _text(record and record.order for record in either)
    yield _text(before and before.version for before in befores)
    yield [before and before.tag for before in befores]
    yield _text(after and after.version for after in afters)
    yield [after and after.tag for after in afters]
    yield [after and after.body for after in afters]
    yield _text(after and after.expires_at for after in afters)
    yield [after and after.lane for after in afters]
    yield _text(after and after.wake_at for after in afters)


def _ends(parts: Iterable[Sequence[object]]) -> list[str | None]:
    """The place of the last element of each part, where all stand in one row."""
    return _text(accumulate(map(len, parts)))


def _text(numbers: Iterable[int | None]) -> list[str | None]:
    return [None if number is None else str(number) for number in numbers]
