"""What the store's own code costs: in memory, and on an engine that does nothing, against msgspec alone.

The floor is what nobody can do without: the record's plain values to JSON, and the JSON back to values. It
knows nothing of perdure's types, so nothing that perdure does with them hides in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from perdure.storage import Accepted, Address, Change, Committed, Engine, Guard, Micros, Record, Storage
from perdure.storage.memory import MemoryEngine
from perdure.tasks import TaskStore

from .report import Line, Target, at_most, micros
from .timing import CPU, Seconds, race, ratio
from .workload import ANA, NEW, ROOMY, record


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: calls of one round, and rounds."""

    calls: int
    rounds: int


async def measure(effort: Effort) -> list[Line]:
    return [*await _in_memory(effort), *await _without_engine(effort)]


async def _in_memory(effort: Effort) -> list[Line]:
    """Against a dict, because that is what a memory engine is in the place of."""
    plain, subject = _Plain(effort.calls), _Subject(effort.calls, MemoryEngine)
    floor_create, create = await race(
        [plain.create, subject.create], effort.rounds, CPU, before=lambda: _forget(plain, subject)
    )
    await plain.create()
    await subject.create()
    floor_get, get = await race([plain.get, subject.get], effort.rounds, CPU)
    floor, both = _sums(floor_create, floor_get), _sums(create, get)
    return [
        _line("memory, create and get: store / dict, encode and decode", effort, floor, both, at_most(20)),
        _line("memory, create: store / dict and encode", effort, floor_create, create),
        _line("memory, get: store / dict and decode", effort, floor_get, get),
    ]


async def _without_engine(effort: Effort) -> list[Line]:
    plain, subject = _Plain(effort.calls), _Subject(effort.calls, _Instant)
    contenders = [plain.encode, plain.decode, subject.create, subject.get]
    encode, decode, create, get = await race(contenders, effort.rounds, CPU)
    floor, both = _sums(encode, decode), _sums(create, get)
    return [
        _line("no engine, create and get: store / encode and decode", effort, floor, both, at_most(12)),
        _line("no engine, create: store / encode", effort, encode, create),
        _line("no engine, get: store / decode", effort, decode, get),
    ]


def _forget(plain: _Plain, subject: _Subject) -> None:
    """What an earlier round has stored is no part of the next, nor is getting rid of it."""
    plain.forget()
    subject.forget()


def _sums(some: Seconds, others: Seconds) -> Seconds:
    return [one + other for one, other in zip(some, others, strict=True)]


def _line(what: str, effort: Effort, floor: Seconds, subject: Seconds, target: Target | None = None) -> Line:
    return Line(
        what=what,
        floor=micros(median(floor) / effort.calls),
        subject=micros(median(subject) / effort.calls),
        ratio=ratio(subject, floor),
        target=target,
    )


class _Plain:
    """The floor: the values of the same record, msgspec and a dict."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._json = record(0).body.encode()
        self._values: object = msgspec.json.decode(self._json)
        self._records: dict[str, bytes] = {}

    def forget(self) -> None:
        self._records = {}

    async def create(self) -> None:
        encode = msgspec.json.Encoder().encode
        records, values = self._records, self._values
        for number in range(self._calls):
            records[str(number)] = encode(values)

    async def get(self) -> None:
        decode = msgspec.json.Decoder().decode
        for key in self._records:
            decode(self._records[key])

    async def encode(self) -> None:
        encode, values = msgspec.json.Encoder().encode, self._values
        for _ in range(self._calls):
            encode(values)

    async def decode(self) -> None:
        decode, json = msgspec.json.Decoder().decode, self._json
        for _ in range(self._calls):
            decode(json)


class _Subject:
    """The store on some engine."""

    def __init__(self, calls: int, new_engine: Callable[[], Engine]) -> None:
        self._calls = calls
        self._new_engine = new_engine
        self._ids: list[str] = []
        self.forget()

    def forget(self) -> None:
        self._store = TaskStore(Storage(self._new_engine()), ROOMY)

    async def create(self) -> None:
        store = self._store
        self._ids = [(await store.create(ANA, NEW)).task.task_id for _ in range(self._calls)]

    async def get(self) -> None:
        for task_id in self._ids:
            await self._store.get(ANA, task_id)


class _Instant(MemoryEngine):
    """Answers at once: every commit is done, and every look-up finds the same record."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[Record | None] = [record(0)]
        self._done = Committed((Accepted(1),))

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:  # noqa: ARG002
        return self._found

    async def commit(
        self,
        changes: Sequence[Change],  # noqa: ARG002
        *,
        guard: Guard | None,  # noqa: ARG002
        now: Micros,  # noqa: ARG002
    ) -> Committed:
        return self._done
