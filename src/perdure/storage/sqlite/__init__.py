"""The SQLite engine. It stores records in one file and needs no server."""

from .engine import SqliteEngine, open_engine
from .location import file_exists

__all__ = ["SqliteEngine", "file_exists", "open_engine"]
