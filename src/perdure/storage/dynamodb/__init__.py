"""The DynamoDB engine, which stores all records in one table."""

from .engine import DynamoEngine, migrate, open_engine

__all__ = ["DynamoEngine", "migrate", "open_engine"]
