"""The engines that are compared: the server, the baseline and the target of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from perdure.storage.kit.servers import Dynoxide, ExtendDb, Postgres, Valkey

from ..report import Target, at_least
from .baseline import Baseline
from .baseline_dynamodb import BaselineDynamoDb
from .baseline_postgres import BaselinePostgres
from .baseline_redis import BaselineRedis
from .synthetic_tasks import Lifecycle

Served: TypeAlias = Postgres | Valkey | Dynoxide | ExtendDb


class EngineCase(msgspec.Struct, frozen=True, kw_only=True):
    """An engine with its own server."""

    name: str
    server: Callable[[], Served]
    baseline: Callable[[str, Iterator[Lifecycle]], Baseline]
    target: Target
    """The share of the baseline's throughput to reach with concurrent lifecycles."""


POSTGRES = EngineCase(name="PostgreSQL", server=Postgres, baseline=BaselinePostgres, target=at_least(0.7))
REDIS = EngineCase(
    name="Redis",
    server=lambda: Valkey({"auto-aof-rewrite-percentage": "0"}),  # a rewrite would slow down a random run
    baseline=BaselineRedis,
    target=at_least(0.7),
)
DYNOXIDE = EngineCase(
    name="DynamoDB (dynoxide)", server=Dynoxide, baseline=BaselineDynamoDb, target=at_least(0.8)
)
EXTENDDB = EngineCase(
    name="DynamoDB (ExtendDB)", server=ExtendDb, baseline=BaselineDynamoDb, target=at_least(0.8)
)
