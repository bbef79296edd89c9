"""The engine for Redis and Valkey: on a single server, on a master with sentinels, or on a cluster."""

from ..install_advice import without_extra

try:
    from .engine import RedisEngine, open_engine
except ModuleNotFoundError as error:
    raise without_extra("redis", error) from error

__all__ = ["RedisEngine", "open_engine"]
