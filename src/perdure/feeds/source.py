"""The interface of a source of feeds, such as `perdure.feeds.bluesky`.

A feed is read page by page, newest items first. A cursor only means "older than this". A source raises
SourceErrors. Sources handle rate limits and retries themselves, for example with `rate_limit`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from ..storage import Micros
from .item import Item


class FeedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a feed, newest items first. A page that is not the last can be short or empty."""

    items: tuple[Item, ...]
    cursor: str | None
    """Where the next page starts. None if this is the last page."""
    pinned: tuple[Item, ...] = ()
    """Items that the feed shows at the top regardless of their time."""
    etag: str | None = None
    invalid_records: int = 0
    """Number of records that were skipped because they are invalid."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """An account as the source describes it."""

    account_id: str
    handle: str
    post_count: int | None = None
    """Number of posts according to the source. None if the source does not report it."""


class FeedSource(Protocol):
    """A source of feeds. Every method can raise a SourceError."""

    @property
    def name(self) -> str:
        """The name of the source in messages and logs."""
        ...

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        """Return the newest items, or those after a cursor. Return None if `etag` is still current."""
        ...

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        """Return the profiles of those actors that exist, in any order. An actor is an id or a handle."""
        ...


@runtime_checkable
class FollowSource(Protocol):
    """A source that lists which accounts an account follows."""

    async def profiles(self, actors: Sequence[str]) -> list[Profile]: ...

    def follows(self, actor: str) -> AsyncIterator[Profile]:
        """Yield the accounts that `actor` follows and that the source currently shows."""
        ...

    async def unfollowed(self, actor: str, account_ids: Sequence[str]) -> set[str]:
        """Return those of these accounts that `actor` certainly does not follow.

        An account that the source does not show may still be followed, for example if it is deactivated.
        """
        ...


class SourceRecord(msgspec.Struct, frozen=True):
    """An item as its author wrote it, without the links of quoted posts, which only the feed shows."""

    item: Item
    written_at: Micros
    """When the record was written, regardless of the time that its author gave it."""


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of an account's own records, oldest first."""

    records: tuple[SourceRecord, ...]
    uris: tuple[str, ...]
    """The URIs of all records of the page, including invalid ones."""

    @property
    def invalid_records(self) -> int:
        return len(self.uris) - len(self.records)


@runtime_checkable
class AuditSource(Protocol):
    """A source that also lists the records of an account in the order of writing."""

    def records(self, account_id: str) -> AsyncIterator[RecordPage]:
        """Yield all records of an account, oldest first."""
        ...

    async def shown_items(self, items: Sequence[Item]) -> list[Item]:
        """Return these items as the feed shows them, including links. Omit items that it does not show."""
        ...


@runtime_checkable
class HintSource(Protocol):
    """A source with a feed of many accounts, which shows which of them have new items."""

    async def latest_activity(self) -> Mapping[str, Micros]:
        """Return the ids of recently active accounts, each with the time of its newest item."""
        ...
