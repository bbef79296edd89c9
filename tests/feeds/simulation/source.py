"""`WorldSource`: a feed source straight on a world, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from perdure.feeds.errors import (
    AccountBlocked,
    AccountUnavailable,
    CursorRejected,
    InvalidActor,
    RequestRejected,
    SourceError,
    SourceServerError,
)
from perdure.feeds.item import Item
from perdure.feeds.source import FeedPage, Profile, RecordPage, SourceRecord
from perdure.storage import Micros

from .accounts import POSTS, REPOSTS, Account, Refusal, Row, Shown
from .times import parsed, time_of
from .world import PROFILES_AT_MOST, World

Asked: TypeAlias = Literal["page", "profiles", "follows", "unfollowed", "records", "shown", "recent"]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a source was asked."""

    number: int
    """From 0, of all that was asked."""
    kind: Asked
    actor: str = ""
    cursor: str | None = None


Hook: TypeAlias = Callable[[Question], Awaitable[None]]


class WorldSource:
    """A feed source straight on a world. It shows the items that the HTTP source would, but for their links.

    `before` is awaited before each answer is made: it may change the world, or raise what the caller is to
    get.
    """

    name = "world"

    def __init__(self, world: World, *, before: Hook | None = None, include_pins: bool = False) -> None:
        self.world = world
        self.before = before
        self.include_pins = include_pins
        self.asked: list[Question] = []

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        await self._ask("page", account_id, cursor)
        try:
            shown = self.world.author_feed(account_id, limit, cursor, include_pins=self.include_pins)
        except Refusal as refusal:
            raise error_of(refusal) from refusal
        page = _page_of(shown, has_etag=cursor is None)
        return None if etag is not None and page.etag == etag else page

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        await self._ask("profiles", ",".join(actors))
        found: list[Profile] = []
        for start in range(0, len(actors), PROFILES_AT_MOST):
            try:
                accounts = self.world.profiles(actors[start : start + PROFILES_AT_MOST])
            except Refusal as refusal:
                raise error_of(refusal) from refusal
            found += [self._profile(account) for account in accounts]
        return found

    async def follows(self, actor: str) -> AsyncIterator[Profile]:
        cursor: str | None = None
        while True:
            await self._ask("follows", actor, cursor)
            try:
                found, cursor = self.world.follows(actor, 100, cursor)
            except Refusal as refusal:
                raise error_of(refusal) from refusal
            for account in found:
                yield Profile(account_id=account.did, handle=account.handle)
            if cursor is None:
                return

    async def unfollowed(self, actor: str, account_ids: Sequence[str]) -> set[str]:
        await self._ask("unfollowed", actor)
        return set(account_ids) - set(self.world.accounts[self.world.find(actor).did].follows)

    async def shown_items(self, items: Sequence[Item]) -> list[Item]:
        await self._ask("shown", ",".join(item.uri for item in items))
        rows = [self.world.rows.get(item.uri) for item in items]
        return [
            item_of(row) for row in rows if row is not None and row.is_visible and not row.post.is_spoiled
        ]

    async def records(self, account_id: str) -> AsyncIterator[RecordPage]:
        """Posts and then reposts, each in the order of writing. A cursor is the collection and a key."""
        at: str | None = f"{POSTS}/"
        while at is not None:
            await self._ask("records", account_id, at)
            collection, _, key = at.partition("/")
            try:
                rows, key = self.world.list_records(account_id, collection, 100, key or None, reverse=True)
            except Refusal as refusal:
                raise error_of(refusal) from refusal
            following = f"{REPOSTS}/" if collection == POSTS else None
            at = following if key is None else f"{collection}/{key}"
            records = tuple(
                SourceRecord(record_of(row), time_of(row.uri.rpartition("/")[2]))
                for row in rows
                if not row.is_spoiled
            )
            yield RecordPage(records=records, uris=tuple(row.uri for row in rows))

    async def _ask(self, kind: Asked, actor: str = "", cursor: str | None = None) -> None:
        question = Question(number=len(self.asked), kind=kind, actor=actor, cursor=cursor)
        self.asked.append(question)
        if self.before is not None:
            await self.before(question)

    def _profile(self, account: Account) -> Profile:
        posts = self.world.posts_of(account.did)
        return Profile(account_id=account.did, handle=account.handle, post_count=posts)


class HintingWorldSource(WorldSource):
    """One that has a timeline too."""

    def __init__(self, world: World, viewer: str, *, before: Hook | None = None) -> None:
        super().__init__(world, before=before)
        self.viewer = viewer

    async def latest_activity(self) -> Mapping[str, Micros]:
        await self._ask("recent", self.viewer)
        newest: dict[str, Micros] = {}
        for row in self.world.timeline(self.viewer, 100).rows:
            newest.setdefault(row.by.did, row.time)
        return newest


def error_of(refusal: Refusal) -> SourceError:
    """What the HTTP source makes of a refusal."""
    match refusal.error, refusal.message:
        case "InvalidRequest", "Profile not found":
            return AccountUnavailable(refusal.message)
        case "InvalidRequest", "Invalid AT identifier":
            return InvalidActor(refusal.message)
        case "InvalidRequest", message if message.startswith("Could not find repo: "):
            return AccountUnavailable(message)
        case "InvalidRequest", "Malformed cursor":
            return CursorRejected(refusal.message)
        case (("BlockedActor" | "BlockedByActor"), _):
            return AccountBlocked(refusal.message)
        case _:
            is_theirs = refusal.status >= 500
            return SourceServerError(str(refusal)) if is_theirs else RequestRejected(str(refusal))


def _page_of(shown: Shown, *, has_etag: bool) -> FeedPage:
    items = tuple(item_of(row) for row in shown.rows if not row.is_spoiled)
    pinned = () if shown.pinned is None or not shown.pinned.is_visible else (item_of(shown.pinned),)
    names = [row.uri + row.post.by.handle for row in (*shown.rows, *filter(None, [shown.pinned]))]
    digest = blake2b("\n".join([*names, str(shown.cursor)]).encode(), digest_size=12).hexdigest()
    return FeedPage(
        items=items,
        cursor=shown.cursor,
        pinned=pinned,
        etag=f'W/"{digest}"' if has_etag else None,
        invalid_records=sum(row.is_spoiled for row in shown.rows),
    )


def item_of(row: Row) -> Item:
    post = row.post
    return Item(
        uri=row.uri,
        time=row.time,
        kind=row.kind,
        post_uri=post.uri,
        author_id=post.by.did,
        author_handle=post.by.handle,
        text=post.record.get("text", ""),
    )


def record_of(row: Row) -> Item:
    """As the account's own server lists it, which does not know when it was first seen, nor any handle."""
    made = time_of(row.uri.rpartition("/")[2])
    created = parsed(row.record.get("createdAt"))
    return msgspec.structs.replace(
        item_of(row),
        time=made if created is None else min(made, created),
        author_handle="",
        text=row.record.get("text", ""),
    )
