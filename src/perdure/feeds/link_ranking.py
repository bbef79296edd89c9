"""Ranks links by the number of accounts that shared them, for example in a day, a week or a month.

Ranking a month takes only a little longer than ranking a day, because stored summaries of hours and days are
used (see `link_rollup_store`). Only the items of the newest hours are read each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from ..storage import Micros
from ..storage.time_types import DAY, HOUR
from .link_rollup import LinkRow, LinkSummary, summarize_all
from .link_rollup_store import SummaryReader, Window
from .store import FeedStore

L = TypeVar("L")

MAX_WINDOW: Micros = 31 * DAY
"""The longest time span that is ranked from summaries. For a longer span, all items in it are read."""


class SharedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link, and the accounts that shared it in the time span of a ranking."""

    url: str
    """The normalized URL (see `normalize_url`). Links with equal normalized URLs count as links to the same
    page."""
    shared_url: str
    """The URL as it was first shared. This is the URL to open."""
    title: str
    first_shares: tuple[tuple[str, Micros], ...]
    """Pairs of an account id and the time when that account first shared the link, earliest first."""
    share_count: int
    """Number of times that the link was shared."""
    last_at: Micros
    today: int
    """Number of accounts that shared the link in the last 24 hours."""
    day_before: int
    """Number of accounts that shared the link between 48 and 24 hours ago."""

    @property
    def sharers(self) -> tuple[str, ...]:
        return tuple(account_id for account_id, _ in self.first_shares)

    @property
    def first_at(self) -> Micros:
        return self.first_shares[0][1]


class Ranking(msgspec.Struct, Generic[L], frozen=True, kw_only=True):
    """Links, ranked by the number of accounts that shared them, highest first."""

    links: tuple[L, ...]
    missing_hours: int = 0
    """Number of hours that the ranking leaves out because the limit `max_items` was reached."""


class LinkIndex:
    """Ranks the links in the stored items."""

    def __init__(self, store: FeedStore) -> None:
        self._store = store

    async def ranking(
        self, since: Micros, *, limit: int, max_items: int | None = None
    ) -> Ranking[SharedLink]:
        """Return the links shared by the most accounts since the time `since`.

        For hours without a stored summary, items must be read. Reading stops after about `max_items` items.
        None means no limit. The newest hours, and time spans longer than `MAX_WINDOW`, are always read
        completely.
        """
        now = self._store.clock()
        window = Window(since=since, now=now)
        has_summaries = since >= now - MAX_WINDOW
        newest = await self._items_since(window.closed_until * HOUR if has_summaries else since)
        counted, recent, missing_hours = [newest], [newest], 0
        if has_summaries:
            reader = SummaryReader(self._store, window, max_items=max_items)
            async for day in reader.days():
                counted += day.counted
                recent += day.recent
            missing_hours = reader.missing_hours
        links = rank_links(counted, recent, since=since, now=now, limit=limit)
        return Ranking(links=links, missing_hours=missing_hours)

    async def refresh(self, *, max_items: int) -> None:
        """Create and store missing summaries, newest first. Skip hours whose items may still change.

        Stop after about `max_items` items have been read.
        """
        now = self._store.clock()
        window = Window(since=now - MAX_WINDOW, now=now)
        async for _ in SummaryReader(self._store, window, max_items=max_items, is_refresh=True).days():
            pass

    async def _items_since(self, start: Micros) -> LinkSummary:
        items = [pair async for pair in self._store.newest_items(since=start)]
        return summarize_all(items, start=start)


def rank_links(
    summaries: Sequence[LinkSummary],
    recent: Sequence[LinkSummary],
    *,
    since: Micros,
    now: Micros,
    limit: int | None = None,
) -> tuple[SharedLink, ...]:
    """Return the links in `summaries`, starting with the links shared by the most accounts.

    Links shared by the same number of accounts are sorted by their latest share, newest first. `recent`
    contains summaries of the last 48 hours, which are used to compute `today` and `day_before`. Shares before
    `since` do not count. If a summary starts before `since`, only shares whose times it lists can be counted.

    Most links are shared only once. A link has at least as many shares as accounts, so this function first
    counts the shares, and collects details only for links that can rank among the first `limit`.
    """

    def collect_details(urls: Iterable[str]) -> dict[str, _LinkDetail]:
        details = {url: _LinkDetail() for url in urls}
        for summary in summaries:
            for row in summary.rows:
                if row.url in details:
                    details[row.url].add(summary, row, since)
        for summary in recent:
            for row in summary.rows:
                if row.url in details:
                    details[row.url].add_trend(summary, row, now)
        return details

    counts = _count_shares(summaries, since)
    details = collect_details(sorted(counts, key=counts.__getitem__, reverse=True)[:limit])
    threshold = min((len(detail.firsts) for detail in details.values()), default=0)
    details |= collect_details(
        [url for url, count in counts.items() if count >= threshold and url not in details]
    )
    ranked = sorted((detail.rank, url, detail) for url, detail in details.items())
    return tuple(detail.link(url) for _, url, detail in ranked[:limit])


def _count_shares(summaries: Iterable[LinkSummary], since: Micros) -> dict[str, int]:
    """Count the listed shares of each link since the time `since`. Return the counts by URL."""
    counts: dict[str, int] = {}
    counted = counts.get
    for summary in summaries:
        start = summary.start
        if start >= since:
            for row in summary.rows:
                url = row.url
                counts[url] = counted(url, 0) + len(row.sharers)
            continue
        for row in summary.rows:
            if start + row.last_offset >= since:
                within = sum(start + offset >= since for offset in row.offsets)
                counts[row.url] = counted(row.url, 0) + within
    return counts


class _LinkDetail:
    """Collects the shares of one link from several summaries."""

    def __init__(self) -> None:
        self.firsts: dict[str, Micros] = {}
        self._share_count = 0
        self._last: Micros = 0
        self._today: set[str] = set()
        self._day_before: set[str] = set()
        self._title = self._shared_url = ""
        self._described_at: Micros | None = None
        self._titled_at: Micros | None = None

    def add(self, summary: LinkSummary, row: LinkRow, since: Micros) -> None:
        start, names, firsts, counted = summary.start, summary.accounts, self.firsts, 0
        for number, offset in zip(row.sharers, row.offsets, strict=True):
            time = start + offset
            if time >= since:
                counted += 1
                name = names[number]
                if name not in firsts or time < firsts[name]:
                    firsts[name] = time
        if counted:
            self._share_count += row.share_count if start >= since else counted
            self._last = max(self._last, start + row.last_offset)
            self._describe(start + row.offsets[0], row)

    def add_trend(self, summary: LinkSummary, row: LinkRow, now: Micros) -> None:
        for number, offset in zip(row.sharers, row.offsets, strict=True):
            time = summary.start + offset
            if time >= now - 2 * DAY:
                (self._today if time >= now - DAY else self._day_before).add(summary.accounts[number])

    @property
    def rank(self) -> tuple[int, Micros]:
        return -len(self.firsts), -self._last

    def _describe(self, time: Micros, row: LinkRow) -> None:
        """Keep the URL of the earliest share, and the title of the earliest share that has a title."""
        if self._described_at is None or time < self._described_at:
            self._described_at, self._shared_url = time, row.shared_url
        if row.title and (self._titled_at is None or time < self._titled_at):
            self._titled_at, self._title = time, row.title

    def link(self, url: str) -> SharedLink:
        return SharedLink(
            url=url,
            shared_url=self._shared_url or url,
            title=self._title,
            first_shares=tuple(sorted(self.firsts.items(), key=lambda each: (each[1], each[0]))),
            share_count=self._share_count,
            last_at=self._last,
            today=len(self._today),
            day_before=len(self._day_before),
        )
