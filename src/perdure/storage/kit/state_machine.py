"""A Hypothesis state machine that runs random calls on an engine and on a model, and compares all results.

    TestMyEngine = state_machine(my_engine).TestCase

The model is the memory engine, which perdure's own tests compare with a slow but simple reference engine.
The machine uses only a few names, times and tags, so that calls often concern the same records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from ..install_advice import without_extra
from ..memory import MemoryEngine
from ..records_and_changes import (
    Address,
    Change,
    Delete,
    Guard,
    Insert,
    InsertIfAbsent,
    LanePosition,
    Micros,
    Position,
    Record,
    Space,
)
from ..storage import Storage
from .check_framework import Factory, Subject, expect
from .sample_records import NOW, make_record, read_counts

try:
    import hypothesis.strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
except ModuleNotFoundError as error:
    raise without_extra("kit", error) from error

T = TypeVar("T")

SPACES = [Space("one"), Space("two")]
PARTITIONS = ["p", "p:", "q"]
KEYS = ["a", "b", "a:", "é"]
TAGS = ["", "x", "y"]
LANES = ["l", "m"]
STEP: Micros = 10

_times = st.integers(0, 12).map(lambda n: n * STEP)
_times_from_now = st.integers(0, 12).map(lambda n: NOW + n * STEP)
_bodies = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
_timers = st.none() | st.tuples(st.sampled_from(LANES), _times)
_expiries = st.none() | st.integers(1, 12).map(lambda n: NOW + n * STEP)
_addresses = st.builds(Address, *(st.sampled_from(names) for names in (SPACES, PARTITIONS, KEYS)))
_guards = st.none() | st.builds(
    Guard,
    space=st.sampled_from(SPACES),
    tags=st.frozensets(st.sampled_from(TAGS), min_size=1),
    max_count=st.integers(0, 4),
)
_positions = st.none() | st.builds(Position, _times, st.sampled_from(KEYS), st.sampled_from(PARTITIONS))
_lane_positions = st.none() | st.builds(
    LanePosition, _times, st.sampled_from(KEYS), st.sampled_from(PARTITIONS), st.sampled_from(SPACES)
)
_limits = st.sampled_from([1, 2, 3, 1000])


def state_machine(factory: Factory) -> type[RuleBasedStateMachine]:
    """Return a state machine for the engine that `factory` opens."""

    class EngineAgainstModel(_Machine):
        def __init__(self) -> None:
            super().__init__(factory)

    return EngineAgainstModel


class _Machine(RuleBasedStateMachine):
    subject: Subject

    def __init__(self, factory: Factory) -> None:
        super().__init__()
        self.factory = factory
        self.resources = AsyncExitStack()
        self.loop = asyncio.Runner()
        self.now: Micros = NOW
        self.guarded_at: Micros | None = None
        self.known: dict[Address, list[Record]] = {}
        self.model = Storage(MemoryEngine())

    @initialize()
    def open(self) -> None:
        self.subject = self.loop.run(self.resources.enter_async_context(self.factory()))

    def teardown(self) -> None:
        self.loop.run(self.resources.aclose())
        self.loop.close()

    def run_on_both(self, verb: Callable[[Storage], Awaitable[T]], what: str) -> T:
        """Run a verb on the engine and on the model, and require equal results."""

        async def run() -> tuple[T, T]:
            return await verb(await self.subject.caught_up()), await verb(self.model)

        actual, expected = self.loop.run(run())
        expect(actual, expected, f"{what} at {self.now}")
        return expected

    @rule(partition=st.sampled_from(PARTITIONS), guard=_guards, data=st.data())
    def commit_guarded(self, partition: str, guard: Guard | None, data: st.DataObject) -> None:
        self._commit(partition, guard, data)
        if guard is not None:
            self.guarded_at = self.now

    @rule(partition=st.sampled_from(PARTITIONS), data=st.data())
    def commit(self, partition: str, data: st.DataObject) -> None:
        self._commit(partition, None, data)

    @rule(partition=st.sampled_from(PARTITIONS), data=st.data())
    def commit_more(self, partition: str, data: st.DataObject) -> None:
        """Do the same as `commit`. This second rule makes commits more frequent, which finds more faults."""
        self._commit(partition, None, data)

    def _commit(self, partition: str, guard: Guard | None, data: st.DataObject) -> None:
        keys = st.tuples(st.sampled_from(SPACES), st.sampled_from(KEYS))
        chosen = data.draw(st.lists(keys, min_size=1, max_size=4, unique=True))
        changes = [self._change(Address(space, partition, key), data) for space, key in chosen]
        self.run_on_both(
            lambda storage: storage.commit(changes, guard=guard, now=self.now), f"commit {changes} {guard}"
        )
        for change in changes:
            if not isinstance(change, Delete):
                after = change.record if isinstance(change, Insert | InsertIfAbsent) else change.after
                self.known.setdefault(after.address, []).append(after)

    def _change(self, address: Address, data: st.DataObject) -> Change:
        lane, wake_at = data.draw(_timers) or (None, None)
        body, tag = data.draw(_bodies), data.draw(st.sampled_from(TAGS))
        expires_at = data.draw(_expiries)
        before = [*self.known.get(address, []), None]
        read = data.draw(st.sampled_from(before[-3:]))
        if read is not None and data.draw(st.booleans()):
            return Delete(before=read)
        if read is not None:
            return read.replace_with(body=body, tag=tag, expires_at=expires_at, lane=lane, wake_at=wake_at)
        space, partition, key = address
        record = make_record(
            key, partition=partition, space=space, order=data.draw(_times), body=body, tag=tag,
            expires_at=expires_at, lane=lane, wake_at=wake_at,
        )  # fmt: skip
        return data.draw(st.sampled_from([Insert, InsertIfAbsent]))(record=record)

    @rule(addresses=st.lists(_addresses, min_size=1, max_size=10))
    def get(self, addresses: list[Address]) -> None:
        self.run_on_both(lambda storage: storage.get_many(addresses, now=self.now), f"get {addresses}")

    @rule(
        space=st.sampled_from(SPACES),
        partition=st.none() | st.sampled_from(PARTITIONS),
        after=_positions,
        limit=_limits,
        tag=st.none() | st.sampled_from(TAGS),
        descending=st.booleans(),
    )
    def page(
        self,
        space: Space,
        partition: str | None,
        after: Position | None,
        limit: int,
        tag: str | None,
        descending: bool,  # noqa: FBT001 - hypothesis passes it by name
    ) -> None:
        if after is not None and partition is not None:
            after = after._replace(partition=partition)
        self.run_on_both(
            lambda storage: storage.page(
                space, partition, after=after, limit=limit, tag=tag, descending=descending, now=self.now
            ),
            f"page {space} {partition} after {after} limit {limit} tag {tag} descending {descending}",
        )

    @rule(lane=st.sampled_from(LANES), after=_lane_positions, until=_times, limit=_limits)
    def due(self, lane: str, after: LanePosition | None, until: Micros, limit: int) -> None:
        self.run_on_both(
            lambda storage: storage.due(lane, after=after, until=until, limit=limit, now=self.now),
            f"due {lane} after {after} until {until} limit {limit}",
        )

    @rule(space=st.sampled_from(SPACES), partition=st.none() | st.sampled_from(PARTITIONS))
    def counts(self, space: Space, partition: str | None) -> None:
        self.run_on_both(
            lambda storage: read_counts(storage, space, partition, self.now), f"counts {space} {partition}"
        )

    @rule(until=_times_from_now)
    def purge(self, until: Micros) -> None:
        """Call `purge`. Compare the results unless a guard may already have purged some of the records."""

        async def purge(storage: Storage) -> list[tuple[str, ...]]:
            purged = await storage.purge(until=until, limit=1000)
            return sorted(purged) if self.guarded_at is None else []

        self.run_on_both(purge, f"purge {until}")
        if self.guarded_at is not None and until >= self.guarded_at:
            self.guarded_at = None

    @rule(space=st.sampled_from(SPACES))
    def everything(self, space: Space) -> None:
        self.page(space, None, None, 1000, None, descending=False)
        for lane in LANES:
            self.due(lane, None, 12 * STEP, 1000)

    @rule(steps=st.integers(1, 3))
    def time_passes(self, steps: int) -> None:
        self.now += steps * STEP

    @rule()
    def reopen(self) -> None:
        if self.subject.has("reopen"):
            self.loop.run(self.subject.reopened())
