"""Loads the Lua scripts that run in the server. Each script starts with the functions of `lua/record.lua`.

A script is called by its hash. If the server does not know the hash, the call is repeated with the text of
the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import TypeAlias

import msgspec

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Argument, ...]

_DIRECTORY = files(__package__ or "") / "lua"


class Script(msgspec.Struct, frozen=True):
    """A Lua script and the SHA-1 hash of its text. The server finds a cached script by this hash."""

    text: str
    sha: str

    def call(self, keys: Sequence[bytes], arguments: Sequence[Argument]) -> Command:
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)


_TEXT_BY_SHA: dict[Argument, str] = {}


def _load(name: str) -> Script:
    text = "\n".join((_DIRECTORY / f"{each}.lua").read_text(encoding="utf-8") for each in ("record", name))
    script = Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    _TEXT_BY_SHA[script.sha] = text
    return script


WRITE_SCRIPT = _load("write")
COUNTS_SCRIPT = _load("counts")
RANGES_SCRIPT = _load("ranges")
MISSING_SCRIPT = _load("missing")
STALE_SCRIPT = _load("stale")
RECORDS_SCRIPT = _load("records")


def with_script_text(command: Command) -> Command:
    """Return a command that calls the same script by sending its text instead of its hash."""
    return ("EVAL", _TEXT_BY_SHA[command[1]], *command[2:])
