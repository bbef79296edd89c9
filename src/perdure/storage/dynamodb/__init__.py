"""The DynamoDB engine, which stores all records in one table."""

from ..install_advice import without_extra

try:
    from .engine import DynamoEngine, migrate, open_engine
except ModuleNotFoundError as error:
    raise without_extra("dynamodb", error) from error

__all__ = ["DynamoEngine", "migrate", "open_engine"]
