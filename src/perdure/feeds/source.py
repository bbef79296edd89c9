"""What perdure asks of a place that has feeds. Bluesky is one (`perdure.feeds.bluesky`).

A feed is read newest first, page by page; a cursor means "older than this" and nothing else. Whatever a
source has to say instead of an answer is one of the SourceErrors; waiting and trying again is its own matter
(`rate_limit` has what it needs for that).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from ..storage import Micros
from .item import Item


class FeedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a feed, newest first. It may be short, or empty, and still not be the last."""

    items: tuple[Item, ...]
    cursor: str | None
    """Where the next page begins. Only its absence means the end."""
    pinned: tuple[Item, ...] = ()
    """Shown at the top, wherever they belong: they say nothing about how far the page reaches."""
    etag: str | None = None
    invalid_records: int = 0
    """Records that could not be read."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """An account, as the source describes it."""

    account_id: str
    handle: str
    post_count: int | None = None
    """How many there are, by the source's own count."""


class FeedSource(Protocol):
    """Reading feeds. Everything may raise a SourceError."""

    @property
    def name(self) -> str:
        """For people and for logs."""
        ...

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        """The newest items, or those older than a cursor. None: still what this ETag stands for."""
        ...

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        """Those of these accounts, by id or handle, that there are. In any order."""
        ...


@runtime_checkable
class FollowSource(Protocol):
    """A source that knows who follows whom."""

    async def profiles(self, actors: Sequence[str]) -> list[Profile]: ...

    def follows(self, actor: str) -> AsyncIterator[Profile]:
        """Yield the accounts that `actor` follows and that the source shows just now."""
        ...

    async def unfollowed(self, actor: str, account_ids: Sequence[str]) -> set[str]:
        """Return those of these accounts that `actor` certainly does not follow.

        An account that the source does not show, because it is deactivated, may still be followed.
        """
        ...


class SourceRecord(msgspec.Struct, frozen=True):
    """An item as its author wrote it, without what only the feed shows: the links of a quoted post, say."""

    item: Item
    written_at: Micros
    """When it was written, whatever time its author gave it."""


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an account's own records, oldest first."""

    records: tuple[SourceRecord, ...]
    uris: tuple[str, ...]
    """The URIs of all records of the page, invalid ones included."""
    cursor: str | None
    """Where the next page begins. Only its absence means the end."""

    @property
    def invalid_records(self) -> int:
        """How many records are invalid."""
        return len(self.uris) - len(self.records)


@runtime_checkable
class AuditSource(Protocol):
    """A source that can be read in the order of writing too, and so has what a feed hides in its depth."""

    def records(self, account_id: str, *, after: str | None = None) -> AsyncIterator[RecordPage]:
        """Yield everything that an account wrote, oldest first; each page's cursor continues from there."""
        ...

    async def shown_items(self, items: Sequence[Item]) -> list[Item]:
        """Return these items as the feed shows them, links included. Those that it does not show are left
        out: they are deleted, or invalid.
        """
        ...


@runtime_checkable
class HintSource(Protocol):
    """A source with one feed for many accounts: a hint of who has news, and no more than that."""

    async def latest_activity(self) -> Mapping[str, Micros]:
        """Who has posted of late, and when the newest item of each was made."""
        ...
