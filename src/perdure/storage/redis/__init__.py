"""Records in Redis or Valkey: one server, a master that sentinels watch, or a cluster."""

from .engine import RedisEngine, open_engine

__all__ = ["RedisEngine", "open_engine"]
