"""Sample records, names and bodies that an engine might handle incorrectly, and helpers for the checks."""

from __future__ import annotations

from collections.abc import Sequence

from ..limits import MAX_INTEGER
from ..records_and_changes import (
    Change,
    ChangeResult,
    Committed,
    Guard,
    Insert,
    Micros,
    Record,
    Refused,
    Space,
    Tag,
    accepted_results,
)
from ..request_batcher import batched
from ..storage import Storage
from .check_framework import ContractViolation, expect

SPACE = Space("kit")
OTHER_SPACE = Space("kit2")
PARTITION = "someone"
NOW: Micros = 4_102_444_800_000_000
"""The time that checks pass as `now` when the exact time does not matter: the year 2100.

It is in the future because an engine may delete records by its own clock, 7 days after they expire. If checks
stored records that expired long ago, such an engine could correctly delete them during the check.
"""

NUMBERS = (0, 1, 2**31, 2**32 + 1, NOW, NOW + 1, 2**52 + 1, MAX_INTEGER - 1, MAX_INTEGER)
"""Numbers to store: small numbers, times, and numbers near the limits of 32-bit and 53-bit integers."""

HOSTILE_NAMES = (
    "a", "a:b", "a#b", "a/b", "a%3Ab", "{a}", "{a}b", "a{", "a*", "a?", "a\\", "a'b", 'a"b', "a b", " a",
    "a ", "A", "á", "a\u0301", "日本", "😀", "\x01", "\x7f", "\u00ff", "\ud7ff", "\ue000", "\uffff",
    "\U0010ffff", "ab", "aa", "a" * 256,
)  # fmt: skip
"""Names that an engine might confuse: prefixes, lookalikes, and names with special characters."""

HOSTILE_BODIES = (
    "{}",
    "null",
    '{"b":1,"a":2}',
    '{"a":1.0,"b":1e22,"c":0.1,"d":-0.0}',
    '{"n":123456789012345678901234567890}',
    '{"text":"\\u0000\\ud83d\\ude00 \\" \\\\ "}',
    '{"text":"日本 😀 \u2028 \u2029 á a\u0301"}',
    ' { "spaces" : [ 1 , 2 ] } ',
    '{"a":1,"a":2}',
    "[" * 200 + "]" * 200,
    '"' + "x" * 100_000 + '"',
)


def make_record(
    key: str = "k",
    *,
    partition: str = PARTITION,
    space: Space = SPACE,
    order: Micros = 1,
    body: str = "{}",
    tag: Tag = "",
    expires_at: Micros | None = None,
    lane: str | None = None,
    wake_at: Micros | None = None,
    version: int = 1,
) -> Record:
    return Record(
        space=space,
        partition=partition,
        key=key,
        order=order,
        body=body,
        version=version,
        tag=tag,
        expires_at=expires_at,
        lane=lane,
        wake_at=wake_at,
    )


async def insert_each(storage: Storage, *records: Record, now: Micros = NOW) -> None:
    """Insert records one by one. Raise ContractViolation if an insert is refused."""
    for record in records:
        await commit_changes(storage, Insert(record=record), now=now)


async def insert_many(storage: Storage, records: Sequence[Record], now: Micros = NOW) -> None:
    """Insert many records of one partition, in commits of up to 25 records."""
    for batch in batched(records, 25):
        await commit_changes(storage, *[Insert(record=record) for record in batch], now=now)


async def commit_changes(
    storage: Storage, *changes: Change, guard: Guard | None = None, now: Micros = NOW
) -> Committed:
    """Commit changes. Raise ContractViolation if the commit is refused."""
    result = await storage.commit(changes, guard=guard, now=now)
    if isinstance(result, Refused):
        raise ContractViolation(f"a commit that should succeed was refused: {result}")
    return result


async def read_counts(
    storage: Storage, space: Space = SPACE, partition: str | None = PARTITION, now: Micros = NOW
) -> dict[Tag, int]:
    return dict(await storage.counts(space, partition, now=now))


async def expect_result(
    storage: Storage, change: Change, expected: ChangeResult, what: str, *, now: Micros = NOW
) -> None:
    """Commit a single change. Raise ContractViolation unless the result is `expected`."""
    accepted = accepted_results((expected,))
    result = Refused((expected,)) if accepted is None else Committed(accepted)
    expect(await storage.commit([change], now=now), result, what)
