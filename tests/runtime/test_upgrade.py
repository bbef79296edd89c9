"""Today's version and an invented future one work on one storage at the same time, as two processes."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.feeds import FeedStore, Poller, PollSettings, transitions
from perdure.feeds.account import ACCOUNTS
from perdure.feeds.item import ITEMS
from perdure.runtime import Runtime
from perdure.storage import Address, Record, Storage, open_storage
from perdure.storage.body_format import number_of
from perdure.storage.errors import NewerFormat
from perdure.storage.time_types import system_clock
from perdure.tasks import TaskStore
from perdure.tasks.idempotency import IDEMPOTENCY_KEYS
from perdure.tasks.task_snapshot import LEASES, TASKS

from .. import task_edits
from ..feeds.simulation import World, WorldSource
from ..markers import row
from ..storage.engines import new_url
from .faulty_storage import ME
from .replicas import UNHURRIED, leave_with_a_dead_worker, value_of
from .upgrade import FEED
from .upgrade_app import app
from .worker_process import ROOT, worker

pytestmark = pytest.mark.anyio

RUN = "import tests.future, runpy; runpy.run_module('tests.runtime.upgrade', run_name='__main__')"
APP = "tests.runtime.upgrade_app:app"


async def future(url: str, command: str, *arguments: str) -> bytes:
    """What a process of the future version prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, command, url, *arguments, cwd=ROOT, stdout=PIPE
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), 100)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    return printed


async def all_records(storage: Storage) -> Mapping[Address, Record]:
    await asyncio.sleep(storage.lag)
    spaces = (TASKS, LEASES, IDEMPOTENCY_KEYS, ACCOUNTS, ITEMS)
    pages = [await storage.page(space, limit=100, now=system_clock()) for space in spaces]
    return {record.address: record for page in pages for record in page}


async def poll_own_account(storage: Storage) -> None:
    """Add an account and poll what is due, which the account of the future version is too."""
    store, world = FeedStore(storage), World(clock=system_clock)
    did = world.account("today.test")
    world.publish(did, "post", at=system_clock() - 1_000_000)
    source = WorldSource(world)
    [profile] = await source.profiles([did])
    await store.add(transitions.new_account(profile, now=system_clock(), settings=PollSettings()))
    await asyncio.sleep(storage.lag)
    assert [each.account.account_id for each in await store.due(9)] == [did]
    cycle = await Poller(store, source, PollSettings()).run_once()
    assert (cycle.polled, cycle.new_items) == (1, 1)


@row(105)
async def test_today_and_a_future_version_share_one_storage(
    on_shared_engine: str, tmp_path: Path, anyio_backend: str
) -> None:
    url = await new_url(on_shared_engine, tmp_path)
    made = [
        task_id
        for command in ("start", "queue")
        for task_id in msgspec.json.decode(await future(url, command), type=list[str])
    ]
    async with await open_storage(url) as storage:
        before = await all_records(storage)
        assert {address.space for address in before} == {TASKS, LEASES, IDEMPOTENCY_KEYS, ACCOUNTS, ITEMS}
        assert {number_of(record.body) for record in before.values()} == {2, 3}  # of tasks, of feeds
        client = Runtime(TaskStore(storage, application="tests"), app.functions, UNHURRIED)
        async with worker(url, APP, config=UNHURRIED):
            # The future process is down. Today's worker runs its own tasks, and recovers one that was lost
            # after those of the future version.
            mine = await leave_with_a_dead_worker(client, ME, "todays")
            assert value_of(await client.wait(ME, mine, 60)) == "today's"
            await poll_own_account(storage)
            assert (await task_edits.quarantine_damaged(client.store)).not_readable == len(made)
            for task_id in made:
                with pytest.raises(NewerFormat):
                    await client.cancel(ME, task_id)
            now = {**await all_records(storage)}
            assert {address: now.get(address) for address in before} == before

            # Both work at the same time, and each finishes its own tasks.
            finishing = asyncio.create_task(future(url, "finish", *made))
            for _ in range(10):
                task = await client.submit("todays")
                assert value_of(await client.wait(ME, task.task.task_id, 60)) == "today's"
            results = msgspec.json.decode(await finishing, type=dict[str, Any])
        assert results.pop(FEED) == ["video"]
        assert [results[task_id] for task_id in made] == [
            *("quick", "ElicitationAnswer", "ElicitationAnswer"),
            *["quick"] * 5,
        ]
        after = await all_records(storage)
        assert {number_of(after[address].body) for address in before if address in after} == {2, 3}
        assert {address for address in before if address.space == TASKS} <= after.keys()
