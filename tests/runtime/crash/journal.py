"""What each process notes of what it did and was told, a line at a time, so that nothing is lost in a kill.

The clock is the machine's monotonic one, which all processes share. An event is noted when it has happened;
what could be cut off by a kill halfway (a commit, a cancel) is noted before, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

Entry: TypeAlias = tuple[int, int, str]
"""Of the trail that a task's attempts leave: the number of the attempt, of the write, and the process."""


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """One event. `journal.add` fills in who noted it and when."""

    at: int = 0
    who: str = ""


class TaskNote(Note, frozen=True, kw_only=True):
    """An event of one task."""

    task: str


# Of the functions that run


class Began(TaskNote, frozen=True, kw_only=True):
    """A function begins an attempt, and sees the trail that earlier ones left in the variables."""

    function: str
    attempt: int
    trail: list[Entry]


class Wrote(TaskNote, frozen=True, kw_only=True):
    """Its write of the variables was acknowledged."""

    called: int
    attempt: int
    number: int

    @property
    def entry(self) -> Entry:
        return self.attempt, self.number, self.who


class Denied(TaskNote, frozen=True, kw_only=True):
    """Its write was refused."""

    attempt: int
    error: str


class Heard(TaskNote, frozen=True, kw_only=True):
    """It was given an answer."""

    attempt: int
    answer: str


class Ended(TaskNote, frozen=True, kw_only=True):
    """The function is over; noted before its worker can know."""

    attempt: int
    how: str


class Dropped(TaskNote, frozen=True, kw_only=True):
    """The worker says that the lease was lost and what came of the attempt is dropped."""

    attempt: int


# Of clients


class Created(TaskNote, frozen=True, kw_only=True):
    """A create was acknowledged."""

    function: str
    argument: int
    key: str | None = None


class Cancelling(TaskNote, frozen=True, kw_only=True):
    """A cancel is about to be asked for."""


class Cancelled(TaskNote, frozen=True, kw_only=True):
    """It was acknowledged: the task was ended, or its worker is told to."""

    is_ended: bool
    attempts: int


class Answered(TaskNote, frozen=True, kw_only=True):
    """Answers were acknowledged; this is what stands there for the keys."""

    answers: dict[str, str]


# Of anybody


class Complained(Note, frozen=True, kw_only=True):
    """Something happened that never should."""

    text: str


Fault: TypeAlias = Literal["killed", "doomed", "frozen", "thawed", "dismissed"]


class Struck(Note, frozen=True, kw_only=True):
    """What was done to a process. One that is doomed had arranged to die at a commit of its own."""

    victim: str
    how: Fault


# Of records, whoever reads or writes them


class Look(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """As much of a record as is judged."""

    version: int
    digest: str
    tag: str
    attempts: int = 0
    held: bool = False
    variables: int = 0
    """A checksum."""
    holder: str | None = None
    until: int | None = None


class Edit(msgspec.Struct, frozen=True, array_like=True):
    """A change of one record, as it was asked for."""

    place: str
    kind: Literal["insert", "replace", "delete"]
    before: Look | None
    after: Look | None


class Got(Note, frozen=True, kw_only=True):
    """A record was read, or was not there."""

    called: int
    place: str
    look: Look | None = None


class Committing(Note, frozen=True, kw_only=True):
    """A commit is about to be asked for, with this as the time."""

    number: int
    now: int
    edits: list[Edit]


class Committed(Note, frozen=True, kw_only=True):
    """Its answers, as numbers: the version where done, minus the actual one in a conflict, 0 for missing."""

    number: int
    is_done: bool
    answers: list[int]


Event: TypeAlias = (
    Began
    | Wrote
    | Denied
    | Heard
    | Ended
    | Dropped
    | Created
    | Cancelling
    | Cancelled
    | Answered
    | Complained
    | Struck
    | Got
    | Committing
    | Committed
)

_decoder = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


class Journal:
    """Appends lines to a file of one process."""

    def __init__(self, folder: Path, who: str) -> None:
        self.who = who
        path = folder / f"{who}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, note: Event) -> None:
        filled = msgspec.structs.replace(note, at=now(), who=self.who)
        os.write(self._file, _encoder.encode(filled) + b"\n")


def now() -> int:
    return time.monotonic_ns()


def read(folder: Path) -> list[Event]:
    """Everything that was noted, in the order of time."""
    notes = [note for path in sorted(folder.glob("*.jsonl")) for note in _read_one(path)]
    return sorted(notes, key=lambda note: note.at)


def _read_one(path: Path) -> Iterator[Event]:
    *whole, _cut = path.read_bytes().split(b"\n")  # after the last line feed there is nothing, or a cut line
    return map(_decoder.decode, whole)
