"""The engine for Redis and Valkey: on a single server, on a master with sentinels, or on a cluster."""

from .engine import RedisEngine, open_engine

__all__ = ["RedisEngine", "open_engine"]
