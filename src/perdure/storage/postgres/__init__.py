"""Records in PostgreSQL: the engine for many processes on many machines."""

from .engine import PostgresEngine, open_engine
from .schema import migrate

__all__ = ["PostgresEngine", "migrate", "open_engine"]
