"""What a poller does beside its polls: alarms, follow lists, old items, and posts that come late."""

from __future__ import annotations

import asyncio

from perdure.feeds import AccountStatus, Poller, PollSettings
from perdure.feeds.alarms import AlarmState
from perdure.feeds.errors import SourceUnavailable
from perdure.feeds.settings import FollowLists
from perdure.storage.time_types import HOUR, MINUTE

from .test_poller import TEN, Stage, failing, running, staged
from .virtual_time import in_virtual_time


def busy(stage: Stage) -> str:
    """An account with 300 posts in the last half hour."""
    did = stage.world.account("busy.test")
    for number in range(300):
        stage.world.publish(did, f"post {number}", at=stage.clock() - (300 - number) * 6 * 1_000_000)
    return did


@in_virtual_time
async def test_a_post_of_a_busy_account_that_is_dated_back_by_half_an_hour_is_found() -> None:
    stage = Stage(accounts=0)
    stage.dids.append(busy(stage))
    await stage.open()
    poller = stage.poller()
    await poller.run_once()
    for number in range(12 * 30):
        await asyncio.sleep(10)
        minutes = 29 if number % 10 == 0 else 0
        stage.world.publish(stage.dids[0], "late", created_at=stage.clock() - minutes * MINUTE)
        if number % 30 == 0:
            await poller.run_once()
    await asyncio.sleep(3600)
    for _ in range(2):
        await asyncio.sleep(3600)
        stage.world.publish(stage.dids[0], "now")
        await poller.run_once()
    assert await stage.missing() == set()


@in_virtual_time
async def test_a_running_poller_reports_alarms_and_their_end() -> None:
    stage = await staged(accounts=2)
    reported: list[tuple[str, AlarmState]] = []
    stage.source.before = failing(SourceUnavailable("status 503"), stage.dids[0])
    poller = Poller(
        stage.store, stage.source, TEN, on_alarm=lambda alarm, state: reported.append((alarm.kind, state))
    )
    async with running(poller):
        await asyncio.sleep(1800)
        assert reported == [("failing", "raised")]
        stage.source.before = None
        await asyncio.sleep(2400)
    assert reported == [("failing", "raised"), ("failing", "cleared")]


@in_virtual_time
async def test_a_running_poller_synchronises_follow_lists() -> None:
    stage = await staged(accounts=2)
    boss = stage.world.account("boss.test")
    followed = [stage.world.account(f"followed{number}.test") for number in range(3)]
    for did in followed[:2]:
        stage.world.follow(boss, did)
    lists = FollowLists(actors=("unknown.test", "boss.test"), interval=6 * HOUR, prune=True)
    poller = Poller(stage.store, stage.source, TEN, follow_lists=lists)
    async with running(poller):
        await asyncio.sleep(60)
        assert (await stage.account(followed[0])).poll_count == 1
        stage.world.unfollow(boss, followed[0])
        stage.world.follow(boss, followed[2])
        await asyncio.sleep(7 * 3600)
    assert (await stage.account(followed[0])).status is AccountStatus.SUSPENDED
    assert (await stage.account(followed[2])).status is AccountStatus.ACTIVE
    assert (await stage.account(stage.dids[0])).status is AccountStatus.ACTIVE  # which no list has added


@in_virtual_time
async def test_items_are_removed_when_they_are_too_old_and_nothing_else_is() -> None:
    stage = await staged(accounts=2, posts=0)
    polling = PollSettings(posts_per_page=10, retention_days=1)
    poller = Poller(stage.store, stage.source, polling)
    async with running(poller):
        for _ in range(3 * 24):
            for did in stage.dids:
                stage.world.publish(did, "post")
            await asyncio.sleep(3600)
    kept = [item async for _, item in stage.store.newest_items()]
    oldest = polling.oldest_kept(stage.clock())
    assert 2 * 22 <= len(kept) <= 2 * 25
    assert min(item.time for item in kept) >= oldest - 10 * MINUTE
    uris = {item.uri for item in kept}
    there = {uri: time for did in stage.dids for uri, time in stage.world.everything_of(did).items()}
    assert {uri for uri, time in there.items() if oldest + HOUR < time < stage.clock() - 6 * HOUR} <= uris
