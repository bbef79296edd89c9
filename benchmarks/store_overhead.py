"""What the store's own code costs, in memory and on an engine that does nothing, compared with msgspec alone.

The baseline is the minimum: encode the record's plain values as JSON, and decode them. It does not use
perdure's types, so it contains no cost of perdure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from perdure.storage import Accepted, Address, Change, Committed, Engine, Guard, Micros, Record, Storage
from perdure.storage.memory import MemoryEngine
from perdure.tasks import TaskStore

from .report import ResultRow, Target, at_most, micros
from .timing import CPU, Seconds, race, ratio
from .workload import ANA, NEW, ROOMY, record


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The calls per round, and the number of rounds."""

    calls: int
    rounds: int


async def measure(workload: Workload) -> list[ResultRow]:
    return [*await _in_memory(workload), *await _without_engine(workload)]


async def _in_memory(workload: Workload) -> list[ResultRow]:
    """Compare with a dict, which a memory engine replaces."""
    plain, subject = _Plain(workload.calls), _Subject(workload.calls, MemoryEngine)
    floor_create, create = await race(
        [plain.create, subject.create], workload.rounds, CPU, before=lambda: _forget(plain, subject)
    )
    await plain.create()
    await subject.create()
    floor_get, get = await race([plain.get, subject.get], workload.rounds, CPU)
    baseline, both = _sums(floor_create, floor_get), _sums(create, get)
    return [
        _row(
            "memory, create and get: store / dict, encode and decode", workload, baseline, both, at_most(20)
        ),
        _row("memory, create: store / dict and encode", workload, floor_create, create),
        _row("memory, get: store / dict and decode", workload, floor_get, get),
    ]


async def _without_engine(workload: Workload) -> list[ResultRow]:
    plain, subject = _Plain(workload.calls), _Subject(workload.calls, _Instant)
    contenders = [plain.encode, plain.decode, subject.create, subject.get]
    encode, decode, create, get = await race(contenders, workload.rounds, CPU)
    baseline, both = _sums(encode, decode), _sums(create, get)
    return [
        _row("no engine, create and get: store / encode and decode", workload, baseline, both, at_most(12)),
        _row("no engine, create: store / encode", workload, encode, create),
        _row("no engine, get: store / decode", workload, decode, get),
    ]


def _forget(plain: _Plain, subject: _Subject) -> None:
    """Clear what an earlier round stored, outside the measurement."""
    plain.forget()
    subject.forget()


def _sums(some: Seconds, others: Seconds) -> Seconds:
    return [one + other for one, other in zip(some, others, strict=True)]


def _row(
    what: str, workload: Workload, baseline: Seconds, subject: Seconds, target: Target | None = None
) -> ResultRow:
    return ResultRow(
        what=what,
        baseline=micros(median(baseline) / workload.calls),
        subject=micros(median(subject) / workload.calls),
        ratio=ratio(subject, baseline),
        target=target,
    )


class _Plain:
    """The baseline: the values of the same record, with msgspec and a dict."""

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
    """The store on an engine."""

    def __init__(self, calls: int, new_engine: Callable[[], Engine]) -> None:
        self._calls = calls
        self._new_engine = new_engine
        self._ids: list[str] = []
        self.forget()

    def forget(self) -> None:
        self._store = TaskStore(Storage(self._new_engine()), ROOMY, application="benchmarks")

    async def create(self) -> None:
        store = self._store
        self._ids = [(await store.create(ANA, NEW)).task.task_id for _ in range(self._calls)]

    async def get(self) -> None:
        for task_id in self._ids:
            await self._store.get(ANA, task_id)


class _Instant(MemoryEngine):
    """An engine without storage: every commit succeeds, and every read returns the same record."""

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
