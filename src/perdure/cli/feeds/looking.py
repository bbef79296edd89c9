"""What the commands read: how the accounts are, and what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ...feeds import Account, AccountStatus, FeedStore, FeedSummary, Item, LinkIndex, SharedLink, summarize
from ...feeds.errors import UnknownAccount
from ...operating.times import format_duration, format_minute, format_when
from ...storage import Micros
from ..output import key_values, one_line, plural, truncate
from .changing import name_in

MOST_FAILING = 20
MOST_SHARERS = 8


# Everybody


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    account: str
    handle: str
    status: AccountStatus
    consecutive_failures: int
    reason: str
    next_poll_at: Micros


class State(msgspec.Struct, frozen=True, kw_only=True):
    summary: FeedSummary
    watermark_share: float
    items: int
    failing: tuple[Failing, ...]
    now: Micros


async def state_of(store: FeedStore) -> State:
    everybody = [stored.account async for stored in store.accounts()]
    summary = summarize(everybody, now=store.clock())
    return State(
        summary=summary,
        watermark_share=summary.watermark_share,
        items=await store.count_items(),
        failing=tuple(
            _failing(each)
            for each in everybody
            if each.consecutive_failures and each.status is not AccountStatus.SUSPENDED
        ),
        now=store.clock(),
    )


def _failing(account: Account) -> Failing:
    return Failing(
        account=account.account_id,
        handle=account.handle,
        status=account.status,
        consecutive_failures=account.consecutive_failures,
        reason=account.reason,
        next_poll_at=account.next_poll_at,
    )


def lines_of_state(state: State) -> Iterator[str]:
    summary = state.summary
    if not summary.accounts:
        yield "no accounts yet; `perdure feeds add HANDLE` adds one"
        return
    statuses = f"{summary.active} active, {summary.unavailable} unavailable, {summary.suspended} suspended"
    yield from key_values(
        ("accounts", f"{summary.accounts}: {statuses}"),
        ("with a mark", f"{summary.with_watermark} ({state.watermark_share:.0%})"),
        ("with gaps", str(summary.with_gaps)),
        ("last polled", format_when(summary.last_polled_at, state.now)),
        ("next poll", _next_poll(summary.next_poll_at, state.now)),
        ("posts fetched", _fetched(summary.posts_fetched_count, summary.invalid_records)),
        ("items stored", plural(state.items, "item")),
        ("failing", str(len(state.failing))),
    )
    yield from _lines_of_failing(state.failing)
    for alarm in summary.alarms:
        yield f"ALARM: {one_line(alarm.message)}"


def _lines_of_failing(failing: Sequence[Failing]) -> Iterator[str]:
    for each in failing[:MOST_FAILING]:
        times = "once" if each.consecutive_failures == 1 else f"{each.consecutive_failures} times in a row"
        yield f"  {one_line(each.handle)}: {times}, {each.status}: {one_line(each.reason)}"
    if len(failing) > MOST_FAILING:
        yield f"  and {len(failing) - MOST_FAILING} more; --json tells all"


def _next_poll(at: Micros | None, now: Micros) -> str:
    if at is None:
        return "none"
    return format_when(at, now) if at > now else f"due for {format_duration(now - at)}"


def _fetched(count: int, set_aside: int) -> str:
    aside = f", and {plural(set_aside, 'record')} set aside" if set_aside else ""
    return f"{plural(count, 'post')}{aside}"


# A list of accounts


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """An account in a list."""

    account: str
    handle: str
    status: AccountStatus
    watermark: Micros | None
    last_polled_at: Micros | None
    next_poll_at: Micros
    gaps: int
    consecutive_failures: int
    reason: str
    origins: tuple[str, ...]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which accounts are listed."""

    status: AccountStatus | None = None
    without_watermark: bool = False
    polled_before: Micros | None = None
    """Only those that were last polled before this time, or never."""

    def admits(self, account: Account) -> bool:
        if self.without_watermark and account.watermark is not None:
            return False
        return self.polled_before is None or (account.last_polled_at or 0) < self.polled_before


async def accounts(store: FeedStore, wanted: Filter) -> list[Listed]:
    """Return the accounts that a filter admits, those first that were polled longest ago."""
    found = [
        _listed(stored.account)
        async for stored in store.accounts(wanted.status)
        if wanted.admits(stored.account)
    ]
    return sorted(found, key=lambda each: (each.last_polled_at or 0, each.handle))


def _listed(account: Account) -> Listed:
    return Listed(
        account=account.account_id,
        handle=account.handle,
        status=account.status,
        watermark=account.watermark,
        last_polled_at=account.last_polled_at,
        next_poll_at=account.next_poll_at,
        gaps=len(account.gaps),
        consecutive_failures=account.consecutive_failures,
        reason=account.reason,
        origins=account.origins,
    )


def lines_of_list(listed: Sequence[Listed]) -> Iterator[str]:
    """Yield a line for each account, in columns."""
    width = max((len(one_line(each.handle)) for each in listed), default=0)
    yield f"{'account':<{width}}  {'status':<11}  {'last poll':<16}  {'watermark':<16}  note"
    for each in listed:
        times = [
            f"{'never' if time is None else format_minute(time):<16}"
            for time in (each.last_polled_at, each.watermark)
        ]
        gaps = f"{plural(each.gaps, 'gap')} " if each.gaps else ""
        row = f"{one_line(each.handle):<{width}}  {each.status:<11}  {'  '.join(times)}  {gaps}"
        yield f"{row}{truncate(each.reason, 80)}".rstrip()


# One account


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    account: Account
    items: int
    is_leased: bool
    now: Micros


async def inspected(store: FeedStore, name: str) -> Inspected:
    account = (await store.find(name_in(name))).account
    now = store.clock()
    items = await store.count_items(account.account_id)
    return Inspected(account=account, items=items, is_leased=account.is_leased(now), now=now)


def lines_of_account(seen: Inspected) -> Iterator[str]:
    account, now = seen.account, seen.now
    reason = f": {one_line(account.reason)}" if account.reason else ""
    whole = "none" if account.watermark is None else "none: everything up to the mark is stored"
    yield from key_values(
        ("account", account.account_id),
        ("handle", one_line(account.handle)),
        ("status", f"{account.status}{reason}"),
        ("added", format_when(account.added_at, now)),
        ("added by", one_line(", ".join(account.origins)) or "nothing any more"),
        (
            "mark",
            "none: nothing of it was ever stored"
            if account.watermark is None
            else format_when(account.watermark, now),
        ),
        ("last polled", format_when(account.last_polled_at, now)),
        ("next poll", _when_polled(seen)),
        ("interval", format_duration(account.poll_interval)),
        ("polls", _polls(account)),
        ("posts fetched", _fetched(account.posts_fetched_count, account.invalid_records)),
        ("items stored", plural(seen.items, "item")),
        (
            "its own count",
            "unknown"
            if account.profile_posts is None
            else _own_count(account.profile_posts, account.unseen_posts),
        ),
        ("profile read", format_when(account.profile_read_at, now)),
        ("failures", f"{account.consecutive_failures} in a row" if account.consecutive_failures else "none"),
        ("gaps", str(len(account.gaps)) if account.gaps else whole),
    )
    for gap in account.gaps:
        start = "from the newest item" if gap.cursor is None else f"from cursor {truncate(gap.cursor, 60)}"
        yield f"  {start} down to {format_when(gap.floor, now)}"


def _polls(account: Account) -> str:
    quiet = f"; the last {account.empty_polls} found nothing new" if account.empty_polls else ""
    return f"{account.poll_count}, of {plural(account.pages_read, 'page')}{quiet}"


def _own_count(posts: int, unseen: int) -> str:
    return plural(posts, "post") + (f", {unseen} of them new and not found" if unseen else "")


def _when_polled(seen: Inspected) -> str:
    account = seen.account
    if seen.is_leased and account.lease is not None:
        return f"now, by {account.lease.poller}"
    if account.status is AccountStatus.SUSPENDED:
        return "none, until it is resumed"
    return _next_poll(account.next_poll_at, seen.now)


# What was found


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An item, and in whose feed it is."""

    account: str
    account_handle: str
    item: Item


async def handles_in(store: FeedStore) -> dict[str, str]:
    return {stored.account.account_id: stored.account.handle async for stored in store.accounts()}


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which items are listed."""

    account: str | None
    since: Micros
    before: Micros | None
    kind: str | None
    with_links: bool
    limit: int


async def items(store: FeedStore, wanted: Wanted) -> list[Found]:
    """Return the newest of these items first."""
    account_id = None if wanted.account is None else await _id_of(store, name_in(wanted.account))
    handles = await handles_in(store)
    found: list[Found] = []
    async for owner, item in store.newest_items(
        account_id, since=wanted.since, before=wanted.before, kind=wanted.kind
    ):
        if wanted.with_links and not item.links:
            continue
        if len(found) >= wanted.limit and item.time != found[-1].item.time:
            break  # items of the same time stay together, so that --before skips none
        found.append(Found(account=owner, account_handle=handles.get(owner, owner), item=item))
    return found


async def _id_of(store: FeedStore, name: str) -> str:
    """Items of an account that was removed are still there under its DID."""
    try:
        return (await store.find(name)).account.account_id
    except UnknownAccount:
        if name.startswith("did:") and await store.count_items(name):
            return name
        raise


def lines_of_item(found: Found) -> Iterator[str]:
    item = found.item
    by = f" of {one_line(item.author_handle or item.author_id)}" if item.kind == "repost" else ""
    kind = "" if item.kind == "post" else f" ({item.kind}{by})"
    line = f"{format_minute(item.time)}  {one_line(found.account_handle)}{kind}: {truncate(item.text, 200)}"
    yield line.rstrip(": ")
    for link in item.links:
        yield f"{'':16}  {one_line(link.address)}"


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A link, and who shared it, by name."""

    url: str
    """The normal form."""
    address: str
    """As it was first shared."""
    title: str
    sharers: int
    handles: tuple[str, ...]
    """The first to share it first."""
    times: int
    first_at: Micros
    last_at: Micros
    today: int
    day_before: int


async def links(store: FeedStore, *, since: Micros, limit: int) -> list[Ranked]:
    ranking = await LinkIndex(store).ranking(since, limit=limit)
    handles = await store.handles(each for link in ranking.links for each in link.sharers)
    return [_ranked(each, handles) for each in ranking.links]


def _ranked(link: SharedLink, handles: dict[str, str]) -> Ranked:
    return Ranked(
        url=link.url,
        address=link.address,
        title=link.title,
        sharers=len(link.first_shares),
        handles=tuple(handles.get(each, each) for each in link.sharers),
        times=link.share_count,
        first_at=link.first_at,
        last_at=link.last_at,
        today=link.today,
        day_before=link.day_before,
    )


def lines_of_link(link: Ranked) -> Iterator[str]:
    yield f"{link.sharers:>4}  {truncate(link.title, 100) or one_line(link.address)}"
    if link.title:
        yield f"      {one_line(link.address)}"
    others = link.sharers - MOST_SHARERS
    names = ", ".join(one_line(each) for each in link.handles[:MOST_SHARERS])
    yield f"      {names}{f' and {others} more' if others > 0 else ''}"
    first = f"first shared {format_minute(link.first_at)} by {one_line(link.handles[0])}"
    yield f"      {first}; {link.today} in the last day, {link.day_before} in the day before"
