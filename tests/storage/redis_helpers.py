"""Helpers of the Redis tests: storages on servers, direct access to servers, and concurrent commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, cast

import msgspec
import pytest
from redis.asyncio import Redis

from perdure.storage import Committed, Insert, Record, Space, Storage, open_storage
from perdure.storage.errors import OutcomeUnknown, StorageUnavailable
from perdure.storage.kit import Subject
from perdure.storage.kit.sample_records import NOW, OTHER_SPACE, SPACE, make_record
from perdure.storage.kit.servers import Valkey

from ..conditions import wait_until
from .engines import at

TEST_TIMEOUT = 60.0
"""Seconds after which a test fails instead of hanging."""


class Servers(Protocol):
    def new_url(self, options: str = "") -> str: ...


@asynccontextmanager
async def storage_on(servers: Servers, options: str = "") -> AsyncGenerator[Storage]:
    async with await open_storage(servers.new_url(options)) as storage:
        yield storage


def subject_on(servers: Servers, options: str = "") -> AbstractAsyncContextManager[Subject]:
    """Return a new storage as a subject of the kit."""
    return at(servers.new_url(options))


@asynccontextmanager
async def client_of(server: Valkey) -> AsyncGenerator[Any]:
    """Yield the driver's own client, to read the server directly. Its own types are incomplete."""
    redis = Redis(
        host="127.0.0.1", port=server.port, socket_timeout=TEST_TIMEOUT, socket_connect_timeout=TEST_TIMEOUT
    )
    async with cast("Any", redis) as client:
        yield client


async def opened(url: str) -> Storage:
    """Open a storage with several attempts: the timeout is short, or a server is not ready yet."""
    async with asyncio.timeout(TEST_TIMEOUT):
        while True:
            try:
                return await open_storage(url)
            except StorageUnavailable:
                await asyncio.sleep(0.02)


@pytest.fixture
async def storage(url: str) -> AsyncGenerator[Storage]:
    """A storage at `url` with a long timeout."""
    async with await open_storage(f"{url}&timeout={TEST_TIMEOUT}") as storage:
        yield storage


@pytest.fixture
async def hasty(url: str) -> AsyncGenerator[Storage]:
    """A storage at `url` with a short timeout."""
    async with await opened(f"{url}&timeout=2") as storage:
        yield storage


async def keys_of(server: Valkey) -> list[bytes]:
    async with client_of(server) as client:
        return sorted(await client.keys("*"))


async def is_usable(storage: Storage) -> bool:
    """Whether every shard can be read and one written."""
    try:
        await storage.counts(SPACE, now=NOW)
        await storage.commit([Insert(record=make_record("usable", space=Space("probe")))], now=NOW)
    except (StorageUnavailable, OutcomeUnknown):
        return False
    return True


class StressResult(msgspec.Struct):
    """The outcomes of commits of three records each, in two spaces."""

    acknowledged: list[str] = []
    unavailable: list[str] = []
    unknown: list[str] = []
    ended: bool = False

    async def write(self, storage: Storage, writer: int) -> None:
        number = 0
        while not self.ended:
            name = f"{writer}.{number}"
            number += 1
            try:
                result = await storage.commit(
                    [Insert(record=each) for each in records_of_commit(name)], now=NOW
                )
            except StorageUnavailable:
                self.unavailable.append(name)
            except OutcomeUnknown:
                self.unknown.append(name)
            else:
                assert isinstance(result, Committed)
                self.acknowledged.append(name)

    async def check(self, storage: Storage, *, may_be_lost: bool = False) -> list[str]:
        """Check that each commit is complete or absent, as its outcome says.

        Return acknowledged commits that are absent.
        """
        names = [*self.acknowledged, *self.unavailable, *self.unknown]
        there = dict(
            zip(names, await asyncio.gather(*(_is_whole(storage, name) for name in names)), strict=True)
        )
        assert not [name for name in self.unavailable if there[name]]
        lost = [name for name in self.acknowledged if not there[name]]
        assert may_be_lost or not lost
        assert (await storage.maintain()).findings == ()
        counts = await storage.counts(SPACE, now=NOW)
        assert sum(counts.values()) == 2 * sum(there.values())
        return lost


def records_of_commit(name: str) -> Sequence[Record]:
    partition = f"p{name.partition('.')[0]}"
    return (
        make_record(f"{name}a", partition=partition, tag="a", lane="l", wake_at=1),
        make_record(f"{name}b", partition=partition, tag="b", expires_at=NOW + 9),
        make_record(f"{name}c", partition=partition, space=OTHER_SPACE),
    )


async def _is_whole(storage: Storage, name: str) -> bool:
    found = await storage.get_many([each.address for each in records_of_commit(name)], now=NOW)
    assert found in ([None] * 3, list(records_of_commit(name))), f"a half of {name} is there"
    return None not in found


async def stress(
    storage: Storage,
    disturb: Callable[[], Awaitable[None]],
    writers: int = 12,
    outcome: StressResult | None = None,
) -> StressResult:
    """Let writers commit during a disturbance, and a little longer."""
    outcome = StressResult() if outcome is None else outcome
    writers_running = [asyncio.create_task(outcome.write(storage, writer)) for writer in range(writers)]

    async def has_started() -> bool:
        return bool(outcome.acknowledged)

    try:
        await asyncio.sleep(0.2)
        await wait_until(has_started)
        await disturb()
        await wait_until(lambda: is_usable(storage))
        await asyncio.sleep(0.2)
    finally:
        outcome.ended = True
        async with asyncio.timeout(TEST_TIMEOUT):
            await asyncio.gather(*writers_running)
    return outcome
