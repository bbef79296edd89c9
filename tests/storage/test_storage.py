"""`Storage` rejects calls that the contract does not allow, before any engine sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from perdure.storage import (
    Address,
    Change,
    Delete,
    Guard,
    Insert,
    LanePosition,
    Position,
    Record,
    Replace,
    Space,
    Storage,
)
from perdure.storage.errors import InvalidArgument
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, make_record
from perdure.storage.memory import MemoryEngine

pytestmark = pytest.mark.anyio

RECORD = make_record()
MANY = 2**53
NEGATIVE = Guard(space=SPACE, tags=frozenset("a"), max_count=-1)


def insert(**changes: object) -> list[Change]:
    return [Insert(record=replace(RECORD, **changes))]


def replacement(**changes: object) -> list[Change]:
    after = replace(RECORD.replace_with(body="2", tag="").after, **changes)
    return [Replace(before=RECORD, after=after)]


COMMITS: list[tuple[str, list[Change]]] = [
    ("changes", []),
    ("changes", [Insert(record=make_record(f"k{n}")) for n in range(26)]),
    ("changes", [Insert(record=RECORD), Delete(before=RECORD)]),
    ("changes", [Insert(record=RECORD), Insert(record=make_record(partition="q"))]),
    ("changes", [Insert(record=make_record(space=Space(f"s{n}"))) for n in range(9)]),
    ("changes", [Insert(record=make_record(f"k{n}", body="x" * 1_100_000)) for n in range(2)]),
    ("body", insert(body="x" * (2 * 1024 * 1024 + 1))),
    ("body", insert(body="")),
    ("body", insert(body="a\0b")),
    ("body", insert(body="\ud800")),
    ("space", insert(space="")),
    ("space", insert(space="s" * 17)),
    ("partition", insert(partition="")),
    ("partition", insert(partition="p" * 513)),
    ("partition", insert(partition="a\0b")),
    ("key", insert(key="")),
    ("key", insert(key="é" * 129)),
    ("key", insert(key="\udfff")),
    ("tag", insert(tag="t" * 65)),
    ("order", insert(order=-1)),
    ("order", insert(order=MANY)),
    ("version", insert(version=0)),
    ("expires_at", insert(expires_at=-1)),
    ("expires_at", insert(expires_at=MANY)),
    ("lane", insert(lane="l")),
    ("lane", insert(wake_at=1)),
    ("lane", insert(lane="", wake_at=1)),
    ("lane", insert(lane="l" * 257, wake_at=1)),
    ("wake_at", insert(lane="l", wake_at=-1)),
    ("after", replacement(key="other")),
    ("after", replacement(order=2)),
    ("after.version", replacement(version=3)),
]

CALLS: list[tuple[str, Callable[[Storage], Awaitable[object]]]] = [
    ("addresses", lambda s: s.get_many([], now=NOW)),
    ("addresses", lambda s: s.get_many([RECORD.address] * 101, now=NOW)),
    ("key", lambda s: s.get(Address(SPACE, "p", ""), now=NOW)),
    ("now", lambda s: s.get(RECORD.address, now=-1)),
    ("now", lambda s: s.commit(insert(), now=MANY)),
    ("limit", lambda s: s.page(SPACE, limit=0, now=NOW)),
    ("limit", lambda s: s.page(SPACE, limit=1001, now=NOW)),
    ("tag", lambda s: s.page(SPACE, limit=1, tag="t" * 65, now=NOW)),
    ("partition", lambda s: s.page(SPACE, "", limit=1, now=NOW)),
    ("after", lambda s: s.page(SPACE, "p", after=Position(1, "k", "q"), limit=1, now=NOW)),
    ("after.order", lambda s: s.page(SPACE, after=Position(-1, "k", "q"), limit=1, now=NOW)),
    ("after.key", lambda s: s.page(SPACE, after=Position(1, "", "q"), limit=1, now=NOW)),
    ("lane", lambda s: s.due("", until=NOW, limit=1, now=NOW)),
    ("limit", lambda s: s.due("l", until=NOW, limit=1001, now=NOW)),
    ("after.wake_at", lambda s: s.due("l", after=LanePosition(-1, "k", "p", SPACE), until=1, limit=1, now=1)),
    ("after.key", lambda s: s.due("l", after=LanePosition(1, "", "p", SPACE), until=1, limit=1, now=1)),
    ("until", lambda s: s.due("l", until=-1, limit=1, now=NOW)),
    ("space", lambda s: s.counts(Space(""), now=NOW)),
    ("limit", lambda s: s.purge(until=NOW, limit=0)),
    ("until", lambda s: s.purge(until=MANY, limit=1)),
    ("tags", lambda s: s.commit(insert(), now=NOW, guard=Guard(space=SPACE, tags=frozenset(), max_count=1))),
    (
        "tags",
        lambda s: s.commit(
            insert(), now=NOW, guard=Guard(space=SPACE, tags=frozenset(map(str, range(17))), max_count=1)
        ),
    ),
    (
        "max_count",
        lambda s: s.commit(insert(), now=NOW, guard=Guard(space=SPACE, tags=frozenset("a"), max_count=-1)),
    ),
]


@pytest.mark.parametrize(("field", "changes"), COMMITS)
async def test_a_commit_outside_the_contract_is_refused_and_changes_nothing(
    field: str, changes: list[Change]
) -> None:
    storage = Storage(MemoryEngine())
    with pytest.raises(InvalidArgument) as caught:
        await storage.commit(changes, now=NOW)
    assert caught.value.field == field
    assert await storage.page(SPACE, limit=9, now=NOW) == []


@pytest.mark.parametrize(("field", "call"), CALLS)
async def test_a_call_outside_the_contract_names_the_argument(
    field: str, call: Callable[[Storage], Awaitable[object]]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await call(Storage(MemoryEngine()))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


async def test_a_key_is_watched_within_a_partition() -> None:
    with pytest.raises(InvalidArgument, match="pass `partition` too"):
        Storage(MemoryEngine()).watch(SPACE, key="k")
    with pytest.raises(InvalidArgument, match="key"):
        Storage(MemoryEngine()).watch(SPACE, PARTITION, "")


async def test_what_is_at_its_limit_is_taken() -> None:
    record = Record(
        space=Space("s" * 16), partition="p" * 512, key="k" * 256, order=MANY - 1, body="x" * 2 * 1024 * 1024
    )
    storage = Storage(MemoryEngine())
    await storage.commit([Insert(record=record)], now=NOW)
    assert await storage.get(record.address, now=NOW) == record
