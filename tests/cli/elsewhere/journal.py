"""What the tools of each process note, a line at a time, so that nothing is lost in a kill."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeAlias

import msgspec


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The lifespan of the server was entered, so a worker has started."""

    at: int
    """By the monotonic clock of the machine, in nanoseconds."""
    process: str


class Note(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a tool did, in which attempt at which task, and in which process."""

    at: int
    process: str
    """The role of the process, and its number: `full-3`."""
    task: str
    attempt: int
    page: int


class Started(Note, frozen=True, kw_only=True):
    """An attempt started, with this page."""

    tool: str


class Saved(Note, frozen=True, kw_only=True):
    """The checkpoint of this page was acknowledged."""


Event: TypeAlias = Opened | Started | Saved

_decoder = msgspec.json.Decoder(Event)


class Journal:
    """Appends notes to the file of one process."""

    def __init__(self, folder: Path, process: str) -> None:
        self.process = process
        self._file = os.open(folder / f"{process}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def opened(self) -> None:
        self._add(Opened(at=now(), process=self.process))

    def started(self, task: str, attempt: int, page: int, tool: str) -> None:
        self._add(Started(at=now(), process=self.process, task=task, attempt=attempt, page=page, tool=tool))

    def saved(self, task: str, attempt: int, page: int) -> None:
        self._add(Saved(at=now(), process=self.process, task=task, attempt=attempt, page=page))

    def _add(self, note: Event) -> None:
        os.write(self._file, msgspec.json.encode(note) + b"\n")


def now() -> int:
    return time.monotonic_ns()


def read(folder: Path) -> list[Event]:
    """Return all notes, in the order of time."""
    notes: list[Event] = []
    for path in folder.glob("*.jsonl"):
        *whole, _cut = path.read_bytes().split(b"\n")
        notes += map(_decoder.decode, whole)
    return sorted(notes, key=lambda note: note.at)
