"""Failover from a master to a replica: what can be lost, and what cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from perdure.storage import Insert, Refused, open_storage
from perdure.storage.errors import CannotOpen, OutcomeUnknown, StorageUnavailable
from perdure.storage.kit.sample_records import NOW, SPACE, insert_each, make_record
from perdure.storage.kit.servers import Valkey, ValkeySentinel

from ..conditions import wait_until
from .redis_helpers import TEST_TIMEOUT, is_usable, opened, stress

pytestmark = pytest.mark.anyio


@pytest.fixture
def servers() -> Generator[ValkeySentinel]:
    with ValkeySentinel(failure_timeout=TEST_TIMEOUT) as servers:
        yield servers


async def replica_leads(servers: ValkeySentinel) -> bool:
    return await has_role(servers.replica, "master")


async def has_role(server: Valkey, role: str) -> bool:
    try:
        return f"role:{role}" in await asyncio.to_thread(server.send_command, "INFO", "replication")
    except ConnectionError:  # sentinels close the connections of a server whose role they change
        return False


async def fail_over(servers: ValkeySentinel) -> None:
    await asyncio.to_thread(servers.master.kill)
    await replica_takes_over(servers)


async def replica_takes_over(servers: ValkeySentinel) -> None:
    """Wait until the replica replaces a master that was killed or does not reply."""
    await asyncio.to_thread(servers.shorten_failure_timeout)
    await wait_until(lambda: replica_leads(servers))


async def test_with_a_replica_that_must_have_it_a_failover_loses_nothing_acknowledged(
    servers: ValkeySentinel,
) -> None:
    url = servers.new_url("&replicas=1")
    async with await opened(f"{url}&timeout=2") as storage:

        async def disturb() -> None:
            await fail_over(servers)
            await asyncio.to_thread(servers.master.start)  # it becomes the replica that writes wait for

        outcome = await stress(storage, disturb)
        assert outcome.acknowledged
        assert outcome.unavailable or outcome.unknown
    async with await opened(f"{url}&timeout={TEST_TIMEOUT}") as patient:
        await outcome.check(patient)


async def test_without_replicas_a_failover_leaves_commits_complete_and_writes_continue(
    servers: ValkeySentinel,
) -> None:
    url = servers.new_url()
    async with await opened(f"{url}&timeout=2") as storage:
        outcome = await stress(storage, lambda: fail_over(servers))
        assert outcome.unavailable or outcome.unknown
    async with await opened(f"{url}&timeout={TEST_TIMEOUT}") as patient:
        await outcome.check(patient, may_be_lost=True)


async def test_a_failover_loses_only_commits_that_were_not_acknowledged_with_replicas(
    servers: ValkeySentinel,
) -> None:
    url = servers.new_url()
    async with (
        await open_storage(url) as careless,
        await open_storage(f"{url}&replicas=1&replica_timeout={TEST_TIMEOUT}") as patient,
        await open_storage(f"{url}&replicas=1&replica_timeout=0.2") as careful,
    ):
        await insert_each(patient, make_record("before"))
        servers.replica.pause()
        servers.master.send_command("CLIENT", "KILL", "TYPE", "replica")
        await insert_each(careless, make_record("lost"))
        with pytest.raises(OutcomeUnknown):
            await careful.commit([Insert(record=make_record("in doubt"))], now=NOW)
        await asyncio.to_thread(servers.master.kill)
        servers.replica.resume()
        await replica_takes_over(servers)
        await wait_until(lambda: is_usable(careless))
        left = await careless.page(SPACE, limit=9, now=NOW)
        assert [record.key for record in left] == ["before"]


@pytest.mark.parametrize("writes", [True, False])
async def test_the_new_master_is_found_when_the_old_one_falls_silent(
    servers: ValkeySentinel, *, writes: bool
) -> None:
    async def is_served() -> bool:
        try:
            if writes:
                await storage.commit([Insert(record=make_record("after"))], now=NOW)
            else:
                await storage.get(make_record("before").address, now=NOW)
        except (StorageUnavailable, OutcomeUnknown):
            return False
        return True

    url = servers.new_url()
    async with await open_storage(url) as patient, await opened(f"{url}&timeout=0.5") as storage:
        await insert_each(patient, make_record("before"))
        servers.master.pause()
        try:
            await replica_takes_over(servers)
            await wait_until(is_served)
        finally:
            servers.master.resume()


async def test_a_master_that_has_become_a_replica_is_not_read(servers: ValkeySentinel) -> None:
    url = servers.new_url(f"&timeout={TEST_TIMEOUT}")
    async with await open_storage(url) as reader, await open_storage(url) as writer:
        assert await reader.get(make_record().address, now=NOW) is None
        servers.sentinels[0].send_command("SENTINEL", "FAILOVER", "perdure")
        await wait_until(lambda: replica_leads(servers))
        # Sentinels do this after some time. Here the master does not exist, so the data stays out of date.
        servers.master.send_command("REPLICAOF", "127.0.0.1", "1")
        servers.master.send_command("CLIENT", "KILL", "TYPE", "normal")
        await insert_each(writer, make_record())
        assert await reader.get(make_record().address, now=NOW) == make_record()


async def test_a_refused_commit_needs_no_replica(servers: ValkeySentinel) -> None:
    url = servers.new_url()
    async with (
        await open_storage(url) as careless,
        await open_storage(f"{url}&replicas=1&replica_timeout=0.1") as storage,
    ):
        await insert_each(careless, make_record())
        servers.replica.pause()
        try:
            refused = await storage.commit([Insert(record=make_record())], now=NOW)
        finally:
            servers.replica.resume()
        assert isinstance(refused, Refused)


async def test_sentinels_that_are_gone_and_a_service_that_they_do_not_know(servers: ValkeySentinel) -> None:
    with pytest.raises(StorageUnavailable):
        await open_storage(servers.new_url().replace("/perdure/", "/another/"))
    for sentinel in servers.sentinels:
        sentinel.stop()
    with pytest.raises(StorageUnavailable):
        await open_storage(servers.new_url())
    with pytest.raises(CannotOpen):
        await open_storage("redis+sentinel://127.0.0.1:1")
