"""Summaries of links on every engine: made once, made again when their items change, bounded, and removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import anyio
import pytest
from msgspec.structs import replace

from perdure.feeds import FeedStore, LinkIndex, Poller, PollSettings, Ranking, SharedLink
from perdure.feeds.link_invalidation import (
    DAYS,
    HOURS,
    LINKS,
    MARK_LIFETIME,
    MARKS,
    MAX_CLOCK_SKEW,
    SUMMARY_RETENTION,
)
from perdure.feeds.link_rollup import (
    MAX_DAY_LINKS,
    MAX_HOUR_LINKS,
    MAX_SHARERS_PER_LINK,
    MAX_SHARES_PER_ACCOUNT,
    MAX_SUMMARY_BYTES,
    merge_hours,
    parse_summary,
    summarize_hour,
    summary_format,
)
from perdure.operating.maintenance import inspect_records
from perdure.storage import Change, Committed, Guard, Micros, Record, Refused, Storage
from perdure.storage.memory import MemoryEngine
from perdure.storage.time_types import DAY, HOUR

from ..forwarding_engine import ForwardingEngine
from ..markers import row
from ..newer import newer, put
from .shared_links import counted, item_at, recounted
from .simulation import World, WorldSource
from .test_store import ANNA, START, added, damage, item, passes, settle, store

__all__ = ["store"]
pytestmark = pytest.mark.anyio

BOB = "did:plc:bob"
SETTLED = MARK_LIFETIME + MAX_CLOCK_SKEW + HOUR
A, B = "https://a.example", "https://b.example"


async def summaries(store: FeedStore, partition: str) -> list[Record]:
    return await store.storage.page(LINKS, partition, limit=1000, now=store.clock())


async def check(store: FeedStore, *spans: Micros) -> None:
    await settle(store)
    for span in spans:
        ranking = await LinkIndex(store).ranking(store.clock() - span, limit=9)
        assert counted(ranking.links) == await recounted(store, store.clock() - span, 9)


async def a_month(store: FeedStore) -> None:
    """Anna shares one link each day, and both share another each week."""
    for day in range(30):
        time = START - day * DAY - HOUR
        await store.add_items(ANNA, [item_at(ANNA, time, A, *([B] if day % 7 == 3 else []))])
        if day % 7 == 3:
            await store.add_items(BOB, [item_at(BOB, time, B)])
    passes(store, SETTLED)
    await settle(store)


# The ranking


async def test_a_day_a_week_and_a_month_differ(store: FeedStore) -> None:
    await a_month(store)
    for span, expected in ((DAY, [(A, 1)]), (7 * DAY, [(B, 2), (A, 7)]), (30 * DAY, [(B, 8), (A, 30)])):
        for _ in range(2):  # from items, and from summaries
            ranking = await LinkIndex(store).ranking(START - span + 1, limit=9)
            assert [(each.url, each.share_count) for each in ranking.links] == expected
    await check(store, HOUR, DAY, 7 * DAY, 30 * DAY, 60 * DAY)


async def test_a_ranking_names_the_first_sharer_and_the_trend(store: FeedStore) -> None:
    carl, dora = "did:plc:carl", "did:plc:dora"
    for hours, account_id in ((40, BOB), (30, ANNA), (20, carl), (10, BOB), (5, ANNA), (4, dora)):
        shared = item_at(account_id, START - hours * HOUR, A, title=f"T{hours}")
        await store.add_items(account_id, [shared])
    await settle(store)
    (link,) = (await LinkIndex(store).ranking(START - 35 * HOUR, limit=9)).links
    assert link.first_shares[0] == (ANNA, START - 30 * HOUR)
    assert (link.today, link.day_before, link.share_count) == (4, 2, 5)
    assert (link.sharers[1:], link.title) == ((carl, BOB, dora), "T30")


async def test_the_address_is_that_of_the_first_share(store: FeedStore) -> None:
    for hours, shared in ((30, "http://a.example/?utm_source=x"), (20, ""), (1, "http://a.example/")):
        shares = item_at(ANNA, START - hours * HOUR, A)
        links = (replace(shares.links[0], shared_url=shared),)
        await store.add_items(ANNA, [replace(shares, links=links)])
    await settle(store)
    (link,) = (await LinkIndex(store).ranking(START - 40 * HOUR, limit=9)).links
    assert (link.url, link.shared_url) == (A, "http://a.example/?utm_source=x")


# Changes


async def test_an_item_that_comes_late_is_counted_at_once_and_afterwards(store: FeedStore) -> None:
    await a_month(store)
    await check(store, 30 * DAY)
    for days in (1, 2, 12):
        await store.add_items(BOB, [item_at(BOB, START - days * DAY, A)])
        await check(store, 2 * DAY, 30 * DAY)
    passes(store, SETTLED)
    await check(store, 2 * DAY, 30 * DAY)
    await check(store, 2 * DAY, 30 * DAY)


async def test_items_that_are_removed_are_not_counted(store: FeedStore) -> None:
    await added(store)
    await a_month(store)
    await check(store, 30 * DAY)
    await store.remove(ANNA, with_items=True)
    await check(store, 2 * DAY, 30 * DAY)
    passes(store, SETTLED)
    await check(store, 2 * DAY, 30 * DAY)


async def test_hours_and_days_that_are_final_are_not_made_again(store: FeedStore) -> None:
    await a_month(store)
    for _ in range(3):
        await LinkIndex(store).refresh(max_items=10_000)
        await settle(store)
    assert len(await summaries(store, DAYS)) == 28
    before = [*await summaries(store, HOURS), *await summaries(store, DAYS)]
    await LinkIndex(store).ranking(store.clock() - 30 * DAY, limit=9)
    await LinkIndex(store).refresh(max_items=10_000)
    assert [*await summaries(store, HOURS), *await summaries(store, DAYS)] == before


async def test_a_refresh_leaves_hours_alone_that_are_still_changing(store: FeedStore) -> None:
    await store.add_items(ANNA, [item_at(ANNA, START - 9 * HOUR, A)])
    await settle(store)
    await LinkIndex(store).refresh(max_items=10_000)
    hour = (START - 9 * HOUR) // HOUR
    assert hour not in {record.order // HOUR for record in await summaries(store, HOURS)}
    passes(store, SETTLED)
    await LinkIndex(store).refresh(max_items=10_000)
    assert hour in {record.order // HOUR for record in await summaries(store, HOURS)}


async def test_bounded_readings_complete_the_ranking_one_after_the_other(store: FeedStore) -> None:
    await a_month(store)
    rankings: list[Ranking[SharedLink]] = []
    while not rankings or rankings[-1].missing_hours:
        rankings.append(await LinkIndex(store).ranking(store.clock() - 30 * DAY, limit=9, max_items=5))
    missing = [ranking.missing_hours for ranking in rankings]
    assert missing[0] > 0
    assert missing == sorted(missing, reverse=True)
    assert counted(rankings[-1].links) == await recounted(store, store.clock() - 30 * DAY, 9)


async def test_processes_that_summarise_the_same_hours_agree(store: FeedStore) -> None:
    await a_month(store)
    found: list[object] = []

    async def rank() -> None:
        other = FeedStore(store.storage, clock=store.clock)
        ranking = await LinkIndex(other).ranking(store.clock() - 30 * DAY, limit=9)
        found.append(counted(ranking.links))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(rank)
    assert found == [await recounted(store, store.clock() - 30 * DAY, 9)] * 3
    await check(store, 30 * DAY)


# Records


@row(130)
async def test_damaged_summaries_and_marks_are_made_again(store: FeedStore) -> None:
    await a_month(store)
    await check(store, 30 * DAY)
    await store.add_items(BOB, [item_at(BOB, START - 5 * DAY, A)])
    for partition in (MARKS, HOURS, DAYS):
        for record in (await summaries(store, partition))[::3]:
            await damage(store, record)
    await check(store, DAY, 30 * DAY)
    passes(store, SETTLED)
    await check(store, DAY, 30 * DAY)
    await check(store, DAY, 30 * DAY)
    assert not (await inspect_records(store.storage, repair=True, now=store.clock())).damaged


@row(105)
async def test_summaries_of_a_newer_version_are_left_as_they_are(store: FeedStore) -> None:
    await a_month(store)
    await check(store, 30 * DAY)
    changed = [
        await put(store.storage, record, newer(record.body), now=store.clock())
        for partition in (MARKS, HOURS, DAYS)
        for record in (await summaries(store, partition))[::9]
    ]
    await store.add_items(BOB, [item_at(BOB, START - 3 * DAY, A)])
    await check(store, 30 * DAY)
    passes(store, SETTLED)
    await check(store, 30 * DAY)
    stored = [each for partition in (MARKS, HOURS, DAYS) for each in await summaries(store, partition)]
    assert all(record in stored for record in changed)
    assert (await inspect_records(store.storage, repair=True, now=store.clock())).not_readable == len(changed)


async def test_summaries_expire_a_month_after_their_end(store: FeedStore) -> None:
    await a_month(store)
    await check(store, 30 * DAY)
    passes(store, 32 * DAY)
    await settle(store)
    kept = [*await summaries(store, MARKS), *await summaries(store, HOURS), *await summaries(store, DAYS)]
    assert all(record.order + DAY + SUMMARY_RETENTION > store.clock() for record in kept)
    passes(store, 2 * DAY)
    await settle(store)
    assert await store.storage.purge(until=store.clock(), limit=1000)
    assert not [*await summaries(store, HOURS), *await summaries(store, DAYS)]


# Costs


class Counting(ForwardingEngine):
    """Counts the commits of each space."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.commits: Counter[str] = Counter()

    async def line(self, verb: str) -> Storage:
        return self.storage

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        self.commits[changes[0].address.space] += 1
        return await super().commit(changes, guard=guard, now=now)


async def test_a_first_cycle_marks_each_day_once_and_an_idle_cycle_nothing() -> None:
    world = World()
    engine = Counting(Storage(MemoryEngine()))
    store = FeedStore(Storage(engine), clock=lambda: world.now)
    for number in range(30):
        did = world.account(f"n{number}.test")
        for hours in range(24, 0, -1):
            world.publish(did, "post", at=world.now - hours * HOUR)
        await added(store, did, f"n{number}.test")
    poller = Poller(store, WorldSource(world), PollSettings())
    assert (await poller.run_once()).new_items == 30 * 24
    assert engine.commits[LINKS] <= 3
    world.advance(HOUR // 4)
    before = engine.commits[LINKS]
    assert (await poller.run_once()).new_items == 0
    assert engine.commits[LINKS] - before <= 4  # the summaries, and no mark


def test_an_hour_is_bounded_and_keeps_the_links_that_the_greatest_number_of_accounts_shared() -> None:
    found = [
        (f"did:plc:{name}", item_at("", START + number, f"https://{number}.example"))
        for number in range(MAX_HOUR_LINKS + 50)
        for name in range(2 if number % 10 == 0 else 1)
    ]
    summary = summarize_hour(found, start=START, read_at=START)
    assert (len(summary.rows), summary.left_out) == (MAX_HOUR_LINKS, 50)
    assert [len(row.sharers) for row in summary.rows[:106]] == [2] * 105 + [1]


def test_a_summary_has_a_bounded_size_whatever_was_shared() -> None:
    long = "x" * 2000
    many = [
        (ANNA, item_at(ANNA, START + number, f"https://{number}.example/{long}")) for number in range(900)
    ]
    crowd = [
        (f"did:plc:{number:024}", item_at("", START + number, A))
        for number in range(MAX_SHARERS_PER_LINK + 500)
    ]
    for found in (many, crowd, [*many, *crowd]):
        hour = summarize_hour(found, start=START, read_at=START)
        day = merge_hours([hour], start=START, read_at=START)
        for summary in (hour, day):
            assert summary.rows
            assert len(summary_format.encode(summary).encode()) <= MAX_SUMMARY_BYTES
        assert len(day.rows) <= MAX_DAY_LINKS


def test_of_an_account_that_repeats_itself_a_few_times_are_kept_and_all_are_counted() -> None:
    found = [(ANNA, item_at(ANNA, START + second, A)) for second in range(99)]
    (repeated,) = summarize_hour(found, start=START, read_at=START).rows
    assert (len(repeated.sharers), repeated.share_count, repeated.last_offset) == (
        MAX_SHARES_PER_ACCOUNT,
        99,
        98,
    )
    assert repeated.offsets[-1] == 98


def test_a_summary_is_read_as_it_was_written() -> None:
    summary = summarize_hour([(ANNA, item(1))], start=START, read_at=START)
    record = Record(space=LINKS, partition=HOURS, key="1", order=1, body=summary_format.encode(summary))
    assert parse_summary(record) == summary
