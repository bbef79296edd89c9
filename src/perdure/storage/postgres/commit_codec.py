"""Encodes a batch of commits as arguments of the SQL function `commit_group`, and decodes the reply.

The server decides which commits to write, and returns its decisions together with the state of the stored
records. This module then computes the result of each change with `decide`, the rule that all engines share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from ..errors import StorageFailed
from ..records_and_changes import (
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Micros,
    RecordState,
    Refused,
    Replace,
    Tag,
    check_server_decision,
    record_after,
    record_before,
)

_KIND_NAMES = {Insert: "insert", InsertIfAbsent: "keep", Replace: "replace", Delete: "delete"}


class CommitCall(NamedTuple):
    """The arguments of one call to `commit`."""

    changes: Sequence[Change]
    guard: Guard | None
    now: Micros

    @property
    def partition(self) -> str:
        return self.changes[0].address.partition

    @property
    def body_size(self) -> int:
        """The approximate size of all bodies to send, in bytes."""
        afters = map(record_after, self.changes)
        return sum(len(after.body) for after in afters if after is not None)


class CommitReply(NamedTuple):
    """The reply of the server, in which numbers and booleans are strings.

    `written` and `guard_counts` have an element for each commit. The other fields have an element for each
    change: the state, before the commit, of the record at the address of the change.
    """

    written: Sequence[str]
    guard_counts: Sequence[str | None]
    versions: Sequence[str | None]
    orders: Sequence[str]
    tags: Sequence[Tag]


def encode_calls(calls: Sequence[CommitCall]) -> Iterator[list[str | None]]:
    """Yield the array arguments of `commit_group`, in the order of its parameters."""
    yield [commit.partition for commit in calls]
    yield _as_text(commit.now for commit in calls)
    yield _end_offsets(commit.changes for commit in calls)
    yield from _encode_guards([commit.guard for commit in calls])
    yield from _encode_changes([change for commit in calls for change in commit.changes])


def decode_reply(
    calls: Sequence[CommitCall], reply: CommitReply
) -> Iterator[Committed | Refused | StorageFailed]:
    """Yield the result of each commit, or an error if the server and this client disagree on the result."""
    states = (
        None if version is None else RecordState(int(version), int(order), tag)
        for version, order, tag in zip(reply.versions, reply.orders, reply.tags, strict=True)
    )
    for commit, guard_count, was_written in zip(calls, reply.guard_counts, reply.written, strict=True):
        yield check_server_decision(
            commit.changes,
            islice(states, len(commit.changes)),
            guard_count=None if guard_count is None else int(guard_count),
            was_written=was_written == "true",
        )


def _encode_guards(guards: Sequence[Guard | None]) -> Iterator[list[str | None]]:
    tags = [sorted(guard.tags) if guard else [] for guard in guards]
    yield [guard and guard.space for guard in guards]
    yield _as_text(guard and guard.max_count for guard in guards)
    yield _end_offsets(tags)
    yield [tag for each in tags for tag in each]


def _encode_changes(changes: Sequence[Change]) -> Iterator[list[str | None]]:
    befores = [record_before(change) for change in changes]
    afters = [record_after(change) for change in changes]
    either = [after or before for after, before in zip(afters, befores, strict=True)]
    yield [_KIND_NAMES[type(change)] for change in changes]
    yield [record and record.space for record in either]
    yield [record and record.key for record in either]
    yield _as_text(record and record.order for record in either)
    yield _as_text(before and before.version for before in befores)
    yield [before and before.tag for before in befores]
    yield _as_text(after and after.version for after in afters)
    yield [after and after.tag for after in afters]
    yield [after and after.body for after in afters]
    yield _as_text(after and after.expires_at for after in afters)
    yield [after and after.lane for after in afters]
    yield _as_text(after and after.wake_at for after in afters)


def _end_offsets(parts: Iterable[Sequence[object]]) -> list[str | None]:
    """Return the offset at which each part ends when all parts are concatenated."""
    return _as_text(accumulate(map(len, parts)))


def _as_text(numbers: Iterable[int | None]) -> list[str | None]:
    return [None if number is None else str(number) for number in numbers]
