"""Shards: a fixed number of groups of partitions, for engines that distribute records over nodes.

Each index across partitions has a part for each shard: a Redis hash tag, or a DynamoDB index key. Verbs
across partitions query all shards and merge the sorted responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")

SHARD_COUNT = 64
"""Stored data depends on this number: never change it."""


def shard_of(partition: str) -> int:
    """Return the shard of a partition. Stored data depends on this function: never change it."""
    return crc32(partition.encode()) % SHARD_COUNT


def merge_sorted(
    parts: Iterable[Iterable[T]],
    key: Callable[[T], tuple[object, ...]],
    limit: int,
    *,
    descending: bool = False,
) -> list[T]:
    """Merge several sorted parts, and return the first `limit` items."""
    return list(islice(merge(*parts, key=key, reverse=descending), limit))
