"""The interface of a source of feeds. Bluesky is one (`perdure.feeds.bluesky`).

A feed is read newest first, page by page; a cursor means "older than this" and nothing else. A source raises
SourceErrors, and waits and retries on its own (`rate_limit` has the tools for that).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from ..storage import Micros
from .item import Item


class FeedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a feed, newest first. It can be short or empty without being the last."""

    items: tuple[Item, ...]
    cursor: str | None
    """Where the next page starts. Only None means the end."""
    pinned: tuple[Item, ...] = ()
    """Items shown at the top regardless of their time."""
    etag: str | None = None
    invalid_records: int = 0
    """How many records were skipped because they are invalid."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """An account as the source describes it."""

    account_id: str
    handle: str
    post_count: int | None = None
    """How many posts the source counts. None if it does not say."""


class FeedSource(Protocol):
    """Reads feeds. Every method can raise a SourceError."""

    @property
    def name(self) -> str:
        """The name in messages and logs."""
        ...

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        """Return the newest items, or those after a cursor. None if nothing changed since `etag`."""
        ...

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        """Return the profiles of those accounts, given by id or handle, that exist. In any order."""
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

        An account that the source does not show, because it is deactivated, may still be followed.
        """
        ...


class SourceRecord(msgspec.Struct, frozen=True):
    """An item as its author wrote it, without what only the feed shows: links of quoted posts."""

    item: Item
    written_at: Micros
    """When it was written, regardless of the time that its author gave it."""


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of an account's own records, oldest first."""

    records: tuple[SourceRecord, ...]
    uris: tuple[str, ...]
    """The URIs of all records of the page, invalid ones included."""

    @property
    def invalid_records(self) -> int:
        """How many records are invalid."""
        return len(self.uris) - len(self.records)


@runtime_checkable
class AuditSource(Protocol):
    """A source that also lists records in the order of writing, so that back-dated posts are found."""

    def records(self, account_id: str) -> AsyncIterator[RecordPage]:
        """Yield all records of an account, oldest first."""
        ...

    async def shown_items(self, items: Sequence[Item]) -> list[Item]:
        """Return these items as the feed shows them, links included. Omit those that it does not show because
        they are deleted or invalid.
        """
        ...


@runtime_checkable
class HintSource(Protocol):
    """A source with one feed of many accounts, which shows early which of them posted."""

    async def latest_activity(self) -> Mapping[str, Micros]:
        """Return the ids of accounts that posted recently, and the time of the newest item of each."""
        ...
