"""`Bluesky`: feeds, profiles, follow lists and records, as `perdure.feeds` asks for them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx2
import msgspec

from ...storage import Micros
from ..errors import AccountBlocked, AccountUnavailable, InvalidSettings, RequestRejected, SourceUnavailable
from ..item import Item
from ..parts import parts_of
from ..rate_limit import RateLimiter, Retrier
from ..settings import BlueskySettings, FeedSettings
from ..source import FeedPage, Profile, RecordPage
from .items import complete_items, latest_by_author, parse_follows, parse_page, parse_profiles, parse_records
from .lexicon import FOLLOW, POST, REPOST, Feed, Follows, Posts, Profiles, Records
from .session import AuthenticatedClient, Session, SessionFile
from .xrpc import REQUEST_TIMEOUT, QueryParams, XrpcClient, XrpcReader, XrpcResponse

T = TypeVar("T")

PROFILES_PER_REQUEST = 25
"""Profiles in a request."""
POSTS_PER_REQUEST = 25
PAGE_SIZE = 100
TIMELINE = "timeline"


class BlueskySource:
    """A FeedSource, a FollowSource and an AuditSource. `open_bluesky` makes one."""

    def __init__(
        self,
        feeds: XrpcReader,
        records: XrpcReader,
        *,
        public: XrpcReader | None = None,
        name: str = "Bluesky",
    ) -> None:
        """`records` is the server that has people's records. `unsigned` is asked where `feeds`, with our
        credentials, is blocked.
        """
        self.name = name
        self._feeds = feeds
        self._records = records
        self._public = public

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        """A page of an account's feed: posts, replies, quotes and reposts. Only the newest has an ETag."""
        asked: dict[str, str | int] = {"actor": account_id, "limit": limit}
        if cursor is not None:
            asked["cursor"] = cursor
        known = etag if cursor is None else None
        answer = await self._get("app.bsky.feed.getAuthorFeed", asked, _feed, etag=known)
        if answer is None:
            return None
        return parse_page(answer.value, answer.etag if cursor is None else None)

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        """Those that there are. InvalidActor: one of these names cannot be anybody's."""
        names = [actor.removeprefix("@") for actor in actors]
        found: list[Profile] = []
        for some in parts_of(names, PROFILES_PER_REQUEST):
            asked = {"actors": some}
            answer = await self._get_modified("app.bsky.actor.getProfiles", asked, _profiles)
            found += parse_profiles(answer.profiles)
        return found

    async def follows(self, actor: str) -> AsyncGenerator[Profile]:
        """Whom somebody follows."""
        asked: dict[str, str | int] = {"actor": actor.removeprefix("@"), "limit": PAGE_SIZE}
        used: set[str] = set()
        while True:
            answer = await self._get_modified("app.bsky.graph.getFollows", asked, _follows)
            for profile in parse_profiles(answer.follows):
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
        except (AccountUnavailable, RequestRejected):
            return {profile.account_id for profile in await self.profiles(account_ids)}
        return set(account_ids) - followed

    async def _follow_records(self, actor: str) -> AsyncGenerator[str]:
        """Yield the ids of all accounts that `actor` follows, shown or not."""
        key, used = "", set[str]()
        while True:
            records = await self._list_records(actor, FOLLOW, key)
            for followed in parse_follows(records):
                yield followed
            if not records.cursor:
                return
            _check_unused(records.cursor, used, f"the follow records of {actor}")
            key = records.cursor

    async def shown_items(self, items: Sequence[Item]) -> list[Item]:
        """Return these items as the feed shows them."""
        found: list[Item] = []
        for some in parts_of(items, POSTS_PER_REQUEST):
            asked = {"uris": list(dict.fromkeys(item.post_uri for item in some))}
            found += complete_items(some, await self._get_modified("app.bsky.feed.getPosts", asked, _posts))
        return found

    async def records(self, account_id: str, *, after: str | None = None) -> AsyncGenerator[RecordPage]:
        """Yield all posts of an account, and then all reposts, each in the order of their keys. A cursor is
        the collection and the last key that was read.
        """
        at = after if after is not None else f"{POST}/"
        used: set[str] = set()
        while at is not None:
            used.add(at)
            page = await self._record_page(account_id, at)
            if page.cursor in used:
                raise SourceUnavailable(f"the records of {account_id} do not end: the cursor repeats")
            at = page.cursor
            yield page

    async def _record_page(self, account_id: str, at: str) -> RecordPage:
        collection, _, key = at.partition("/")
        records = await self._list_records(account_id, collection, key)
        following = f"{collection}/{records.cursor}" if records.cursor else _next_collection(collection)
        return parse_records(records, account_id, following)

    async def _list_records(self, account_id: str, collection: str, after: str) -> Records:
        """Return the records after a key, in the order of their keys."""
        asked: dict[str, str | int] = {
            "repo": account_id,
            "collection": collection,
            "limit": PAGE_SIZE,
            "reverse": "true",
        }
        if after:
            asked["cursor"] = after
        return _require_modified(
            await self._records.get("com.atproto.repo.listRecords", asked, _records)
        ).value

    async def _get_modified(self, method: str, params: QueryParams, decoder: msgspec.json.Decoder[T]) -> T:
        return _require_modified(await self._get(method, params, decoder)).value

    async def _get(
        self, method: str, params: QueryParams, decoder: msgspec.json.Decoder[T], *, etag: str | None = None
    ) -> XrpcResponse[T] | None:
        """Somebody who is blocked with credentials may still read what everybody can."""
        try:
            return await self._feeds.get(method, params, decoder, etag=etag)
        except AccountBlocked:
            if self._public is None:
                raise
            return await self._public.get(method, params, decoder, etag=etag)


class BlueskyHintSource(BlueskySource):
    """A HintSource too: it looks at one feed of many accounts, the reader's timeline or a list."""

    def __init__(
        self,
        feeds: XrpcReader,
        records: XrpcReader,
        hints: str,
        *,
        public: XrpcReader | None = None,
        name: str = "Bluesky",
    ) -> None:
        super().__init__(feeds, records, public=public, name=name)
        self._hints = hints

    async def latest_activity(self) -> Mapping[str, Micros]:
        """Who stands in the newest page, and the time of the newest item of each."""
        asked: dict[str, str | int] = {"limit": PAGE_SIZE}
        if self._hints == TIMELINE:
            return latest_by_author(await self._get_modified("app.bsky.feed.getTimeline", asked, _feed))
        asked["list"] = self._hints
        return latest_by_author(await self._get_modified("app.bsky.feed.getListFeed", asked, _feed))


def _check_unused(cursor: str, used: set[str], what: str) -> None:
    """Raise if a cursor repeats: what was read is not all, and must not be taken for it."""
    if cursor in used:
        raise SourceUnavailable(f"{what} does not end: the cursor repeats")
    used.add(cursor)


def _next_collection(collection: str) -> str | None:
    """Where the reading goes on after the end of a collection."""
    return f"{REPOST}/" if collection == POST else None


def _require_modified(answer: XrpcResponse[T] | None) -> XrpcResponse[T]:
    if answer is None:
        raise SourceUnavailable("unchanged, says the server, and was not asked")
    return answer


_feed = msgspec.json.Decoder(Feed)
_profiles = msgspec.json.Decoder(Profiles)
_follows = msgspec.json.Decoder(Follows)
_records = msgspec.json.Decoder(Records)
_posts = msgspec.json.Decoder(Posts)


KEEPALIVE_SECONDS = 60.0
"""Seconds for which a connection that nobody needs stays open."""


@asynccontextmanager
async def open_bluesky(
    settings: FeedSettings,
    *,
    limiter: RateLimiter | None = None,
    environ: Mapping[str, str] = os.environ,
    request_timeout: float = REQUEST_TIMEOUT,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncGenerator[BlueskySource]:
    """Open Bluesky as these settings want it read. The budget is that of the server that has the feeds.
    `transport` sends the requests in another way than over connections of its own.
    """
    bluesky = settings.bluesky
    _check(bluesky)
    password = _password(bluesky, environ)
    connections = settings.polling.connections
    feeds_retrier = Retrier(limiter or RateLimiter(connections), settings.polling)
    other_retrier = Retrier(
        RateLimiter(connections, clock=feeds_retrier.limiter.clock, on_wait=feeds_retrier.limiter.on_wait),
        settings.polling,
    )
    limits = httpx2.Limits(max_keepalive_connections=connections, keepalive_expiry=KEEPALIVE_SECONDS)
    # Each client sees to its own patience, for an answer as a whole.
    async with httpx2.AsyncClient(
        limits=limits, timeout=None, headers={"user-agent": "perdure"}, transport=transport
    ) as http:
        if bluesky.identifier is None or password is None:
            public = XrpcClient(http, bluesky.service, feeds_retrier, timeout=request_timeout)
            pds = XrpcClient(http, bluesky.pds, other_retrier, timeout=request_timeout)
            yield _make_source(bluesky, public, pds)
        else:
            pds = XrpcClient(http, bluesky.pds, feeds_retrier, timeout=request_timeout)
            public = XrpcClient(http, bluesky.service, other_retrier, timeout=request_timeout)
            file = SessionFile.default(bluesky.pds, bluesky.identifier, environ)
            signed_in = AuthenticatedClient(pds, Session(pds, bluesky.identifier, password, file=file))
            yield _make_source(bluesky, signed_in, signed_in, public=public)


def _make_source(
    settings: BlueskySettings, feeds: XrpcReader, records: XrpcReader, *, public: XrpcReader | None = None
) -> BlueskySource:
    """Only who is to look for hints has a way to do it."""
    if settings.hints is None:
        return BlueskySource(feeds, records, public=public)
    return BlueskyHintSource(feeds, records, settings.hints, public=public)


def _check(settings: BlueskySettings) -> None:
    for name, url in (("service", settings.service), ("pds", settings.pds)):
        if not _is_http_url(url):
            raise InvalidSettings(f"bluesky.{name}", "must be an http or https address, without a password")
    if settings.identifier is not None and not _is_encrypted(settings.pds):
        raise InvalidSettings("bluesky.pds", "must be https: a password goes there")
    hints = settings.hints
    if hints is not None and hints != TIMELINE and not hints.startswith("at://"):
        raise InvalidSettings("bluesky.hints", f"must be `timeline` or a list's at:// address, not {hints!r}")
    if hints == TIMELINE and settings.identifier is None:
        raise InvalidSettings(
            "bluesky.hints", "a timeline is somebody's: set bluesky.identifier, or use a list"
        )


def _is_http_url(url: str) -> bool:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host) and not parsed.userinfo


def _is_encrypted(url: str) -> bool:
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
