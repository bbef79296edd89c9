"""Creates link summaries, which list the accounts that shared each link in an hour or a day.

The functions in this module are pure. A summary lists the times of shares, so that a ranking can start in the
middle of an hour or a day. The size of a stored summary is limited. If necessary, the links that were shared
by the fewest accounts are left out, and only some shares of very popular links are listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from ..storage import Micros, Record
from ..storage.body_format import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from .errors import CorruptFeedRecord
from .item import Item

MAX_HOUR_LINKS = 1000
MAX_DAY_LINKS = 300
MAX_SHARERS_PER_LINK = 2000
"""Maximum number of accounts that a summary lists for one link."""
MAX_SHARES_PER_ACCOUNT = 24
"""Maximum number of shares that a summary lists per link and account. If there are more, it lists the
earliest shares and the latest share."""
MAX_SUMMARY_BYTES = 200 * 1024
MAX_TITLE_CHARS = 300


class LinkRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A link in a summary, with its shares."""

    url: str
    share_count: int
    """Number of times that the link was shared, including shares that `sharers` does not list."""
    last_offset: Micros
    """The time of the latest share, relative to the start of the summary."""
    sharers: tuple[int, ...]
    """The account that made each share, as an index into `LinkSummary.accounts`, earliest share first."""
    offsets: tuple[Micros, ...]
    """The time of each share in `sharers`, relative to the start of the summary."""
    title: str = ""
    shared_url: str = ""
    """The URL as it was first shared. Empty if it equals `url` or is too long."""


class LinkSummary(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=1
):
    """The links that were shared in a time span, usually an hour or a day.

    A stored summary starts with the links that were shared by the most accounts.
    """

    start: Micros
    read_at: Micros
    """The time at which the summary was up to date. Later changes to the items may be missing."""
    accounts: tuple[str, ...] = ()
    rows: tuple[LinkRow, ...] = ()
    left_out: int = 0
    """Number of links that were left out to keep the summary small."""


def parse_summary(record: Record) -> LinkSummary:
    """Decode the record of a link summary. Raise NewerFormat or CorruptFeedRecord if that fails."""
    try:
        return summary_format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise CorruptFeedRecord(record.key, f"invalid link summary: {error}") from error


summary_format = BodyFormat(LinkSummary)


AccountItems: TypeAlias = Iterable[tuple[str, Item]]
"""Pairs of an account id and an item from the feed of that account."""


def summarize_hour(items: AccountItems, *, start: Micros, read_at: Micros) -> LinkSummary:
    return _fit_links(_tally_links(items), MAX_HOUR_LINKS, start, read_at)


def summarize_all(items: AccountItems, *, start: Micros) -> LinkSummary:
    """Return a summary of all links, without size limits. Such a summary is not stored."""
    return _build_summary(_tally_links(items), start, start, is_limited=False)


def merge_hours(hours: Iterable[LinkSummary], *, start: Micros, read_at: Micros) -> LinkSummary:
    """Merge the hourly summaries of a day into one summary."""
    tallies: dict[str, _Tally] = {}
    for hour in sorted(hours, key=lambda each: each.start):
        for row in hour.rows:
            tally = _get_tally(tallies, row.url, row.shared_url)
            for number, offset in zip(row.sharers, row.offsets, strict=True):
                tally.add(hour.accounts[number], hour.start + offset, row.title)
            tally.share_count += row.share_count - len(row.sharers)
            tally.last = hour.start + row.last_offset
    return _fit_links(tallies.values(), MAX_DAY_LINKS, start, read_at)


def _tally_links(items: AccountItems) -> Iterable[_Tally]:
    tallies: dict[str, _Tally] = {}
    shares = [(item.time, account_id, item.links) for account_id, item in items if item.links]
    for time, account_id, links in sorted(shares, key=itemgetter(0, 1)):
        for link in links:
            _get_tally(tallies, link.url, link.shared_url).add(account_id, time, link.title)
    return tallies.values()


def _get_tally(tallies: dict[str, _Tally], url: str, shared_url: str) -> _Tally:
    if url not in tallies:
        tallies[url] = _Tally(url, shared_url)
    return tallies[url]


class _Tally:
    """Collects the shares of one link. Shares must be added in chronological order."""

    def __init__(self, url: str, shared_url: str) -> None:
        self.url = url
        self.share_count = 0
        self.last: Micros = 0
        self.times: dict[str, list[Micros]] = {}
        """For each account id, the times at which the account shared the link."""
        self._shared_url = shared_url
        self._title = ""

    def add(self, account_id: str, time: Micros, title: str) -> None:
        self.share_count += 1
        self.last = time
        self._title = self._title or title
        self.times.setdefault(account_id, []).append(time)

    def row(self, start: Micros, numbers: dict[str, int], *, is_limited: bool) -> LinkRow:
        """Return a row for the link. Assign numbers to accounts that are not yet in `numbers`.

        With `is_limited`, apply the limits on accounts per link and on shares per account.
        """
        accounts = list(self.times.items())
        if is_limited:
            accounts = [(name, _first_and_last(times)) for name, times in accounts[:MAX_SHARERS_PER_LINK]]
        shares = sorted((time, name) for name, times in accounts for time in times)
        return LinkRow(
            url=self.url,
            share_count=self.share_count,
            last_offset=self.last - start,
            sharers=tuple(numbers.setdefault(name, len(numbers)) for _, name in shares),
            offsets=tuple(time - start for time, _ in shares),
            title=self._title[:MAX_TITLE_CHARS],
            shared_url=self._shared_url,
        )


def _first_and_last(times: list[Micros]) -> list[Micros]:
    """Return at most `MAX_SHARES_PER_ACCOUNT` of the times. Keep the earliest times and the latest time."""
    if len(times) <= MAX_SHARES_PER_ACCOUNT:
        return times
    return [*times[: MAX_SHARES_PER_ACCOUNT - 1], times[-1]]


def _fit_links(tallies: Iterable[_Tally], max_links: int, start: Micros, read_at: Micros) -> LinkSummary:
    """Return a summary of as many links as the limits allow. Prefer links shared by the most accounts."""
    ranked = sorted(tallies, key=lambda tally: (-len(tally.times), -tally.last, tally.url))
    count = min(len(ranked), max_links)
    while True:
        summary = _build_summary(ranked[:count], start, read_at, is_limited=True)
        size = len(summary_format.encode(summary).encode())
        if size <= MAX_SUMMARY_BYTES or not count:
            return replace(summary, left_out=len(ranked) - count)
        count = min(count - 1, count * MAX_SUMMARY_BYTES // size)


def _build_summary(
    tallies: Iterable[_Tally], start: Micros, read_at: Micros, *, is_limited: bool
) -> LinkSummary:
    numbers: dict[str, int] = {}
    rows = tuple(tally.row(start, numbers, is_limited=is_limited) for tally in tallies)
    return LinkSummary(start=start, read_at=read_at, accounts=tuple(numbers), rows=rows)
