"""The Redis and Valkey engine: one server, a master watched by sentinels, or a cluster."""

from .engine import RedisEngine, open_engine

__all__ = ["RedisEngine", "open_engine"]
