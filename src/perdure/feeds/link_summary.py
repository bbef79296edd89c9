"""Link summaries: who shared which link in an hour or a day, how they are merged, and their ranking.

These functions are pure. A summary has every share with its time, so a window can start in the middle of it.
Its size is limited: the links that the fewest accounts shared are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ..storage import Micros, Record
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.clock import DAY
from ..storage.errors import StorageCorrupt
from .errors import CorruptFeedRecord
from .item import Item, Link

HOURS_PER_DAY = 24

MAX_HOUR_LINKS = 1000
MAX_DAY_LINKS = 300
MAX_SHARERS_PER_LINK = 2000
"""Maximum number of accounts of one link in a summary."""
MAX_SHARES_PER_ACCOUNT = 24
"""Maximum number of shares of one link by one account in a summary: the first ones, and the last."""
MAX_SUMMARY_BYTES = 200 * 1024
MAX_TITLE_CHARS = 300


class LinkRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A link and its shares in an hour or a day."""

    url: str
    share_count: int
    """How often it was shared."""
    last_offset: Micros
    """When it was last shared, relative to the start of the summary."""
    sharers: tuple[int, ...]
    """Indexes in `LinkSummary.accounts`, one for each share, earliest first."""
    offsets: tuple[Micros, ...]
    """The time of each of these shares, relative to the start of the summary."""
    title: str = ""
    shared_url: str = ""
    """The URL of the earliest share. It is empty if that is the normal form."""


class LinkSummary(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=1
):
    """The links of an hour or a day, those that the most accounts shared first."""

    start: Micros
    read_at: Micros
    """When reading the items started. Items that were stored later may be missing."""
    accounts: tuple[str, ...] = ()
    rows: tuple[LinkRow, ...] = ()
    left_out: int = 0
    """How many links were left out because of the limits."""


def parse_summary(record: Record) -> LinkSummary:
    """Decode a record. Raise NewerFormat or CorruptFeedRecord."""
    try:
        return summary_format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise CorruptFeedRecord(record.key, f"invalid link summary: {error}") from error


summary_format = BodyFormat(LinkSummary)


class Share(msgspec.Struct, frozen=True, gc=False):
    """One share of a link by an account."""

    account_id: str
    time: Micros
    link: Link


def item_shares(account_id: str, item: Item) -> Iterator[Share]:
    return (Share(account_id, item.time, link) for link in item.links)


# Making summaries


def summarize_hour(shares: Iterable[Share], *, start: Micros, read_at: Micros) -> LinkSummary:
    """Summarize the shares of an hour."""
    rows = [tally.row(start, MAX_SHARES_PER_ACCOUNT, MAX_SHARERS_PER_LINK) for tally in _tally_shares(shares)]
    return _fit_rows(rows, MAX_HOUR_LINKS, start, read_at)


def summarize_all(shares: Iterable[Share], *, start: Micros) -> LinkSummary:
    """Summarize all shares from a time on, without limits. Such a summary is not stored."""
    return _build_summary([tally.row(start, None, None) for tally in _tally_shares(shares)], start, start)


def merge_hours(hours: Iterable[LinkSummary], *, start: Micros, read_at: Micros) -> LinkSummary:
    """Merge the 24 hours of a day."""
    tallies: dict[str, _Tally] = {}
    for hour in sorted(hours, key=lambda each: each.start):
        for row in hour.rows:
            tally = _get_tally(tallies, row.url, row.shared_url)
            for number, offset in zip(row.sharers, row.offsets, strict=True):
                tally.add(hour.accounts[number], hour.start + offset, row.title)
            tally.share_count += row.share_count - len(row.sharers)
            tally.last = hour.start + row.last_offset
    rows = [tally.row(start, MAX_SHARES_PER_ACCOUNT, MAX_SHARERS_PER_LINK) for tally in tallies.values()]
    return _fit_rows(rows, MAX_DAY_LINKS, start, read_at)


def _tally_shares(shares: Iterable[Share]) -> Iterable[_Tally]:
    tallies: dict[str, _Tally] = {}
    for share in sorted(shares, key=lambda each: (each.time, each.account_id)):
        link = share.link
        _get_tally(tallies, link.url, link.shared_url).add(share.account_id, share.time, link.title)
    return tallies.values()


def _get_tally(tallies: dict[str, _Tally], url: str, shared: str) -> _Tally:
    found = tallies.get(url)
    if found is None:
        found = tallies[url] = _Tally(url, shared)
    return found


class _Tally:
    """The shares of one link, added in the order of their times."""

    def __init__(self, url: str, shared: str) -> None:
        self.share_count = 0
        self.last: Micros = 0
        self._url = url
        self._shared = shared
        self._title = ""
        self._by_account: dict[str, list[Micros]] = {}

    def add(self, account_id: str, time: Micros, title: str) -> None:
        self.share_count += 1
        self.last = time
        self._title = self._title or title
        self._by_account.setdefault(account_id, []).append(time)

    def row(self, start: Micros, max_shares: int | None, max_sharers: int | None) -> _NamedRow:
        """Return the shares, limited by the number of accounts and of shares of each."""
        some = list(self._by_account.items())[:max_sharers]
        shares = sorted((time, name) for name, times in some for time in _first_and_last(times, max_shares))
        return _NamedRow(
            url=self._url,
            share_count=self.share_count,
            last=self.last - start,
            shares=[(name, time - start) for time, name in shares],
            sharers=len(self._by_account),
            title=self._title[:MAX_TITLE_CHARS],
            shared_url=self._shared,
        )


def _first_and_last(times: list[Micros], limit: int | None) -> list[Micros]:
    """Return the first of these times and the last, at most as many as given."""
    return times if limit is None or len(times) <= limit else [*times[: limit - 1], times[-1]]


class _NamedRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row with account ids, before they are replaced with indexes."""

    url: str
    share_count: int
    last: Micros
    shares: list[tuple[str, Micros]]
    sharers: int
    title: str
    shared_url: str


def _fit_rows(rows: list[_NamedRow], max_links: int, start: Micros, read_at: Micros) -> LinkSummary:
    """Keep the links that the most accounts shared, then the newest, within the limits."""
    ranked = sorted(rows, key=lambda row: (-row.sharers, -row.last, row.url))
    count = min(len(ranked), max_links)
    while True:
        summary = _build_summary(ranked[:count], start, read_at)
        size = len(summary_format.encode(summary).encode())
        if size <= MAX_SUMMARY_BYTES or not count:
            return replace(summary, left_out=len(ranked) - count)
        count = min(count - 1, count * MAX_SUMMARY_BYTES // size)


def _build_summary(rows: Sequence[_NamedRow], start: Micros, read_at: Micros) -> LinkSummary:
    numbers: dict[str, int] = {}
    numbered = tuple(
        LinkRow(
            url=row.url,
            share_count=row.share_count,
            last_offset=row.last,
            sharers=tuple(numbers.setdefault(name, len(numbers)) for name, _ in row.shares),
            offsets=tuple(time for _, time in row.shares),
            title=row.title,
            shared_url=row.shared_url,
        )
        for row in rows
    )
    return LinkSummary(start=start, read_at=read_at, accounts=tuple(numbers), rows=numbered)


# Ranking


class SharedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link and the accounts that shared it in a window of time."""

    url: str
    """The normal form."""
    shared_url: str
    """The URL as it was first shared, to open it."""
    title: str
    first_shares: tuple[tuple[str, Micros], ...]
    """The accounts that shared it, each with the time of its first share, earliest first."""
    share_count: int
    """How often it was shared."""
    last_at: Micros
    today: int
    """Number of accounts that shared it in the last 24 hours."""
    day_before: int
    """Number of accounts that shared it in the 24 hours before that."""

    @property
    def sharers(self) -> tuple[str, ...]:
        return tuple(account_id for account_id, _ in self.first_shares)

    @property
    def first_at(self) -> Micros:
        return self.first_shares[0][1]


class LinkTotals:
    """Ranks the links of several summaries since a time.

    Nearly all links are shared once. So it first counts the shares of each link, which are at least as many
    as its accounts, and collects details only for links that can still be among the first.
    """

    def __init__(self, summaries: Iterable[LinkSummary] = (), *, since: Micros = 0, now: Micros = 0) -> None:
        self._since = since
        self._now = now
        self._summaries = list(summaries)
        self._recent: list[LinkSummary] = []

    def add(self, summary: LinkSummary) -> None:
        """Add a summary. One that starts before the window must have every share."""
        self._summaries.append(summary)

    def add_trend(self, summary: LinkSummary) -> None:
        """Add an hour of the last two days to the trend alone."""
        self._recent.append(summary)

    def links(self, limit: int | None = None) -> list[SharedLink]:
        """Return the links that the most accounts shared first, and of equal ones the newest first."""
        sums = self._sums()
        top = sorted(sums, key=sums.__getitem__, reverse=True)[:limit]
        details = self._details(top)
        threshold = min((len(detail.firsts) for detail in details.values()), default=0)
        details |= self._details(
            url for url, count in sums.items() if count >= threshold and url not in details
        )
        ranked = sorted((detail.rank, url, detail) for url, detail in details.items())
        return [detail.link(url) for _, url, detail in ranked[:limit]]

    def _sums(self) -> dict[str, int]:
        """Return how many shares each link has in the window. It has at most as many accounts."""
        sums: dict[str, int] = {}
        since, counted = self._since, sums.get
        for summary in self._summaries:
            start = summary.start
            if start >= since:
                for row in summary.rows:
                    url = row.url
                    sums[url] = counted(url, 0) + len(row.sharers)
                continue
            for row in summary.rows:
                if start + row.last_offset >= since:
                    within = sum(start + offset >= since for offset in row.offsets)
                    sums[row.url] = counted(row.url, 0) + within  # at least the last share
        return sums

    def _details(self, urls: Iterable[str]) -> dict[str, _LinkDetail]:
        details = {url: _LinkDetail() for url in urls}
        for summary in self._summaries:
            for row in summary.rows:
                if row.url in details:
                    details[row.url].add(summary, row, self._since)
        for summary in self._recent:
            for row in summary.rows:
                if row.url in details:
                    details[row.url].add_trend(summary, row, self._now)
        return details


class _LinkDetail:
    """Collects the shares of one link."""

    def __init__(self) -> None:
        self.firsts: dict[str, Micros] = {}
        self._times = 0
        self._last: Micros = 0
        self._today: set[str] = set()
        self._day_before: set[str] = set()
        self._title = self._shared = ""
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
            self._times += row.share_count if start >= since else counted
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
        """Keep the URL of the earliest share, and the earliest title."""
        if self._described_at is None or time < self._described_at:
            self._described_at, self._shared = time, row.shared_url
        if row.title and (self._titled_at is None or time < self._titled_at):
            self._titled_at, self._title = time, row.title

    def link(self, url: str) -> SharedLink:
        return SharedLink(
            url=url,
            shared_url=self._shared or url,
            title=self._title,
            first_shares=tuple(sorted(self.firsts.items(), key=lambda each: (each[1], each[0]))),
            share_count=self._times,
            last_at=self._last,
            today=len(self._today),
            day_before=len(self._day_before),
        )
