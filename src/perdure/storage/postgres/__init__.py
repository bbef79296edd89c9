"""The PostgreSQL engine. It stores records in one schema, which any number of processes can share."""

from .engine import PostgresEngine, open_engine
from .schema import migrate

__all__ = ["PostgresEngine", "migrate", "open_engine"]
