"""A storage is not copied silently while processes work on it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from perdure.feeds import FeedStore, PollSettings, Profile, transitions
from perdure.feeds.account import Lease
from perdure.operating.maintenance import count_live_claims
from perdure.runtime.lease import Holder
from perdure.storage import Micros, Storage, open_storage
from perdure.storage.time_types import HOUR, system_clock
from perdure.tasks import TaskStore

from ..cli.command import CommandResult, folder_url, run_command
from ..tasks.samples import ANA, CALL

pytestmark = pytest.mark.anyio


async def copied(source: str, target: str, *options: str) -> CommandResult:
    return await run_command("copy", target, "--url", source, *options)


async def add_leased_account(storage: Storage, name: str, until: Micros) -> None:
    store = FeedStore(storage)
    profile = Profile(account_id=f"did:plc:{name}", handle=f"{name}.test")
    account = transitions.new_account(profile, now=store.clock(), settings=PollSettings())
    await store.add(msgspec.structs.replace(account, lease=Lease("a poller", until)))


async def create_claimed_task(storage: Storage, *, lasts: Micros) -> None:
    task = await TaskStore(storage, application="tests").create(ANA, CALL)
    claim = Holder("worker#1", "tests", lasts, system_clock).take(task, None)
    await storage.commit([claim], now=system_clock())


async def test_a_copy_warns_of_tasks_and_accounts_that_live_processes_work_on(tmp_path: Path) -> None:
    source, now = folder_url(tmp_path), system_clock()
    async with await open_storage(source) as storage:
        for lasts in (HOUR, HOUR, -HOUR):
            await create_claimed_task(storage, lasts=lasts)
        await add_leased_account(storage, "alice", now + HOUR)
        await add_leased_account(storage, "bob", now - HOUR)
        live = await count_live_claims(storage, now=now)
    assert (live.tasks, live.accounts) == (2, 1)  # the others were left by processes that are gone
    ended = await copied(source, f"sqlite:///{tmp_path / 'first.db'}")
    assert (ended.code, ended.err) == (
        0,
        "2 tasks are being run by live workers and 1 account is being polled; their changes may be lost."
        " Stop all servers and workers first.\n",
    )
    result = await copied(source, f"sqlite:///{tmp_path / 'second.db'}", "--json")
    assert result.err == ended.err
    assert (result.document["live_tasks"], result.document["live_accounts"]) == (2, 1)


async def test_a_copy_of_an_unused_storage_has_no_warning(tmp_path: Path) -> None:
    source, now = folder_url(tmp_path), system_clock()
    async with await open_storage(source) as storage:
        await add_leased_account(storage, "bob", now - HOUR)
    ended = await copied(source, f"sqlite:///{tmp_path / 'target.db'}")
    assert (ended.code, ended.err) == (0, "")
    assert re.search(r"Copy verified: all records are identical.\n$", ended.out)
