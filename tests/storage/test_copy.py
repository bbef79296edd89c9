"""Copying a storage: everything arrives to the byte, also in several attempts, and nothing is mixed or lost
unnoticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from perdure.storage import (
    Address,
    Change,
    Committed,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    Micros,
    PageRequest,
    Record,
    Refused,
    Space,
    Storage,
)
from perdure.storage import copy as module
from perdure.storage.copy import COPIES, CopyProgress, ProgressCallback, copy_records
from perdure.storage.errors import CopyMismatch, StorageCorrupt, StorageUnavailable, TargetNotEmpty
from perdure.storage.kit.sample_records import (
    HOSTILE_BODIES,
    HOSTILE_NAMES,
    NOW,
    OTHER_SPACE,
    SPACE,
    commit_changes,
    insert_each,
    insert_many,
    make_record,
)
from perdure.storage.limits import MAX_CHANGES, MAX_COMMIT_BYTES, MAX_INTEGER
from perdure.storage.memory import MemoryEngine

from ..forwarding_engine import ForwardingEngine
from .engines import ENGINES

pytestmark = pytest.mark.anyio

COPIED = ["memory", "sqlite"]
GOLDEN = Path(__file__).parents[1] / "tasks" / "golden"
SPACES = (SPACE, OTHER_SPACE)
LANE = "lane"
LONG_AGO: Micros = NOW - 365 * 24 * 3600 * 1_000_000
"""By the clock of the tests, in 2100. DynamoDB itself deletes what expired by the clock of this machine."""
RECORDS = [
    *(make_record(key, order=at) for at, key in enumerate(HOSTILE_NAMES)),
    *(make_record(f"b{at}", body=body, partition="bodies") for at, body in enumerate(HOSTILE_BODIES)),
    *(make_record("same", partition=name, space=OTHER_SPACE) for name in HOSTILE_NAMES),
    make_record("old", order=0, version=41, tag="red"),
    make_record("late", order=MAX_INTEGER, version=MAX_INTEGER, tag="blue"),
    make_record("timer", lane=LANE, wake_at=5, tag="red"),
    make_record("timer", lane=LANE, wake_at=3, space=OTHER_SPACE, expires_at=NOW + 1),
    make_record("expired", expires_at=LONG_AGO, tag="red"),
    make_record("expired", expires_at=NOW - 1, space=OTHER_SPACE, lane=LANE, wake_at=4, version=7),
]
"""Of every kind: names and bodies that hurt, versions, tags, timers, and some that only a purge sees."""


@pytest.fixture(params=COPIED)
async def source(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncGenerator[Storage]:
    async with ENGINES[request.param]() as subject:
        yield subject.storage


@pytest.fixture(params=COPIED)
async def target(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncGenerator[Storage]:
    async with ENGINES[request.param]() as subject:
        yield subject.storage


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_SIZE", 2)


async def copied(
    source: Storage,
    target: Storage,
    *,
    name: str = "the source",
    merge: bool = False,
    on_progress: ProgressCallback = lambda _: None,
) -> Mapping[Space, int]:
    return await copy_records(source, target, SPACES, name=name, merge=merge, on_progress=on_progress)


async def filled(storage: Storage, records: Sequence[Record] = RECORDS) -> Storage:
    """At the beginning of time, when none of them has expired."""
    await insert_each(storage, *records, now=0)
    return storage


Contents: TypeAlias = Mapping[Space, tuple[list[Record], Mapping[str, int]]]


async def contents(storage: Storage) -> Contents:
    """All records and counts, expired ones too; and the note, if there is one."""
    return {
        space: (await storage.page(space, limit=1000, now=0), dict(await storage.counts(space, now=0)))
        for space in (*SPACES, COPIES)
    }


# Everything


async def test_everything_arrives_to_the_byte_and_no_note_remains(source: Storage, target: Storage) -> None:
    await filled(source)
    counts = await copied(source, target)
    there = await contents(target)
    assert there == await contents(source)
    assert there[COPIES] == ([], {})
    assert {space: len(records) for space, (records, _) in there.items()} == {**counts, COPIES: 0}
    assert sum(counts.values()) == len(RECORDS)
    for record in RECORDS:
        assert await target.get(record.address, now=0) == record


async def test_timers_are_due_and_expired_records_purged_as_in_the_source(
    source: Storage, target: Storage
) -> None:
    await filled(source)
    await copied(source, target)
    for now in (0, NOW):
        due = [await each.due(LANE, until=9, limit=9, now=now) for each in (source, target)]
        assert due[0] == due[1] != []
    purged = [await each.purge(until=NOW, limit=9) for each in (source, target)]
    assert purged[0] == purged[1]
    assert [each.key for each in purged[0]] == ["expired", "expired"]


async def test_what_was_copied_can_be_replaced_and_copied_back(source: Storage, target: Storage) -> None:
    await filled(source)
    await copied(source, target)
    old = make_record("old", order=0, version=41, tag="red")
    await commit_changes(target, old.replace_with(body="[]", tag="green"))
    async with Storage(MemoryEngine()) as third:
        await copied(target, third)
        assert await third.get(old.address, now=0) == make_record(
            "old", order=0, version=42, tag="green", body="[]"
        )


async def test_an_empty_storage_is_copied_too(source: Storage, target: Storage) -> None:
    assert await copied(source, target) == {SPACE: 0, OTHER_SPACE: 0}
    assert await contents(target) == await contents(source)


async def test_spaces_that_are_not_named_are_left_alone(source: Storage, target: Storage) -> None:
    await insert_each(source, make_record(space=Space("unnamed")))
    await insert_each(target, make_record(space=Space("other")))
    await copied(source, target)
    assert await target.page(Space("unnamed"), limit=9, now=NOW) == []
    assert await target.page(Space("other"), limit=9, now=NOW) == [make_record(space=Space("other"))]


# Within what a commit takes


class Recording(ForwardingEngine):
    """Notes the records of each commit."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.lag = storage.lag
        self.commits: list[list[Record]] = []

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        kept = [change.record for change in changes if isinstance(change, InsertIfAbsent)]
        if kept:
            self.commits.append(kept)
        return await super().commit(changes, guard=guard, now=now)


async def test_many_records_of_a_partition_go_in_as_few_commits_as_the_contract_allows(
    source: Storage, target: Storage
) -> None:
    records = [make_record(f"{n:03}", order=n) for n in range(module.PAGE_SIZE)]
    await insert_many(source, records)
    recording = Recording(target)
    await copied(source, Storage(recording))
    assert [len(commit) for commit in recording.commits] == [MAX_CHANGES] * 4
    assert await contents(target) == await contents(source)


def body_of(size: int, letter: str = "x") -> str:
    """A body of this many bytes in UTF-8, for sizes that letters of that width fill."""
    return '"' + letter * ((size - 2) // len(letter.encode())) + '"'


async def test_big_bodies_of_a_partition_are_parted_by_their_bytes(source: Storage, target: Storage) -> None:
    half = MAX_COMMIT_BYTES // 2
    bodies = [
        body_of(MAX_COMMIT_BYTES),
        body_of(half, "é"),
        body_of(half, "é"),
        body_of(half, "é"),
        body_of(half + 1),
        "1",
    ]
    await insert_each(source, *(make_record(f"{n}", order=n, body=body) for n, body in enumerate(bodies)))
    recording = Recording(target)
    await copied(source, Storage(recording))
    assert [[record.key for record in commit] for commit in recording.commits] == [
        ["0"],
        ["1", "2"],
        ["3"],
        ["4", "5"],
    ]
    assert await contents(target) == await contents(source)


# What is there already


@pytest.mark.parametrize(
    "there",
    [make_record(), make_record(space=OTHER_SPACE), make_record(expires_at=LONG_AGO)],
    ids=["one", "two", "expired"],
)
async def test_a_target_that_is_not_empty_is_refused_and_untouched(
    source: Storage, target: Storage, there: Record
) -> None:
    await filled(source)
    await filled(target, [there])
    before = await contents(target)
    with pytest.raises(TargetNotEmpty, match=there.space):
        await copied(source, target)
    assert await contents(target) == before


async def test_merging_adds_to_what_is_there(source: Storage, target: Storage) -> None:
    await filled(source)
    other = make_record("another", tag="mine")
    await filled(target, [*RECORDS[::3], other])
    counts = await copied(source, target, merge=True)
    assert sum(counts.values()) == len(RECORDS)
    for record in [*RECORDS, other]:
        assert await target.get(record.address, now=0) == record
    assert (await target.counts(SPACE, now=0))["mine"] == 1
    assert (await contents(target))[COPIES] == ([], {})


@pytest.mark.parametrize(
    "there",
    [
        make_record("b0", partition="bodies", body="{ }"),
        make_record("old", order=0, version=42, tag="red"),
        make_record("old", order=1, version=41, tag="red"),
        make_record("timer", lane=LANE, wake_at=6, tag="red"),
        make_record("expired", tag="red"),
    ],
    ids=["body", "version", "order", "timer", "expiry"],
)
async def test_merging_with_a_different_record_is_an_error_that_names_it_and_leaves_it(
    source: Storage, target: Storage, there: Record
) -> None:
    await filled(source)
    await filled(target, [there])
    with pytest.raises(CopyMismatch) as caught:
        await copied(source, target, merge=True)
    assert (caught.value.space, caught.value.partition, caught.value.key) == there.address
    assert await target.get(there.address, now=0) == there


# Interrupted


class Failing(ForwardingEngine):
    """From the n-th commit on the line is dead; that one was still written, or not."""

    def __init__(self, storage: Storage, at: int, *, written: bool) -> None:
        self.storage = storage
        self.lag = storage.lag
        self._left = at
        self._written = written

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        self._left -= 1
        if self._left > 0 or (self._left == 0 and self._written):
            result = await super().commit(changes, guard=guard, now=now)
            if self._left > 0:
                return result
        raise StorageUnavailable("the line is dead")


FEW = [
    *(make_record(f"k{n}", order=n, partition="pq"[n % 2], tag="red") for n in range(5)),
    *(make_record(f"k{n}", order=9 - n, space=OTHER_SPACE, expires_at=LONG_AGO) for n in range(3)),
]


@pytest.mark.parametrize("engine", COPIED)
@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=4))
@settings(max_examples=30)
def test_interrupted_at_any_commits_and_started_again_it_gives_the_same(
    engine: str, breaks: list[tuple[int, bool]]
) -> None:
    async def interrupted() -> None:
        source = await filled(Storage(MemoryEngine()), FEW)
        async with ENGINES[engine]() as subject:
            ended = False
            for at, written in breaks:
                ended = ended or await attempt(source, subject.storage, at, written=written)
            if not ended:
                assert await copied(source, subject.storage) == {SPACE: 5, OTHER_SPACE: 3}
            assert await contents(subject.storage) == await contents(source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAGE_SIZE", 2)
        asyncio.run(interrupted())


async def attempt(source: Storage, target: Storage, at: int, *, written: bool) -> bool:
    """Whether nothing of the copy was left to do when the line went dead."""
    try:
        await copied(source, Storage(Failing(target, at, written=written)))
    except StorageUnavailable:
        is_running = bool(await target.page(COPIES, limit=1, now=0))
        return not is_running and bool(await target.page(SPACE, limit=1, now=0))
    return True


@pytest.mark.usefixtures("small_pages")
async def test_a_resumed_copy_does_not_start_again(source: Storage, target: Storage) -> None:
    await filled(source, FEW)
    with pytest.raises(StorageUnavailable):  # note, 2 records, note, 2 records, note, and then
        await copied(source, Storage(Failing(target, 8, written=False)))
    recording = Recording(target)
    progress: list[CopyProgress] = []
    assert await copied(source, Storage(recording), on_progress=progress.append) == {SPACE: 5, OTHER_SPACE: 3}
    written = [record.address for commit in recording.commits for record in commit]
    assert sorted(written) == sorted(record.address for record in FEW[4:])
    assert progress[0] == CopyProgress(step="copied", space=SPACE, records=1)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("merge", [False, True])
async def test_a_target_where_another_source_is_half_copied_is_refused(
    source: Storage, target: Storage, *, merge: bool
) -> None:
    await filled(source, FEW)
    with pytest.raises(StorageUnavailable):
        await copied(source, Storage(Failing(target, 5, written=True)))
    before = await contents(target)
    async with Storage(MemoryEngine()) as other:
        with pytest.raises(TargetNotEmpty, match="an unfinished copy of the source"):
            await copied(other, target, name="another", merge=merge)
    assert await contents(target) == before


async def test_an_unreadable_copy_state_is_reported(source: Storage, target: Storage) -> None:
    await insert_each(
        target, make_record("under-way", partition="perdure", space=COPIES, body='{"source":1}')
    )
    with pytest.raises(StorageCorrupt, match="the state of an unfinished copy"):
        await copied(source, target)


# The source changes meanwhile


class Changing(ForwardingEngine):
    """A source to which a client writes when everything was copied, and nothing compared."""

    def __init__(self, storage: Storage, change: Change) -> None:
        self.storage = storage
        self.lag = storage.lag
        self._change = change
        self._walks = 0

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        if request.after is None:
            self._walks += 1
            if self._walks == len(SPACES) + 1:
                await commit_changes(self.storage, self._change, now=0)
        return await super().page(request, now=now)


@pytest.mark.parametrize(
    "change",
    [
        FEW[1].replace_with(body="2", tag="red"),
        FEW[1].replace_with(body=FEW[1].body, tag="blue"),
        Delete(before=FEW[4]),
        Insert(record=make_record("new", order=0)),
        Insert(record=make_record("new", order=NOW, space=OTHER_SPACE)),
    ],
    ids=["replaced", "tagged", "deleted", "before", "after"],
)
async def test_a_source_that_changes_meanwhile_is_found_out(
    source: Storage, target: Storage, change: Change
) -> None:
    await filled(source, FEW)
    with pytest.raises(CopyMismatch, match=change.address.space):
        await copied(Storage(Changing(source, change)), target)


class Forgetful(ForwardingEngine):
    """A target that says of one record that it was written, and has it not."""

    def __init__(self, storage: Storage, forgets: Address) -> None:
        self.storage = storage
        self.lag = storage.lag
        self._forgets = forgets

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        result = await super().commit(changes, guard=guard, now=now)
        for change in changes:
            if isinstance(change, InsertIfAbsent) and change.address == self._forgets:
                await commit_changes(self.storage, Delete(before=change.record), now=now)
        return result


@pytest.mark.parametrize("merge", [False, True])
async def test_a_record_that_did_not_arrive_is_found_out(
    source: Storage, target: Storage, *, merge: bool
) -> None:
    await filled(source, FEW)
    lost = FEW[-1].address
    with pytest.raises(CopyMismatch) as caught:
        await copied(source, Storage(Forgetful(target, lost)), merge=merge)
    assert (caught.value.space, caught.value.partition, caught.value.key) == lost


# Progress


@pytest.mark.usefixtures("small_pages")
async def test_progress_is_reported_in_order(source: Storage, target: Storage) -> None:
    await filled(source, FEW)
    progress: list[CopyProgress] = []
    await copied(source, target, on_progress=progress.append)
    pages = [(SPACE, 2), (SPACE, 4), (SPACE, 5), (OTHER_SPACE, 2), (OTHER_SPACE, 3)]
    assert progress == [
        CopyProgress(step=step, space=space, records=records)
        for step in ("copied", "compared")
        for space, records in pages
    ]


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "memory"])
async def test_the_same_bytes_come_back_from_a_journey_over_every_engine(engine: str) -> None:
    """Golden records among them: there, and back into memory."""
    async with (
        ENGINES["memory"]() as home,
        ENGINES[engine]() as abroad,
        ENGINES["memory"]() as back,
    ):
        golden = [
            make_record(path.name, partition="golden", body=path.read_text(encoding="utf-8").strip())
            for path in sorted(GOLDEN.glob("*.json"))
        ]
        assert golden
        await filled(home.storage, [*RECORDS, *golden])
        await copied(home.storage, abroad.storage)
        await abroad.caught_up()
        assert await contents(abroad.storage) == await contents(home.storage)
        await copied(abroad.storage, back.storage)
        assert await contents(back.storage) == await contents(home.storage)
