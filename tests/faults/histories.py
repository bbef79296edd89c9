"""The history of each record, put together from the journal, for the kit's checker.

A commit whose outcome is unknown may have been written, at any later time, or not. If it had witnesses, the
final state decides: if they exist, all of it was written. If they do not, the commit is left out, like one
that was refused, and the checker reports any effect that it had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from perdure.storage import (
    Accepted,
    Address,
    Change,
    ChangeResult,
    Conflict,
    Delete,
    Insert,
    InsertIfAbsent,
    Kept,
    Missing,
    Record,
    Refused,
)
from perdure.storage.kit.linearizability import Get, Operation, State, Write

from .clients import WITNESSES, after
from .journal import Commit, Journal, Lost, clock


def histories(journal: Journal, at_the_end: Mapping[Address, Record]) -> dict[Address, list[Operation]]:
    """The operations on each record; the last is what was stored in the end."""
    found: defaultdict[Address, list[Operation]] = defaultdict(list)
    for got in journal.got:
        found[got.address].append(
            Operation(what=Get(), result=_state(got.record), called=got.called, returned=got.returned)
        )
    end = clock()
    for commit in journal.commits:
        for address, operation in _written(commit, at_the_end, end):
            found[address].append(operation)
    for address in found.keys() | at_the_end.keys():
        last = _state(at_the_end.get(address))
        found[address].append(Operation(what=Get(), result=last, called=end + 1, returned=end + 2))
    return found


def witnesses(commit: Commit) -> list[Address]:
    return [change.address for change in commit.changes if change.address.space == WITNESSES]


def _written(
    commit: Commit, at_the_end: Mapping[Address, Record], end: int
) -> Iterator[tuple[Address, Operation]]:
    outcome = commit.result
    if outcome is Lost.REFUSED:
        return
    if outcome is Lost.UNKNOWN:
        yield from _perhaps_written(commit, at_the_end, end)
        return
    for change, answer in zip(commit.changes, outcome.results, strict=True):
        what, result = _write(change), answer
        if isinstance(outcome, Refused) and isinstance(answer, Accepted):
            what, result = _look(change)
        yield change.address, _operation(what, result, commit.called, commit.returned)


def _perhaps_written(
    commit: Commit, at_the_end: Mapping[Address, Record], end: int
) -> Iterator[tuple[Address, Operation]]:
    seen = [address in at_the_end for address in witnesses(commit)]
    if seen and not any(seen):
        return
    for change in commit.changes:
        is_certain = bool(seen) and not isinstance(change, InsertIfAbsent)
        answer = Accepted(_version(change)) if is_certain else Missing()
        yield change.address, _operation(_write(change), answer, commit.called, end if is_certain else None)


def _operation(what: Write, answer: ChangeResult, called: int, returned: int | None) -> Operation:
    """To the checker a keep is an insert, which conflicts where something is kept."""
    outcome = Conflict(answer.version) if isinstance(answer, Kept) else answer
    return Operation(what=what, result=outcome, called=called, returned=returned)


def _write(change: Change) -> Write:
    new = after(change)
    if isinstance(change, (Insert, InsertIfAbsent)):
        return Write("insert", 0, body_of(change.record))
    return Write("delete" if new is None else "replace", change.before.version, body_of(new) if new else "")


def _look(change: Change) -> tuple[Write, ChangeResult]:
    """A change that met its condition in a commit that was refused: a replace of a version that never is."""
    stands = None if isinstance(change, (Insert, InsertIfAbsent)) else change.before.version
    return Write("replace", 0, ""), Missing() if stands is None else Conflict(stands)


def _version(change: Change) -> int:
    """The one that a change answers where it is done."""
    if isinstance(change, Delete):
        return change.before.version
    new = after(change)
    return 1 if new is None else new.version


def _state(record: Record | None) -> State:
    return None if record is None else (record.version, body_of(record))


def body_of(record: Record) -> str:
    """Return as much of it as distinguishes it from all others."""
    return record.body.rstrip()


def lines(history: Sequence[Operation]) -> str:
    return "\n".join(f"    {each}" for each in sorted(history, key=lambda each: each.called))
