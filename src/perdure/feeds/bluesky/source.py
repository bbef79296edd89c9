"""`BlueskySource` reads feeds, profiles, follow lists and records. `open_bluesky` creates such a source."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx2
import msgspec

from ...storage import Micros
from ...storage.loopback_address import is_loopback
from ...storage.request_batcher import batched
from ..errors import AccountBlocked, AccountUnavailable, InvalidSettings, RequestRejected, SourceUnavailable
from ..item import Item
from ..rate_limit import RateLimiter, Retrier
from ..settings import BlueskySettings, FeedSettings
from ..source import FeedPage, Profile, RecordPage
from .items import complete_items, latest_by_author, parse_follows, parse_page, parse_profiles, parse_records
from .lexicon import FOLLOW, POST, REPOST, Feed, Follows, Posts, Profiles, Records
from .session import AuthenticatedClient, Session, SessionFile
from .xrpc import REQUEST_TIMEOUT, QueryParams, XrpcClient, XrpcReader, XrpcResponse

T = TypeVar("T")

PROFILES_PER_REQUEST = 25
POSTS_PER_REQUEST = 25
PAGE_SIZE = 100
TIMELINE = "timeline"


class BlueskySource:
    """Implements FeedSource, FollowSource and AuditSource for Bluesky."""

    name = "Bluesky"

    def __init__(self, feeds: XrpcReader, records: XrpcReader, *, public: XrpcReader | None = None) -> None:
        """Create a source that reads feeds and profiles with the client `feeds`, and records with `records`.

        Requests that fail because of a block between an account and the logged-in user are repeated with the
        client `public`, which sends no credentials.
        """
        self._feeds = feeds
        self._records = records
        self._public = public

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        """Return the newest page of a feed, or the page at `cursor`.

        Only the newest page has an ETag. If its ETag is still `etag`, return None.
        """
        params: dict[str, str | int] = {"actor": account_id, "limit": limit}
        if cursor is not None:
            params["cursor"] = cursor
        known = etag if cursor is None else None
        response = await self._get("app.bsky.feed.getAuthorFeed", params, _feed, etag=known)
        if response is None:
            return None
        return parse_page(response.value, response.etag if cursor is None else None)

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        """Return the profiles of the actors that exist. Raise InvalidActor if a name is malformed."""
        names = [actor.removeprefix("@") for actor in actors]
        found: list[Profile] = []
        for batch in batched(names, PROFILES_PER_REQUEST):
            params = {"actors": batch}
            response = await self._get_modified("app.bsky.actor.getProfiles", params, _profiles)
            found += parse_profiles(response.profiles)
        return found

    async def follows(self, actor: str) -> AsyncGenerator[Profile]:
        """Yield the profiles of the accounts that `actor` follows and that Bluesky currently shows."""
        params: dict[str, str | int] = {"actor": actor.removeprefix("@"), "limit": PAGE_SIZE}
        used: set[str] = set()
        while True:
            response = await self._get_modified("app.bsky.graph.getFollows", params, _follows)
            for profile in parse_profiles(response.follows):
                yield profile
            if not response.cursor:
                return
            _check_unused(response.cursor, used, f"the follow list of {actor}")
            params["cursor"] = response.cursor

    async def unfollowed(self, actor: str, account_ids: Sequence[str]) -> set[str]:
        """Return the ids in `account_ids` that `actor` definitely does not follow.

        The caller must pass only accounts that `follows` did not yield. If the actor's follow records cannot
        be read, return the accounts that have a profile: if they were followed, `follows` would have yielded
        them.
        """
        followed: set[str] = set()
        try:
            async for records in self._list_records(actor, FOLLOW):
                followed.update(parse_follows(records))
        except (AccountUnavailable, RequestRejected):
            return {profile.account_id for profile in await self.profiles(account_ids)}
        return set(account_ids) - followed

    async def shown_items(self, items: Sequence[Item]) -> list[Item]:
        """Return `items` as the feed shows them, including the links of quoted posts.

        Omit items that the feed does not show.
        """
        found: list[Item] = []
        for batch in batched(items, POSTS_PER_REQUEST):
            params = {"uris": list(dict.fromkeys(item.post_uri for item in batch))}
            found += complete_items(batch, await self._get_modified("app.bsky.feed.getPosts", params, _posts))
        return found

    async def records(self, account_id: str) -> AsyncGenerator[RecordPage]:
        """Yield pages of an account's posts, then pages of its reposts. Both are sorted by record key."""
        for collection in (POST, REPOST):
            async for records in self._list_records(account_id, collection):
                yield parse_records(records, account_id)

    async def _list_records(self, account_id: str, collection: str) -> AsyncGenerator[Records]:
        """Yield the records of a collection page by page, sorted by record key."""
        params: dict[str, str | int] = {
            "repo": account_id,
            "collection": collection,
            "limit": PAGE_SIZE,
            "reverse": "true",
        }
        used: set[str] = set()
        while True:
            response = await self._records.get("com.atproto.repo.listRecords", params, _records)
            records = _require_modified(response).value
            if records.cursor:
                _check_unused(records.cursor, used, f"the record listing of {account_id}")
                params["cursor"] = records.cursor
            yield records
            if not records.cursor:
                return

    async def _get_modified(self, method: str, params: QueryParams, decoder: msgspec.json.Decoder[T]) -> T:
        return _require_modified(await self._get(method, params, decoder)).value

    async def _get(
        self, method: str, params: QueryParams, decoder: msgspec.json.Decoder[T], *, etag: str | None = None
    ) -> XrpcResponse[T] | None:
        """Send a request, and return the response.

        If it fails because of a block between the account and the logged-in user, send it again without
        credentials.
        """
        try:
            return await self._feeds.get(method, params, decoder, etag=etag)
        except AccountBlocked:
            if self._public is None:
                raise
            return await self._public.get(method, params, decoder, etag=etag)


class BlueskyHintSource(BlueskySource):
    """A BlueskySource that also implements HintSource by reading a combined feed of many accounts."""

    hints: str = TIMELINE
    """The feed that shows which accounts have new posts: `timeline` (the logged-in user's timeline), or the
    at:// URI of a Bluesky list."""

    async def latest_activity(self) -> Mapping[str, Micros]:
        """Return the time of each account's newest item on the first page of `hints`, by account id."""
        params: dict[str, str | int] = {"limit": PAGE_SIZE}
        if self.hints == TIMELINE:
            return latest_by_author(await self._get_modified("app.bsky.feed.getTimeline", params, _feed))
        params["list"] = self.hints
        return latest_by_author(await self._get_modified("app.bsky.feed.getListFeed", params, _feed))


def _check_unused(cursor: str, used: set[str], what: str) -> None:
    """Add `cursor` to `used`.

    If it is already there, raise SourceUnavailable: the server repeats a cursor, so the remaining pages
    cannot be read.
    """
    if cursor in used:
        raise SourceUnavailable(f"cannot read all of {what}: the server returned the same cursor twice")
    used.add(cursor)


def _require_modified(response: XrpcResponse[T] | None) -> XrpcResponse[T]:
    if response is None:
        raise SourceUnavailable("the server returned 304 Not Modified, although the request had no ETag")
    return response


_feed = msgspec.json.Decoder(Feed)
_profiles = msgspec.json.Decoder(Profiles)
_follows = msgspec.json.Decoder(Follows)
_records = msgspec.json.Decoder(Records)
_posts = msgspec.json.Decoder(Posts)


KEEPALIVE_SECONDS = 60.0
"""Seconds for which an idle connection stays open."""


@asynccontextmanager
async def open_bluesky(
    settings: FeedSettings,
    *,
    limiter: RateLimiter | None = None,
    environ: Mapping[str, str] = os.environ,
    request_timeout: float = REQUEST_TIMEOUT,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncGenerator[BlueskySource]:
    """Open a connection to Bluesky. Raise InvalidSettings if the settings are invalid.

    `limiter` limits the rate of requests to the server from which feeds are read. `transport` is for tests.
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
    # XrpcClient has its own timeout, which includes the whole response.
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
    """Return a source. The source implements HintSource only if `settings.hints` is set."""
    if settings.hints is None:
        return BlueskySource(feeds, records, public=public)
    source = BlueskyHintSource(feeds, records, public=public)
    source.hints = settings.hints
    return source


def _check(settings: BlueskySettings) -> None:
    for name, url in (("service", settings.service), ("pds", settings.pds)):
        if not _is_http_url(url):
            raise InvalidSettings(f"bluesky.{name}", "must be an http or https URL without credentials")
    if settings.identifier is not None and not _is_encrypted(settings.pds):
        raise InvalidSettings(
            "bluesky.pds",
            "must be an https URL, or a URL with a loopback address, because the password is sent to it",
        )
    hints = settings.hints
    if hints is not None and hints != TIMELINE and not hints.startswith("at://"):
        raise InvalidSettings(
            "bluesky.hints", f"must be `timeline` or the at:// URI of a Bluesky list, not {hints!r}"
        )
    if hints == TIMELINE and settings.identifier is None:
        raise InvalidSettings(
            "bluesky.hints",
            "`timeline` needs a login; set bluesky.identifier, or use the at:// URI of a Bluesky list",
        )


def _is_http_url(url: str) -> bool:
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host) and not parsed.userinfo


def _is_encrypted(url: str) -> bool:
    """Return whether a password can be sent safely to `url`: over https, or to a server on this machine."""
    parsed = httpx2.URL(url)
    return parsed.scheme == "https" or is_loopback(parsed.host)


def _password(settings: BlueskySettings, environ: Mapping[str, str]) -> str | None:
    """Return the app password, or None if no login is configured.

    Raise InvalidSettings if a login is configured but no password is set.
    """
    if settings.identifier is None:
        return None
    if password := environ.get(settings.password_variable):
        return password
    raise InvalidSettings(
        "bluesky.identifier",
        f"{settings.identifier} needs a password; set {settings.password_variable} to an app password",
    )
