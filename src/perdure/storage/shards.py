"""Shards: the fixed number of parts that partitions fall into, for engines that spread over nodes.

A shard is the unit of every index across partitions: a Redis hash tag, a DynamoDB index key. Verbs across
partitions ask all shards and merge their answers in true order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")

SHARDS = 64
"""Stored data depends on it."""


def shard_of(partition: str) -> int:
    """Stored data depends on this too: the same number for ever, in every process."""
    return crc32(partition.encode()) % SHARDS


def merged(
    parts: Iterable[Iterable[T]],
    place: Callable[[T], tuple[object, ...]],
    limit: int,
    *,
    descending: bool = False,
) -> list[T]:
    """The first `limit` of several answers that are each in order."""
    return list(islice(merge(*parts, key=place, reverse=descending), limit))
