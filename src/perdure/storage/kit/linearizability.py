"""A small linearizability checker for the history of one record.

A history is linearizable when every operation can be given one instant between its call and its return such
that, taken in that order, the answers are those of a single record that is changed by one client at a time.
The search is that of Wing and Gong with Lowe's memory of visited states: exponential at worst, quick for
histories in which few operations overlap.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ..record import Accepted, ChangeResult, Committed, Conflict, Missing, Record, Refused

State: TypeAlias = tuple[int, str] | None
"""Version and body of what stands there, or nothing."""


class Get(NamedTuple):
    pass


class Write(NamedTuple):
    """An insert, or a replace or delete of the version that its writer had read."""

    kind: Literal["insert", "replace", "delete"]
    expected: int
    body: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One call and what it answered. `returned` is None where the caller never learned of the answer."""

    what: Get | Write
    answer: State | ChangeResult
    called: int
    returned: int | None


class Recorder:
    """Collects operations as they happen. The clock is one for all processes of a machine."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    async def get(self, call: Awaitable[Record | None]) -> Record | None:
        called = time.monotonic_ns()
        record = await call
        state = None if record is None else (record.version, record.body)
        self._add(Get(), state, called)
        return record

    async def write(self, what: Write, call: Awaitable[Committed | Refused]) -> ChangeResult:
        called = time.monotonic_ns()
        answer = (await call).results[0]
        self._add(what, answer, called)
        return answer

    def _add(self, what: Get | Write, answer: State | ChangeResult, called: int) -> None:
        self.operations.append(
            Operation(what=what, answer=answer, called=called, returned=time.monotonic_ns())
        )


def is_linearizable(operations: Sequence[Operation], start: State = None) -> bool:
    """Whether some order of these operations, within their times, explains every answer."""
    ordered = sorted(operations, key=lambda each: each.called)
    everything = (1 << len(ordered)) - 1
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(everything, start)]
    while stack:
        pending, state = node = stack.pop()
        if not any(ordered[at].returned is not None for at in _bits(pending)):
            return True  # what is left may have had no effect
        if node in seen:
            continue
        seen.add(node)
        stack += _next_states(ordered, pending, state)
    return False


def _next_states(ordered: Sequence[Operation], pending: int, state: State) -> list[tuple[int, State]]:
    """What may come next: an operation that was called before any pending one returned."""
    first_return = min(
        (returned for at in _bits(pending) if (returned := ordered[at].returned) is not None),
    )
    steps: list[tuple[int, State]] = []
    for at in _bits(pending):
        operation = ordered[at]
        if operation.called > first_return:
            break
        answer, after = apply(operation.what, state)
        if operation.returned is None or answer == operation.answer:
            steps.append((pending & ~(1 << at), after))
    return steps


def apply(what: Get | Write, state: State) -> tuple[State | ChangeResult, State]:
    """What a single record in this state answers, and its state after."""
    match what, state:
        case Get(), _:
            return state, state
        case Write(kind="insert", body=body), None:
            return Accepted(1), (1, body)
        case Write(kind="insert"), (version, _):
            return Conflict(version), state
        case _, None:
            return Missing(), state
        case Write(expected=expected), (version, _) if version != expected:
            return Conflict(version), state
        case Write(kind="replace", body=body), (version, _):
            return Accepted(version + 1), (version + 1, body)
        case Write(), (version, _):
            return Accepted(version), None


def _bits(mask: int) -> list[int]:
    return [at for at in range(mask.bit_length()) if mask >> at & 1]
