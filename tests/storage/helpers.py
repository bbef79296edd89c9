"""Helpers of the tests of every engine: commits, and calls that must return in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from perdure.storage import Change, Insert, Record, Storage
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE

T = TypeVar("T")

TIMEOUT = 120.0
"""Seconds after which a condition that is never met fails the test instead of hanging it."""


def inserting(record: Record) -> list[Change]:
    return [Insert(record=record)]


async def in_time(call: Awaitable[T]) -> T:
    """Wait for the result of a call that must return."""
    async with asyncio.timeout(TIMEOUT):
        return await call


async def outcomes(calls: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Return the result or the error of each call. Every call must end."""
    return await in_time(asyncio.gather(*calls, return_exceptions=True))


async def keys_of(storage: Storage, partition: str = PARTITION) -> list[str]:
    """Return the keys of a partition, in the order of the records."""
    return [record.key for record in await storage.page(SPACE, partition, limit=1000, now=NOW)]
