"""Records in a SQLite file: the engine that needs no server."""

from .engine import SqliteEngine, open_engine

__all__ = ["SqliteEngine", "open_engine"]
