"""The interface of a source of feeds, such as `perdure.feeds.bluesky`.

A feed is read page by page, newest items first. Each page except the last has a cursor, with which the next
page of older items is requested. Sources raise subclasses of SourceError. They handle rate limits and retries
themselves (see `rate_limit`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from ..storage import Micros
from ..storage.install_advice import without_extra
from .errors import InvalidSettings
from .item import Item
from .rate_limit import RateLimiter
from .settings import FeedSettings

if TYPE_CHECKING:
    from .bluesky import BlueskySource


class FeedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a feed, newest items first. Any page can be short or empty, even if more pages follow."""

    items: tuple[Item, ...]
    cursor: str | None
    """Pass this cursor to get the next page. None if this is the last page."""
    pinned: tuple[Item, ...] = ()
    """Items that the feed shows at the top regardless of their time."""
    etag: str | None = None
    invalid_records: int = 0
    """Number of records that the source skipped because they are invalid."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The profile of an account at the source."""

    account_id: str
    handle: str
    post_count: int | None = None
    """Number of posts according to the source. None if the source does not report the number."""


class FeedSource(Protocol):
    """A source of feeds. Every method can raise a SourceError."""

    @property
    def name(self) -> str:
        """The name of the source, for messages and logs."""
        ...

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        """Return the page at `cursor`, or the newest page if `cursor` is None.

        If `etag` is still the ETag of the page, return None instead.
        """
        ...

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        """Return the profiles of the actors (ids or handles) that exist, in any order."""
        ...


@runtime_checkable
class FollowSource(Protocol):
    """A source that can list the accounts that an account follows."""

    async def profiles(self, actors: Sequence[str]) -> list[Profile]: ...

    def follows(self, actor: str) -> AsyncIterator[Profile]:
        """Yield the accounts that `actor` follows and that the source currently shows."""
        ...

    async def unfollowed(self, actor: str, account_ids: Sequence[str]) -> set[str]:
        """Return the ids in `account_ids` that `actor` definitely does not follow.

        An account that the source does not show may still be followed, for example if it is deactivated.
        """
        ...


class SourceRecord(msgspec.Struct, frozen=True):
    """An item created from a record of its account. Such records do not contain the links of quoted posts."""

    item: Item
    written_at: Micros
    """The time at which the record was written. The author can give the item itself an earlier time."""


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list of all records (posts and reposts) of an account."""

    records: tuple[SourceRecord, ...]
    uris: tuple[str, ...]
    """The URIs of all records on the page, including invalid records."""

    @property
    def invalid_records(self) -> int:
        return len(self.uris) - len(self.records)


@runtime_checkable
class AuditSource(Protocol):
    """A source that can list all records of an account, so that stored items can be audited."""

    def records(self, account_id: str) -> AsyncIterator[RecordPage]:
        """Yield all records of an account, page by page."""
        ...

    async def shown_items(self, items: Sequence[Item]) -> list[Item]:
        """Return `items` as the feed shows them, including the links of quoted posts.

        Omit items that the feed does not show.
        """
        ...


@runtime_checkable
class HintSource(Protocol):
    """A source that can show which of many accounts have new items, without reading each feed."""

    async def latest_activity(self) -> Mapping[str, Micros]:
        """Return the time of the newest item of each recently active account, by account id."""
        ...


# The configured source


@asynccontextmanager
async def open_source(
    settings: FeedSettings, limiter: RateLimiter | None = None
) -> AsyncGenerator[BlueskySource]:
    """Connect to Bluesky. Raise InvalidSettings if a setting is invalid or a package is not installed."""
    try:
        from .bluesky import open_bluesky  # noqa: PLC0415 (the extra may be missing)
    except ModuleNotFoundError as error:
        reason = str(without_extra("feeds", error))
        raise InvalidSettings("bluesky", reason) from error
    async with open_bluesky(settings, limiter=limiter) as source:
        yield source
