"""Records in a DynamoDB table: the engine that needs no server of one's own."""

from .engine import DynamoEngine, migrate, open_engine

__all__ = ["DynamoEngine", "migrate", "open_engine"]
