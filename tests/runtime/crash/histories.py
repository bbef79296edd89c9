"""What was read and written of each record, put together from all journals, for the kit's checker.

A commit is judged change by change: one that was refused though this change met its condition has read what
it expected. A commit of which nobody was told the answer may have been written, at any later time, or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from perdure.storage import Accepted, ChangeResult, Conflict, Missing
from perdure.storage.kit.linearizability import Get, Operation, State, Write, is_linearizable

from .journal import Committed, Committing, Edit, Event, Got, Look


class Commit(msgspec.Struct, frozen=True):
    """What was asked and what was told, if anything was."""

    asked: Committing
    told: Committed | None

    @property
    def is_done(self) -> bool:
        return self.told is not None and self.told.is_done


def commits(events: Iterable[Event]) -> list[Commit]:
    told: dict[tuple[str, int], Committed] = {}
    asked: list[Committing] = []
    for event in events:
        if isinstance(event, Committing):
            asked.append(event)
        elif isinstance(event, Committed):
            told[event.who, event.number] = event
    return [Commit(each, told.get((each.who, each.number))) for each in asked]


def histories(
    events: Sequence[Event], made: Iterable[Commit], at_the_end: Mapping[str, Look]
) -> dict[str, list[Operation]]:
    """The operations on each record; the last is what stood there in the end."""
    found: defaultdict[str, list[Operation]] = defaultdict(list)
    for event in events:
        if isinstance(event, Got):
            found[event.place].append(_read(_state(event.look), event.called, event.at))
    for commit in made:
        for place, operation in _written(commit):
            found[place].append(operation)
    end = events[-1].at + 1 if events else 0
    for place in found.keys() | at_the_end.keys():
        found[place].append(_read(_state(at_the_end.get(place)), end, end))
    return found


def explained(history: Sequence[Operation]) -> bool:
    """Whether some order of the operations explains every answer."""
    return is_linearizable(history)


def _written(commit: Commit) -> Iterator[tuple[str, Operation]]:
    told = commit.told
    called = commit.asked.at
    for n, edit in enumerate(commit.asked.edits):
        if told is None:
            yield edit.place, _write(edit, Missing(), called, None)
        elif told.is_done or told.answers[n] <= 0:
            yield edit.place, _write(edit, _answer(told.answers[n]), called, told.at)
        else:
            yield edit.place, _read(_state(edit.before), called, told.at)


def _write(edit: Edit, answer: ChangeResult, called: int, returned: int | None) -> Operation:
    expected = 0 if edit.before is None else edit.before.version
    body = "" if edit.after is None else edit.after.digest
    return Operation(what=Write(edit.kind, expected, body), result=answer, called=called, returned=returned)


def _read(state: State, called: int, returned: int) -> Operation:
    return Operation(what=Get(), result=state, called=called, returned=returned)


def _state(look: Look | None) -> State:
    return None if look is None else (look.version, look.digest)


def _answer(number: int) -> ChangeResult:
    if number > 0:
        return Accepted(number)
    return Conflict(-number) if number else Missing()
