"""The page of links over a month at the seed's scale: 342 accounts, 15 000 posts a day.

The baseline is the page of one day. Both are read as the dashboard does, from summaries that a poller has
written.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import median

import msgspec

from perdure.feeds import FeedStore, Item, Link, LinkIndex
from perdure.storage import Micros, open_storage
from perdure.storage.time_types import DAY, HOUR
from perdure.web.feeds import MAX_LINKS, MAX_RANKED_ITEMS

from ..report import ResultRow, at_most
from ..timing import Contender, race, ratio

ACCOUNTS = 342
WITH_LINKS = 0.4
"""The share of posts that have a link."""
FRESH = 0.7
"""The share of links that no other account shares. The others are the topics of the day."""
TOPICS = 400
"""Pages that are shared by several accounts in a day."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    days: int
    posts: int
    """Posts per day."""
    rounds: int


async def measure(folder: Path, workload: Workload) -> list[ResultRow]:
    async with await open_storage(f"sqlite:///{folder / 'links.db'}") as storage:
        clock = _Clock()
        store = FeedStore(storage, clock=clock)
        await _fill(store, workload)
        clock.now += HOUR  # no marked hour is left
        index = LinkIndex(store)
        for _ in range(3):
            await index.ranking(clock.now - 30 * DAY, limit=MAX_LINKS)
        day, month = (_reading(index, clock.now - span) for span in (DAY, 30 * DAY))
        baseline, subject = await race([day, month], workload.rounds)
    return [
        ResultRow(
            what=f"feeds, links of {workload.days} days at {workload.posts:,} posts a day / links of a day",
            baseline=f"{median(baseline) * 1000:.0f} ms",
            subject=f"{median(subject) * 1000:.0f} ms",
            ratio=ratio(subject, baseline),
            target=at_most(2),
        )
    ]


class _Clock:
    """A clock that the benchmark sets."""

    def __init__(self) -> None:
        self.now: Micros = 1_794_000_000_000_000

    def __call__(self) -> Micros:
        return self.now


def _reading(index: LinkIndex, since: Micros) -> Contender:
    async def read() -> None:
        ranking = await index.ranking(since, limit=MAX_LINKS, max_items=MAX_RANKED_ITEMS)
        assert ranking.missing_hours == 0
        assert len(ranking.links) == MAX_LINKS

    return read


async def _fill(store: FeedStore, workload: Workload) -> None:
    """Store the posts of the month, account by account, including those of the next hour."""
    chance, newest = Random(1), store.clock() + HOUR
    each = workload.posts * workload.days // ACCOUNTS
    for number in range(ACCOUNTS):
        account_id = f"did:plc:{number:024}"
        times = (newest - chance.randrange(workload.days * DAY) for _ in range(each))
        await store.add_items(account_id, [_item(chance, account_id, time) for time in times])


def _item(chance: Random, account_id: str, time: Micros) -> Item:
    uri = f"at://{account_id}/app.bsky.feed.post/{chance.getrandbits(64):x}"
    links = (_link(chance, time),) if chance.random() < WITH_LINKS else ()
    return Item(
        uri=uri, time=time, kind="post", post_uri=uri, author_id=account_id, author_handle="a.bsky.social",
        text="What people write beside a link, in as many words as a post usually has.", links=links,
    )  # fmt: skip


def _link(chance: Random, time: Micros) -> Link:
    """Return a link; the most popular topics are shared most often."""
    if chance.random() < FRESH:
        page = f"{chance.getrandbits(64):x}"
    else:
        page = f"{time // DAY}-{int(TOPICS * chance.random() ** 2)}"
    url = f"https://www.example.com/news/2026/11/{page}"
    return Link(url, "card", f"A headline of about sixty characters, number {page}", f"{url}?utm_source=bsky")
