"""`Bluesky`: feeds, profiles, follow lists and records, as `perdure.feeds` asks for them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx2
import msgspec

from ...storage import Micros
from ..errors import AccountBlocked, AccountUnavailable, InvalidSettings, RequestRefused, SourceUnavailable
from ..item import Item
from ..parts import parts_of
from ..rate_limit import Budget, Requests
from ..settings import Bluesky as BlueskySettings
from ..settings import Settings
from ..source import Page, Profile, RecordPage
from .items import completed, followed_in, newest_of, page_of, page_written, profiles_of
from .lexicon import FOLLOW, POST, REPOST, Feed, Follows, Posts, Profiles, Records
from .session import Session, SessionFile, SignedIn
from .xrpc import PATIENCE, Answer, Asked, Client, Reader

T = TypeVar("T")

TOGETHER = 25
"""Profiles in a request."""
POSTS_PER_REQUEST = 25
PAGE = 100
TIMELINE = "timeline"


class Bluesky:
    """A FeedSource, a FollowSource and an AuditSource. `open_bluesky` makes one."""

    def __init__(
        self, feeds: Reader, records: Reader, *, unsigned: Reader | None = None, name: str = "Bluesky"
    ) -> None:
        """`records` is the server that has people's records. `unsigned` is asked where `feeds`, with our
        credentials, is blocked.
        """
        self.name = name
        self._feeds = feeds
        self._records = records
        self._unsigned = unsigned

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> Page | None:
        """A page of an account's feed: posts, replies, quotes and reposts. Only the newest has an ETag."""
        asked: dict[str, str | int] = {"actor": account_id, "limit": limit}
        if cursor is not None:
            asked["cursor"] = cursor
        known = etag if cursor is None else None
        answer = await self._get("app.bsky.feed.getAuthorFeed", asked, _feed, etag=known)
        if answer is None:
            return None
        return page_of(answer.value, answer.etag if cursor is None else None)

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        """Those that there are. InvalidActor: one of these names cannot be anybody's."""
        names = [actor.removeprefix("@") for actor in actors]
        found: list[Profile] = []
        for some in parts_of(names, TOGETHER):
            asked = {"actors": some}
            answer = await self._got("app.bsky.actor.getProfiles", asked, _profiles)
            found += profiles_of(answer.profiles)
        return found

    async def follows(self, actor: str) -> AsyncGenerator[Profile]:
        """Whom somebody follows."""
        asked: dict[str, str | int] = {"actor": actor.removeprefix("@"), "limit": PAGE}
        used: set[str] = set()
        while True:
            answer = await self._got("app.bsky.graph.getFollows", asked, _follows)
            for profile in profiles_of(answer.follows):
                yield profile
            if not answer.cursor:
                return
            _check_unused(answer.cursor, used, f"the follow list of {actor}")
            asked["cursor"] = answer.cursor

    async def unfollowed(self, actor: str, account_ids: Sequence[str]) -> set[str]:
        """Return those of these accounts that `actor` certainly does not follow: by the actor's own records,
        or, if those cannot be read here, because the account is shown and yet not among the followed ones.
        """
        try:
            followed = {each async for each in self._follow_records(actor)}
        except (AccountUnavailable, RequestRefused):
            return {profile.account_id for profile in await self.profiles(account_ids)}
        return set(account_ids) - followed

    async def _follow_records(self, actor: str) -> AsyncGenerator[str]:
        """Yield the ids of all accounts that `actor` follows, shown or not."""
        key, used = "", set[str]()
        while True:
            records = await self._listed(actor, FOLLOW, key)
            for followed in followed_in(records):
                yield followed
            if not records.cursor:
                return
            _check_unused(records.cursor, used, f"the follow records of {actor}")
            key = records.cursor

    async def shown(self, items: Sequence[Item]) -> list[Item]:
        """Return these items as the feed shows them."""
        found: list[Item] = []
        for some in parts_of(items, POSTS_PER_REQUEST):
            asked = {"uris": list(dict.fromkeys(item.post for item in some))}
            found += completed(some, await self._got("app.bsky.feed.getPosts", asked, _posts))
        return found

    async def written(self, account_id: str, *, after: str | None = None) -> AsyncGenerator[RecordPage]:
        """Yield all posts of an account, and then all reposts, each in the order of their keys. A cursor is
        the collection and the last key that was read.
        """
        at = after if after is not None else f"{POST}/"
        used: set[str] = set()
        while at is not None:
            used.add(at)
            page = await self._written_after(account_id, at)
            if page.cursor in used:
                raise SourceUnavailable(f"the records of {account_id} do not end: the cursor repeats")
            at = page.cursor
            yield page

    async def _written_after(self, account_id: str, at: str) -> RecordPage:
        collection, _, key = at.partition("/")
        records = await self._listed(account_id, collection, key)
        following = f"{collection}/{records.cursor}" if records.cursor else _next(collection)
        return page_written(records, account_id, following)

    async def _listed(self, account_id: str, collection: str, after: str) -> Records:
        """Return the records after a key, in the order of their keys."""
        asked: dict[str, str | int] = {
            "repo": account_id,
            "collection": collection,
            "limit": PAGE,
            "reverse": "true",
        }
        if after:
            asked["cursor"] = after
        return _asked_for(await self._records.get("com.atproto.repo.listRecords", asked, _records)).value

    async def _got(self, method: str, asked: Asked, decoder: msgspec.json.Decoder[T]) -> T:
        return _asked_for(await self._get(method, asked, decoder)).value

    async def _get(
        self, method: str, asked: Asked, decoder: msgspec.json.Decoder[T], *, etag: str | None = None
    ) -> Answer[T] | None:
        """Somebody who is blocked with credentials may still read what everybody can."""
        try:
            return await self._feeds.get(method, asked, decoder, etag=etag)
        except AccountBlocked:
            if self._unsigned is None:
                raise
            return await self._unsigned.get(method, asked, decoder, etag=etag)


class HintingBluesky(Bluesky):
    """A HintSource too: it looks at one feed of many accounts, the reader's timeline or a list."""

    def __init__(
        self,
        feeds: Reader,
        records: Reader,
        hints: str,
        *,
        unsigned: Reader | None = None,
        name: str = "Bluesky",
    ) -> None:
        super().__init__(feeds, records, unsigned=unsigned, name=name)
        self._hints = hints

    async def recent(self) -> Mapping[str, Micros]:
        """Who stands in the newest page, and the time of the newest item of each."""
        asked: dict[str, str | int] = {"limit": PAGE}
        if self._hints == TIMELINE:
            return newest_of(await self._got("app.bsky.feed.getTimeline", asked, _feed))
        asked["list"] = self._hints
        return newest_of(await self._got("app.bsky.feed.getListFeed", asked, _feed))


def _check_unused(cursor: str, used: set[str], what: str) -> None:
    """Raise if a cursor repeats: what was read is not all, and must not be taken for it."""
    if cursor in used:
        raise SourceUnavailable(f"{what} does not end: the cursor repeats")
    used.add(cursor)


def _next(collection: str) -> str | None:
    """Where the reading goes on after the end of a collection."""
    return f"{REPOST}/" if collection == POST else None


def _asked_for(answer: Answer[T] | None) -> Answer[T]:
    if answer is None:
        raise SourceUnavailable("unchanged, says the server, and was not asked")
    return answer


_feed = msgspec.json.Decoder(Feed)
_profiles = msgspec.json.Decoder(Profiles)
_follows = msgspec.json.Decoder(Follows)
_records = msgspec.json.Decoder(Records)
_posts = msgspec.json.Decoder(Posts)


IDLE = 60.0
"""Seconds for which a connection that nobody needs stays open."""


@asynccontextmanager
async def open_bluesky(
    settings: Settings,
    *,
    budget: Budget | None = None,
    environ: Mapping[str, str] = os.environ,
    patience: float = PATIENCE,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncGenerator[Bluesky]:
    """Open Bluesky as these settings want it read. The budget is that of the server that has the feeds.
    `transport` sends the requests in another way than over connections of its own.
    """
    bluesky = settings.bluesky
    _check(bluesky)
    password = _password(bluesky, environ)
    connections = settings.polling.connections
    feeds = Requests(budget or Budget(connections), settings.polling)
    others = Requests(
        Budget(connections, clock=feeds.budget.clock, on_wait=feeds.budget.on_wait), settings.polling
    )
    limits = httpx2.Limits(max_keepalive_connections=connections, keepalive_expiry=IDLE)
    # Each client sees to its own patience, for an answer as a whole.
    async with httpx2.AsyncClient(
        limits=limits, timeout=None, headers={"user-agent": "perdure"}, transport=transport
    ) as http:
        if bluesky.identifier is None or password is None:
            public = Client(http, bluesky.service, feeds, patience=patience)
            pds = Client(http, bluesky.pds, others, patience=patience)
            yield _reading(bluesky, public, pds)
        else:
            pds = Client(http, bluesky.pds, feeds, patience=patience)
            public = Client(http, bluesky.service, others, patience=patience)
            file = SessionFile.default(bluesky.pds, bluesky.identifier, environ)
            signed_in = SignedIn(pds, Session(pds, bluesky.identifier, password, file=file))
            yield _reading(bluesky, signed_in, signed_in, unsigned=public)


def _reading(
    settings: BlueskySettings, feeds: Reader, records: Reader, *, unsigned: Reader | None = None
) -> Bluesky:
    """Only who is to look for hints has a way to do it."""
    if settings.hints is None:
        return Bluesky(feeds, records, unsigned=unsigned)
    return HintingBluesky(feeds, records, settings.hints, unsigned=unsigned)


def _check(settings: BlueskySettings) -> None:
    for name, url in (("service", settings.service), ("pds", settings.pds)):
        if not _is_address(url):
            raise InvalidSettings(f"bluesky.{name}", "must be an http or https address, without a password")
    if settings.identifier is not None and not _is_private(settings.pds):
        raise InvalidSettings("bluesky.pds", "must be https: a password goes there")
    hints = settings.hints
    if hints is not None and hints != TIMELINE and not hints.startswith("at://"):
        raise InvalidSettings("bluesky.hints", f"must be `timeline` or a list's at:// address, not {hints!r}")
    if hints == TIMELINE and settings.identifier is None:
        raise InvalidSettings(
            "bluesky.hints", "a timeline is somebody's: set bluesky.identifier, or use a list"
        )


def _is_address(url: str) -> bool:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host) and not parsed.userinfo


def _is_private(url: str) -> bool:
    """Whether nobody on the way can read what is sent there."""
    parsed = httpx2.URL(url)
    return parsed.scheme == "https" or parsed.host in ("127.0.0.1", "::1", "localhost")


def _password(settings: BlueskySettings, environ: Mapping[str, str]) -> str | None:
    """None: nobody needs one."""
    if settings.identifier is None:
        return None
    if password := environ.get(settings.password_variable):
        return password
    raise InvalidSettings(
        "bluesky.identifier",
        f"{settings.identifier} needs a password; set {settings.password_variable} to an app password",
    )
