"""The SQLite engine: records in one file, without a server."""

from .engine import SqliteEngine, open_engine
from .location import file_exists

__all__ = ["SqliteEngine", "file_exists", "open_engine"]
