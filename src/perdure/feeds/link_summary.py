"""Summaries of links: who shared what in an hour or a day, how they are merged, and the ranking. Pure.

An hour holds every share with its time, so that a window may start in the middle of it. A day holds the first
share of each account. Both are bounded: what is left out is shared by the fewest accounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ..storage import Micros, Record
from ..storage.body import FORMAT_FIELD, BodyFormat
from ..storage.errors import StorageCorrupt
from .errors import CorruptFeed
from .item import Item, Link
from .settings import HOUR

DAY: Micros = 24 * HOUR
HOURS_OF_DAY = 24

MAX_HOUR_LINKS = 1000
MAX_DAY_LINKS = 300
MAX_SHARERS = 2000
"""Accounts of one link in a summary."""
MAX_SHARES = 10
"""Times that are kept of one account and link in an hour: the first ones."""
MAX_BYTES = 200 * 1024
"""Of a body."""
MAX_TITLE = 300
"""Characters."""


class Row(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A link, and its shares in an hour or a day."""

    url: str
    times: int
    """How often it was shared."""
    last: Micros
    """When it was last shared, counted from the start of the summary."""
    shares: tuple[tuple[int, Micros], ...]
    """The number of an account in the summary's table, and a time counted from the start; earliest first."""
    title: str = ""
    shared: str = ""
    """The address of the earliest share. Empty: it is the normal form."""


class LinkSummary(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=FORMAT_FIELD, tag=1
):
    """The links of an hour or a day, those of the most accounts first."""

    start: Micros
    read_at: Micros
    """When reading the items started. What was stored later may be missing."""
    accounts: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    left_out: int = 0
    """Links for which there was no room."""


def summary_in(record: Record) -> LinkSummary:
    """Return the summary of a record. Raises NewerFormat or CorruptFeed."""
    try:
        return summary_format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise CorruptFeed(record.key, f"not a summary of links: {error}") from error


summary_format = BodyFormat(LinkSummary)


class Share(msgspec.Struct, frozen=True, gc=False):
    """An account shared a link."""

    account_id: str
    time: Micros
    link: Link


def shares_of(account_id: str, item: Item) -> Iterator[Share]:
    return (Share(account_id, item.time, link) for link in item.links)


# Making summaries


def hour_of(shares: Iterable[Share], *, start: Micros, read_at: Micros) -> LinkSummary:
    """Summarise the shares of an hour."""
    tallies: dict[str, _HourTally] = {}
    for share in sorted(shares, key=lambda each: (each.time, each.account_id)):
        tallies.setdefault(share.link.url, _HourTally(share)).add(share)
    return _bounded([tally.row(start) for tally in tallies.values()], MAX_HOUR_LINKS, start, read_at)


class _HourTally:
    """The shares of one link in an hour, earliest first."""

    def __init__(self, first: Share) -> None:
        self._link = first.link
        self._title = ""
        self._times = 0
        self._last: Micros = 0
        self._by_account: dict[str, list[Micros]] = {}

    def add(self, share: Share) -> None:
        self._times += 1
        self._last = share.time
        self._title = self._title or share.link.title
        times = self._by_account.setdefault(share.account_id, [])
        if len(times) < MAX_SHARES:
            times.append(share.time)

    def row(self, start: Micros) -> _NamedRow:
        some = list(self._by_account.items())[:MAX_SHARERS]
        shares = sorted((time, account_id) for account_id, times in some for time in times)
        return _NamedRow(
            url=self._link.url,
            times=self._times,
            last=self._last - start,
            shares=[(account_id, time - start) for time, account_id in shares],
            sharers=len(self._by_account),
            title=self._title[:MAX_TITLE],
            shared=self._link.shared,
        )


class _NamedRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row in which accounts are named, before there is a table of them."""

    url: str
    times: int
    last: Micros
    shares: list[tuple[str, Micros]]
    sharers: int
    title: str
    shared: str


def day_of(hours: Iterable[LinkSummary], *, start: Micros, read_at: Micros) -> LinkSummary:
    """Merge the 24 hours of a day."""
    totals = Totals()
    for hour in hours:
        totals.add(hour)
    rows = [
        _NamedRow(
            url=each.url,
            times=each.times,
            last=each.last_at - start,
            shares=[(sharer, time - start) for sharer, time in each.firsts[:MAX_SHARERS]],
            sharers=len(each.firsts),
            title=each.title,
            shared="" if each.address == each.url else each.address,
        )
        for each in totals.links()
    ]
    return _bounded(rows, MAX_DAY_LINKS, start, read_at)


def _bounded(rows: list[_NamedRow], most: int, start: Micros, read_at: Micros) -> LinkSummary:
    """Keep the links of the most accounts, the newest of them, as far as there is room."""
    ranked = sorted(rows, key=lambda row: (-row.sharers, -row.last, row.url))
    count = min(len(ranked), most)
    while True:
        summary = _with_table(ranked[:count], start, read_at)
        size = len(summary_format.encode(summary).encode())
        if size <= MAX_BYTES or not count:
            return replace(summary, left_out=len(ranked) - count)
        count = min(count - 1, count * MAX_BYTES // size)


def _with_table(rows: Sequence[_NamedRow], start: Micros, read_at: Micros) -> LinkSummary:
    numbers: dict[str, int] = {}
    numbered = tuple(
        Row(
            url=row.url,
            times=row.times,
            last=row.last,
            shares=tuple((numbers.setdefault(name, len(numbers)), time) for name, time in row.shares),
            title=row.title,
            shared=row.shared,
        )
        for row in rows
    )
    return LinkSummary(start=start, read_at=read_at, accounts=tuple(numbers), rows=numbered)


# Ranking


class SharedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link, and who shared it within a window of time."""

    url: str
    """The normal form."""
    address: str
    """As it was first shared: what is opened."""
    title: str
    firsts: tuple[tuple[str, Micros], ...]
    """The accounts that shared it, each with the time of its first share, earliest first."""
    times: int
    """How often it was shared."""
    last_at: Micros
    today: int
    """Accounts that shared it in the last 24 hours."""
    day_before: int
    """Accounts that shared it in the 24 hours before that."""

    @property
    def sharers(self) -> tuple[str, ...]:
        return tuple(account_id for account_id, _ in self.firsts)

    @property
    def first_at(self) -> Micros:
        return self.firsts[0][1]


class Totals:
    """What was shared since a time, added up from summaries and single shares in any order."""

    def __init__(self, *, since: Micros = 0, now: Micros | None = None) -> None:
        """Without `now`, no trend is counted."""
        self._since = since
        self._today = None if now is None else now - DAY
        self._day_before = None if now is None else now - 2 * DAY
        self._links: dict[str, _Total] = {}

    def add(self, summary: LinkSummary) -> None:
        """Add an hour, or a day that lies wholly within the window."""
        start, accounts = summary.start, summary.accounts
        is_whole = start >= self._since
        for row in summary.rows:
            total = self._total(row.url)
            counted = 0
            for number, offset in row.shares:
                counted += self._share(total, accounts[number], start + offset)
            if counted:
                total.times += row.times if is_whole else counted
                total.last = max(total.last, start + row.last)
                total.describe(start + row.shares[0][1], row.title, row.shared)

    def add_share(self, share: Share) -> None:
        link = share.link
        total = self._total(link.url)
        if self._share(total, share.account_id, share.time):
            total.times += 1
            total.last = max(total.last, share.time)
            total.describe(share.time, link.title, link.shared)

    def _total(self, url: str) -> _Total:
        found = self._links.get(url)
        if found is None:
            found = self._links[url] = _Total()
        return found

    def _share(self, total: _Total, account_id: str, time: Micros) -> bool:
        """Count a share; return whether it is within the window."""
        if self._today is not None and self._day_before is not None and time >= self._day_before:
            (total.today if time >= self._today else total.day_before).add(account_id)
        if time < self._since:
            return False
        first = total.firsts.get(account_id)
        if first is None or time < first:
            total.firsts[account_id] = time
        return True

    def links(self, limit: int | None = None) -> list[SharedLink]:
        """Return the links of the most accounts first, and of equal ones the newest."""
        shared = [(url, total) for url, total in self._links.items() if total.firsts]
        shared.sort(key=lambda each: (-len(each[1].firsts), -each[1].last, each[0]))
        return [total.link(url) for url, total in shared[:limit]]


class _Total:
    """One link, being added up."""

    __slots__ = (
        "day_before",
        "described_at",
        "firsts",
        "last",
        "shared",
        "times",
        "title",
        "titled_at",
        "today",
    )

    def __init__(self) -> None:
        self.firsts: dict[str, Micros] = {}
        self.times = 0
        self.last: Micros = 0
        self.today: set[str] = set()
        self.day_before: set[str] = set()
        self.title = self.shared = ""
        self.described_at: Micros | None = None
        self.titled_at: Micros | None = None

    def describe(self, time: Micros, title: str, shared: str) -> None:
        """Take the address of the earliest share, and the title of the earliest that has one."""
        if self.described_at is None or time < self.described_at:
            self.described_at, self.shared = time, shared
        if title and (self.titled_at is None or time < self.titled_at):
            self.titled_at, self.title = time, title[:MAX_TITLE]

    def link(self, url: str) -> SharedLink:
        return SharedLink(
            url=url,
            address=self.shared or url,
            title=self.title,
            firsts=tuple(sorted(self.firsts.items(), key=lambda each: (each[1], each[0]))),
            times=self.times,
            last_at=self.last,
            today=len(self.today),
            day_before=len(self.day_before),
        )
