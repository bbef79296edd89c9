"""The scripts that run in the server: one per file, each after what all of them share.

The server knows a script by its hash, and may forget it at any time; then the text goes along.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import TypeAlias

import msgspec

Word: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Word, ...]

_FOLDER = files(__package__ or "") / "lua"


class Script(msgspec.Struct, frozen=True):
    """A script as the server takes it."""

    text: str
    name: str

    def call(self, keys: Sequence[bytes], words: Sequence[Word]) -> Command:
        return ("EVALSHA", self.name, len(keys), *keys, *words)


def _load(name: str) -> Script:
    text = "\n".join((_FOLDER / f"{each}.lua").read_text(encoding="utf-8") for each in ("record", name))
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


WRITE = _load("write")
COUNTS = _load("counts")
RANGES = _load("ranges")
MISSING = _load("missing")
STALE = _load("stale")
RECORDS = _load("records")
_TEXTS: dict[Word, str] = {
    script.name: script.text for script in (WRITE, COUNTS, RANGES, MISSING, STALE, RECORDS)
}


def in_full(command: Command) -> Command:
    """The same call for a server that has forgotten the script."""
    return ("EVAL", _TEXTS[command[1]], *command[2:])
