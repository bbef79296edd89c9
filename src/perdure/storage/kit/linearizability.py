"""Checks whether the history of one record is linearizable.

A history is a list of operations with their results. It is linearizable if all results are as if each
operation had happened at a single instant between its call and its return. The checker uses the algorithm of
Wing and Gong with Lowe's cache of visited states. The running time is exponential in the worst case, but
short if few operations overlap.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ..records_and_changes import Accepted, ChangeResult, Committed, Conflict, Missing, Record, Refused

State: TypeAlias = tuple[int, str] | None
"""The version and the body of the stored record, or None if there is no record."""


class Get(NamedTuple):
    pass


class Write(NamedTuple):
    """An insert, a replace or a delete. A replace or a delete requires that version `expected` is stored."""

    kind: Literal["insert", "replace", "delete"]
    expected: int
    body: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation, its result, and the times of its call and its return in nanoseconds.

    `returned` is None if the call never returned.
    """

    what: Get | Write
    result: State | ChangeResult
    called: int
    returned: int | None


class Recorder:
    """Runs operations, and records their results and times. Times are comparable across processes."""

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
        result = (await call).results[0]
        self._add(what, result, called)
        return result

    def _add(self, what: Get | Write, result: State | ChangeResult, called: int) -> None:
        self.operations.append(
            Operation(what=what, result=result, called=called, returned=time.monotonic_ns())
        )


def is_linearizable(operations: Sequence[Operation], start: State = None) -> bool:
    """Return whether the operations, applied to the state `start`, have an order that explains all results.

    In this order, if one operation returned before another one was called, the first one must come first.
    """
    ordered = sorted(operations, key=lambda each: each.called)
    everything = (1 << len(ordered)) - 1
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(everything, start)]
    while stack:
        pending, state = node = stack.pop()
        if not any(ordered[at].returned is not None for at in _bits(pending)):
            return True  # the remaining operations may have had no effect
        if node in seen:
            continue
        seen.add(node)
        stack += _next_states(ordered, pending, state)
    return False


def _next_states(ordered: Sequence[Operation], pending: int, state: State) -> list[tuple[int, State]]:
    """Return, for each operation that can come next, the operations that remain and the new state.

    An operation can come next if its result fits `state` or is unknown, and if it was not called after the
    return of a pending operation.
    """
    first_return = min(
        (returned for at in _bits(pending) if (returned := ordered[at].returned) is not None),
    )
    steps: list[tuple[int, State]] = []
    for at in _bits(pending):
        operation = ordered[at]
        if operation.called > first_return:
            break
        result, after = apply(operation.what, state)
        if operation.returned is None or result == operation.result:
            steps.append((pending & ~(1 << at), after))
    return steps


def apply(what: Get | Write, state: State) -> tuple[State | ChangeResult, State]:
    """Return the result of the operation `what` on a record in `state`, and the state after the operation."""
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
