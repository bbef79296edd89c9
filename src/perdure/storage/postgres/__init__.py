"""The PostgreSQL engine: records in one schema of a server, shared by any number of processes."""

from .engine import PostgresEngine, open_engine
from .schema import migrate

__all__ = ["PostgresEngine", "migrate", "open_engine"]
