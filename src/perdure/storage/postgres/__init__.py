"""The PostgreSQL engine. It stores records in one schema, which any number of processes can share."""

from ..install_advice import without_extra

try:
    from .engine import PostgresEngine, open_engine
    from .schema import migrate
except ModuleNotFoundError as error:
    raise without_extra("postgres", error) from error

__all__ = ["PostgresEngine", "migrate", "open_engine"]
