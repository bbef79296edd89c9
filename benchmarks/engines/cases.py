"""The engines of the contest: which server each runs on, which floor it has, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from perdure.storage.kit.servers import Dynoxide, ExtendDb, Postgres, Valkey

from ..report import Target, at_least
from .baseline_dynamodb import BareDynamoDb
from .baseline_postgres import BarePostgres
from .baseline_redis import BareRedis
from .copies import Life
from .floor import Floor

Served: TypeAlias = Postgres | Valkey | Dynoxide | ExtendDb


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Each side starts a server of its own."""

    name: str
    server: Callable[[], Served]
    floor: Callable[[str, Iterator[Life]], Floor]
    target: Target
    """Of lives in flight together: the share of the floor's throughput that is to be reached."""


POSTGRES = Side(name="PostgreSQL", server=Postgres, floor=BarePostgres, target=at_least(0.7))
REDIS = Side(
    name="Redis",
    server=lambda: Valkey({"auto-aof-rewrite-percentage": "0"}),  # at a time of its own, it would hit anybody
    floor=BareRedis,
    target=at_least(0.7),
)
DYNOXIDE = Side(name="DynamoDB (dynoxide)", server=Dynoxide, floor=BareDynamoDb, target=at_least(0.8))
EXTENDDB = Side(name="DynamoDB (ExtendDB)", server=ExtendDb, floor=BareDynamoDb, target=at_least(0.8))
