"""Records in a SQLite file: the engine that needs no server."""

from .engine import SqliteEngine, open_engine
from .location import exists

__all__ = ["SqliteEngine", "exists", "open_engine"]
