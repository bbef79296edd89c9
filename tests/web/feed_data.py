"""Accounts and items to look at, written as a poller would have written them."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.feeds import (
    Account,
    AccountStatus,
    FeedStore,
    Gap,
    Item,
    Link,
    PollSettings,
    Profile,
    transitions,
)
from perdure.storage.time_types import MINUTE

TITLE = "What lasts: notes on durable execution"
URL = "https://example.org/what-lasts"
SHARED = "https://example.org/what-lasts/?utm_source=bsky"
"""As it was shared."""


async def insert_feed_data(store: FeedStore) -> None:
    """Three people: one well, one with a gap, one whom the source does not show."""
    now = store.clock()
    for place, name in enumerate(("anna.example", "ben.example", "cleo.example")):
        await store.add(_account(name, place, now))
        await store.add_items(f"did:plc:{name}", [_item(name, number, now) for number in range(4)])


async def insert_account(store: FeedStore) -> None:
    """An account that has no items yet."""
    await store.add(_account("anna.example", 0, store.clock()))


def _account(handle: str, place: int, now: int) -> Account:
    profile = Profile(account_id=f"did:plc:{handle}", handle=handle)
    account = transitions.new_account(profile, now=now - 90 * MINUTE, settings=PollSettings())
    account = replace(
        account,
        watermark=now - 3 * MINUTE,
        next_poll_at=now + (place + 2) * MINUTE,
        last_polled_at=now - MINUTE,
    )
    account = replace(account, poll_count=12, pages_read=15, posts_fetched_count=4)
    if place == 1:
        return replace(account, gaps=(Gap(cursor="2026-01-01", floor=now - 600 * MINUTE, late_floor=0),))
    if place == 2:
        return replace(
            account,
            status=AccountStatus.UNAVAILABLE,
            reason="the account was <deactivated>",
            consecutive_failures=3,
        )
    return account


def _item(handle: str, number: int, now: int) -> Item:
    links = (Link(URL, "card", TITLE, SHARED),) if number == 0 else ()
    if number == 1:
        links = (Link(f"https://{handle}/notes/{number}", "facet"), Link("javascript:alert(1)", "text"))
    return Item(
        uri=f"at://did:plc:{handle}/post/{number}",
        time=now - (number * 7 + 3) * MINUTE,
        kind="repost" if number == 2 else "post",
        post_uri=f"at://did:plc:{handle}/post/{number}",
        author_id=f"did:plc:{handle}",
        author_handle=handle,
        text=f"Thought {number} of {handle}: <b>what</b> is written once is there after a restart.",
        links=links,
    )
