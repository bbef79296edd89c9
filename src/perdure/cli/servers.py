"""The place where perdure runs, and the clock of a storage's server beside ours."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import msgspec

from ..storage import Storage
from ..storage.clock import system_clock


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps the records."""

    version: str
    ahead: float | None = None
    """Seconds by which its clock is ahead of ours, negative where it is behind. None: it tells none."""
    margin: float = 0.0
    """By how much that may be wrong: half the time that asking took."""

    def is_apart(self, most: float) -> bool:
        """Whether the clocks differ by more than this for certain."""
        return self.ahead is not None and abs(self.ahead) - self.margin > most


async def place_of(storage: Storage) -> Place:
    await storage.info()  # so that connecting does not count
    before = system_clock()
    info = await storage.info()
    after = system_clock()
    if info.time is None:
        return Place(version=info.server)
    ahead = info.time - (before + after) / 2
    return Place(version=info.server, ahead=ahead / 1e6, margin=(after - before) / 2e6)


def versions() -> str:
    """Of what runs here."""
    python = ".".join(str(each) for each in sys.version_info[:3])
    return f"perdure {_version('perdure')}, mcp {_version('mcp')}, python {python}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
