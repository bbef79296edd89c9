"""Several poller processes share the accounts of one storage; one that is killed costs nothing but time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from perdure.feeds import FeedStore, PollSettings, transitions
from perdure.feeds.source import Profile
from perdure.storage import open_storage

from ..conditions import wait_until
from ..fork_server import PIPE, ForkedProcess, spawn
from ..storage.engines import new_url
from .fake_server.process import ROOT, FakeProcess, fake_process

pytestmark = pytest.mark.anyio

ACCOUNTS = 12
HOLD = 3.0


@asynccontextmanager
async def poller(url: str, fake: FakeProcess) -> AsyncGenerator[ForkedProcess]:
    command = ("-m", "tests.feeds.poller_process", url, fake.url, str(HOLD))
    process = await spawn(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert (await process.stdout.readline()).strip() == b"ready"
    try:
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def test_two_processes_and_a_kill_lose_nothing_and_read_no_account_at_the_same_time(
    on_shared_engine: str, tmp_path: Path
) -> None:
    url = await new_url(on_shared_engine, tmp_path)
    async with fake_process("--latency", "0.02") as fake, await open_storage(url) as storage:
        store = FeedStore(storage)
        dids: list[str] = await fake.order("populate", accounts=ACCOUNTS, posts=25, every=60_000_000)
        for did in dids:
            profile = Profile(account_id=did, handle=did)
            await store.add(transitions.new_account(profile, now=store.clock(), settings=PollSettings()))
        async with poller(url, fake) as one, poller(url, fake) as other:
            for number in range(40):
                await fake.order("world/publish", did=dids[number % ACCOUNTS], text=f"new {number}")
                if number == 20:
                    one.kill()
            wanted = {uri for did in dids for uri in await fake.order("world/everything_of", did=did)}

            async def is_all_found() -> bool:
                return wanted == {item.uri async for _, item in store.newest_items()}

            await wait_until(is_all_found, seconds=60)
            assert other.returncode is None
        assert overlaps(await fake.order("log")) == []
        for did in dids:
            account = (await store.get(did)).account
            assert (account.gaps, account.consecutive_failures) == ((), 0)


def overlaps(log: Sequence[Mapping[str, object]]) -> list[object]:
    """Requests for an account that began before the one before had ended."""
    asked: defaultdict[object, list[tuple[float, float]]] = defaultdict(list)
    for each in log:
        if each["path"] == "app.bsky.feed.getAuthorFeed":
            asked[each["actor"]].append((float(str(each["started"])), float(str(each["ended"]))))
    return [
        actor
        for actor, times in asked.items()
        for (_, ended), (began, _) in pairwise(sorted(times))
        if began < ended
    ]


def test_requests_that_overlap_are_seen() -> None:
    path = "app.bsky.feed.getAuthorFeed"
    first, inside, after = [
        {"path": path, "actor": "a", "started": began, "ended": ended}
        for began, ended in ((0.0, 2.0), (1.0, 3.0), (2.5, 4.0))
    ]
    assert overlaps([first, inside]) == ["a"]
    assert overlaps([first, after]) == []
    assert overlaps([first, {**inside, "actor": "b"}]) == []
