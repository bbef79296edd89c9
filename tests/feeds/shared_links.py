"""Accounts that share links, and the ranking as it is counted from every single item."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random

import msgspec

from perdure.feeds import FeedStore, Item, Link, SharedLink
from perdure.storage import Micros
from perdure.storage.time_types import DAY


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What a ranking says of a link, without what depends on which of equal shares came first."""

    url: str
    firsts: tuple[tuple[str, Micros], ...]
    times: int
    last_at: Micros
    today: int
    day_before: int


def counted(links: Sequence[SharedLink]) -> list[Counted]:
    return [
        Counted(
            url=each.url,
            firsts=each.first_shares,
            times=each.share_count,
            last_at=each.last_at,
            today=each.today,
            day_before=each.day_before,
        )
        for each in links
    ]


async def recounted(store: FeedStore, since: Micros, limit: int) -> list[Counted]:
    """Count every item that is stored."""
    shares: defaultdict[str, list[tuple[Micros, str]]] = defaultdict(list)
    async for account_id, item in store.newest_items():
        for link in item.links:
            shares[link.url].append((item.time, account_id))
    now = store.clock()
    found = [_counted(url, times, since, now) for url, times in shares.items()]
    ranked = sorted((each for each in found if each.times), key=_rank)
    return ranked[:limit]


def _counted(url: str, shares: list[tuple[Micros, str]], since: Micros, now: Micros) -> Counted:
    within = sorted(each for each in shares if each[0] >= since)
    firsts: dict[str, Micros] = {}
    for time, account_id in within:
        firsts.setdefault(account_id, time)
    return Counted(
        url=url,
        firsts=tuple(sorted(firsts.items(), key=lambda each: (each[1], each[0]))),
        times=len(within),
        last_at=max((time for time, _ in within), default=0),
        today=len({account for time, account in shares if time >= now - DAY}),
        day_before=len({account for time, account in shares if now - 2 * DAY <= time < now - DAY}),
    )


def _rank(link: Counted) -> tuple[int, Micros, str]:
    return -len(link.firsts), -link.last_at, link.url


def item_at(account_id: str, time: Micros, *urls: str, name: str = "", title: str = "") -> Item:
    uri = f"at://{account_id}/{time}{name}"
    links = tuple(Link(url, "card", title) for url in urls)
    return Item(uri=uri, time=time, kind="post", post_uri=uri, author_id=account_id, links=links)


def random_item(chance: Random, account_id: str, time: Micros) -> Item:
    urls = {f"https://{chance.choice('abcdefg')}.example" for _ in range(chance.choice((0, 1, 1, 2)))}
    return item_at(account_id, time, *sorted(urls), name=f"-{chance.getrandbits(32)}")
