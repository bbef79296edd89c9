"""Divides partitions into a fixed number of shards, for engines that distribute records over several nodes.

An index across all partitions consists of one part for each shard. Each part has its own hash tag (Redis) or
partition key (DynamoDB). A query across all partitions reads every part and merges the sorted results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")

SHARD_COUNT = 64
"""Number of shards. Never change this number: it determines where records are stored."""


def shard_of(partition: str) -> int:
    """Return the shard of a partition. Never change this function: it determines where records are stored."""
    return crc32(partition.encode()) % SHARD_COUNT


def merge_sorted(
    parts: Iterable[Iterable[T]],
    key: Callable[[T], tuple[object, ...]],
    limit: int,
    *,
    descending: bool = False,
) -> list[T]:
    """Merge several sorted iterables, and return the first `limit` items of the merged sequence."""
    return list(islice(merge(*parts, key=key, reverse=descending), limit))
