"""Bluesky without credentials, over real HTTP: what it shows, what it refuses, and answers that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx2
import pytest

from perdure.feeds import (
    FeedPage,
    FeedSettings,
    FeedStore,
    Link,
    Poller,
    PollSettings,
    RateLimiter,
    transitions,
)
from perdure.feeds.bluesky import BlueskySource, open_bluesky
from perdure.feeds.completeness_audit import audit_account
from perdure.feeds.errors import (
    AccountBlocked,
    AccountUnavailable,
    AuthenticationFailed,
    CursorRejected,
    InvalidActor,
    InvalidSettings,
    RequestRejected,
    SourceError,
    SourceUnavailable,
)
from perdure.feeds.settings import BlueskySettings
from perdure.feeds.source import FollowSource, HintSource
from perdure.storage import open_storage
from perdure.storage.time_types import DAY, HOUR

from ..conditions import wait_until
from .fake_server import FEED, FakeBluesky, Fault
from .fake_server.faults import How
from .simulation import World, WorldSource
from .simulation.accounts import Cursors

pytestmark = pytest.mark.anyio

RETRIES = 2
QUICK = PollSettings(max_retries=RETRIES, retry_backoff_ms=1)


def settings(fake: FakeBluesky, *, hints: str | None = None, polling: PollSettings = QUICK) -> FeedSettings:
    return FeedSettings(polling=polling, bluesky=BlueskySettings(service=fake.url, pds=fake.url, hints=hints))


@pytest.fixture
async def fake() -> AsyncGenerator[FakeBluesky]:
    async with FakeBluesky(World()) as fake:
        yield fake


@pytest.fixture
async def bluesky(fake: FakeBluesky) -> AsyncGenerator[BlueskySource]:
    async with open_bluesky(settings(fake), environ={}) as bluesky:
        yield bluesky


@pytest.fixture
def anna(fake: FakeBluesky) -> str:
    """An account with a bit of everything: replies, quotes, reposts, and times that are not true."""
    world = fake.world
    did, other = world.account("anna.test"), world.account("bert.test")
    theirs = world.publish(other, "see https://example.com/theirs")
    for number in range(20):
        world.advance(HOUR)
        own = world.publish(did, f"post {number}")
        world.reply(did, theirs, "a reply")
        world.repost(did, own)
    world.repost(did, theirs)
    world.quote(
        did, theirs, "look", card={"uri": "https://example.com/card", "title": "T", "description": ""}
    )
    world.publish(did, "back", created_at=world.now - 9 * DAY)
    world.publish(did, "forward", created_at=world.now + 9 * DAY)
    world.publish(did, "missing", created_at="some day")
    return did


async def head(bluesky: BlueskySource, did: str, etag: str | None = None) -> FeedPage:
    page = await bluesky.page(did, limit=100, etag=etag)
    assert page is not None
    return page


async def whole_feed(source: BlueskySource | WorldSource, did: str, limit: int = 7) -> list[FeedPage]:
    pages: list[FeedPage] = []
    cursor: str | None = None
    while True:
        page = await source.page(did, limit=limit, cursor=cursor)
        assert page is not None
        pages.append(page)
        cursor = page.cursor
        if cursor is None:
            return pages


# What it shows


@pytest.mark.parametrize("cursors", ["time", "keyset"])
async def test_reading_page_by_page_shows_everything_at_its_time(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str, cursors: Cursors
) -> None:
    fake.world.knobs.cursors = cursors
    items = [item for page in await whole_feed(bluesky, anna) for item in page.items]
    assert {item.uri: item.time for item in items} == fake.world.everything_of(anna)
    assert {item.kind for item in items} == {"post", "reply", "quote", "repost"}


async def test_it_shows_the_items_that_the_source_without_http_shows(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    """So that what is proven on the one holds for the other."""

    def summarized(pages: list[FeedPage]) -> list[list[tuple[str, int, str, str, str, str, str]]]:
        return [
            [
                (each.uri, each.time, each.kind, each.post_uri, each.author_id, each.author_handle, each.text)
                for each in page.items
            ]
            for page in pages
        ]

    over_http = summarized(await whole_feed(bluesky, anna))
    assert over_http == summarized(await whole_feed(WorldSource(fake.world), anna))


async def test_links_come_with_their_items(bluesky: BlueskySource, anna: str) -> None:
    (quote,) = [item for item in (await head(bluesky, anna)).items if item.kind == "quote"]
    assert quote.links == (
        Link("https://example.com/card", "card", "T"),
        Link("https://example.com/theirs", "quote"),
    )


async def test_a_head_that_has_not_changed_is_not_sent_again(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    etag = (await head(bluesky, anna)).etag
    assert etag is not None
    assert await bluesky.page(anna, limit=100, etag=etag) is None
    assert [each.status for each in fake.asked()] == [200, 304]
    new = fake.world.publish(anna, "new", at=fake.world.now + HOUR)
    changed = await head(bluesky, anna, etag)
    assert changed.items[0].uri == new
    assert changed.etag not in (None, etag)


async def test_only_the_head_has_an_etag(bluesky: BlueskySource, anna: str) -> None:
    first, second, *_ = await whole_feed(bluesky, anna)
    assert first.etag is not None
    assert second.etag is None


async def test_a_page_below_the_head_is_always_sent(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    """Even if the client has its ETag: reading a gap must return what is there."""
    first, second, *_ = await whole_feed(bluesky, anna)
    assert first.cursor is not None
    asked = {"actor": anna, "limit": 7, "cursor": first.cursor}
    async with httpx2.AsyncClient() as http:
        etag = (await http.get(f"{fake.url}/xrpc/{FEED}", params=asked)).headers["etag"]
    assert await bluesky.page(anna, limit=7, cursor=first.cursor, etag=etag) == second


async def test_a_record_of_garbage_does_not_sink_its_page(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    before = await head(bluesky, anna)
    fake.world.spoil(before.items[1].uri)
    page = await head(bluesky, anna)
    assert page.invalid_records == 1
    assert page.items == (before.items[0], *before.items[2:])


async def test_profiles_are_asked_for_twenty_five_at_a_time(
    fake: FakeBluesky, bluesky: BlueskySource
) -> None:
    dids = [fake.world.account() for _ in range(75)]
    fake.world.publish(dids[0], "one")
    fake.world.deactivate(dids[7])
    found = await bluesky.profiles(dids)
    assert {profile.account_id for profile in found} == {*dids} - {dids[7]}
    assert {profile.post_count for profile in found if profile.account_id == dids[0]} == {1}
    assert len(fake.asked("app.bsky.actor.getProfiles")) == 3


async def test_profiles_are_found_by_handle_and_an_unknown_one_is_no_error(
    bluesky: BlueskySource, anna: str
) -> None:
    (profile,) = await bluesky.profiles(["@anna.test", "unknown.test"])
    assert (profile.account_id, profile.handle) == (anna, "anna.test")
    assert await bluesky.profiles([]) == []


async def test_a_follow_list_is_read_to_its_end(fake: FakeBluesky, bluesky: BlueskySource, anna: str) -> None:
    followed = [fake.world.account() for _ in range(230)]
    for other in followed:
        fake.world.follow(anna, other)
    source: FollowSource = bluesky
    assert {each.account_id async for each in source.follows("@anna.test")} == {*followed}
    assert len(fake.asked("app.bsky.graph.getFollows")) == 3


async def test_the_follow_list_of_an_unknown_account_is_an_error(bluesky: BlueskySource) -> None:
    with pytest.raises(AccountUnavailable):
        [each async for each in bluesky.follows("unknown.test")]


# Records


async def test_the_records_are_everything_in_the_order_of_writing(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    items = [record.item async for page in bluesky.records(anna) for record in page.records]
    assert {item.uri for item in items} == {*fake.world.everything_of(anna)}
    for kinds in ({"post", "reply", "quote"}, {"repost"}):
        uris = [item.uri for item in items if item.kind in kinds]
        assert uris == sorted(uris)


async def test_records_are_read_to_the_end_page_by_page(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    for _ in range(220):
        fake.world.publish(anna)
    pages = [page async for page in bluesky.records(anna)]
    assert len(pages) > 4
    uris = [uri for page in pages for uri in page.uris]
    assert sorted(uris) == sorted(fake.world.everything_of(anna))


async def test_the_records_of_an_unknown_account_are_an_error(bluesky: BlueskySource) -> None:
    with pytest.raises(AccountUnavailable):
        [page async for page in bluesky.records("did:plc:unknown")]


async def test_an_audit_finds_a_post_that_was_dated_back_and_no_poll_saw(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    world = fake.world
    async with await open_storage("memory:") as storage:
        store = FeedStore(storage, clock=lambda: world.now)
        (profile,) = await bluesky.profiles([anna])
        await store.add(transitions.new_account(profile, now=world.now, settings=QUICK))
        poller = Poller(store, bluesky, PollSettings(initial_lookback_hours=24 * 30, posts_per_page=10))
        await poller.run_once()
        assert (await audit_account(store, bluesky, anna)).missing == 0

        world.advance(HOUR)
        late = world.publish(anna, "late", created_at=world.now - 300 * DAY)
        world.publish(anna, "new")
        assert (await poller.run_once()).new_items == 1
        found = await audit_account(store, bluesky, anna)
        assert (found.missing, found.repaired, found.deleted) == (1, 1, 0)
        assert [item.uri for item in found.examples] == [late]
        assert await store.count_items(anna) == len(world.everything_of(anna))


# What it refuses


async def test_an_account_that_went_away_is_unavailable_until_it_is_back(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    fake.world.deactivate(anna)
    with pytest.raises(AccountUnavailable):
        await head(bluesky, anna)
    fake.world.come_back(anna)
    assert (await head(bluesky, anna)).items


async def test_a_renamed_account_answers_under_its_did(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    fake.world.rename(anna, "annika.test")
    assert (await head(bluesky, anna)).items
    with pytest.raises(AccountUnavailable):
        await head(bluesky, "anna.test")
    assert [profile.handle for profile in await bluesky.profiles([anna])] == ["annika.test"]


async def test_an_invalid_name_is_not_an_unknown_account(bluesky: BlueskySource) -> None:
    with pytest.raises(InvalidActor):
        await head(bluesky, "not a name")
    with pytest.raises(InvalidActor):
        await bluesky.profiles(["anna.test", "not a name"])


async def test_a_foreign_cursor_is_refused(fake: FakeBluesky, bluesky: BlueskySource, anna: str) -> None:
    fake.world.knobs.foreign = "malformed"
    with pytest.raises(CursorRejected):
        await bluesky.page(anna, limit=10, cursor="2026-11-15T00:00:00.000Z")
    fake.world.knobs.foreign = "fails"
    with pytest.raises(SourceUnavailable):
        await bluesky.page(anna, limit=10, cursor="2026-11-15T00:00:00.000Z")


@pytest.mark.parametrize(
    ("status", "error", "message", "meaning", "tries"),
    [
        (400, "InvalidRequest", "Profile not found", AccountUnavailable, 1),
        (400, "InvalidRequest", "Invalid AT identifier", InvalidActor, 1),
        (400, "InvalidRequest", "Malformed cursor", CursorRejected, 1),
        (400, "InvalidRequest", "Something else", RequestRejected, 1),
        (400, "BlockedActor", "Requester has blocked actor", AccountBlocked, 1),
        (400, "BlockedByActor", "Requester is blocked by actor", AccountBlocked, 1),
        (400, "ExpiredToken", "Token has expired", SourceUnavailable, 1 + RETRIES),  # no token was sent
        (400, "InvalidToken", "Token could not be verified", SourceUnavailable, 1 + RETRIES),
        (401, "JwtExpired", "jwt expired", SourceUnavailable, 1 + RETRIES),
        (401, "AccountTakedown", "Account has been taken down", SourceUnavailable, 1 + RETRIES),
        (401, "AuthMissing", "Authentication Required", AuthenticationFailed, 1),
        (500, "InternalServerError", "Internal Server Error", SourceUnavailable, 1 + RETRIES),
        (502, "UpstreamFailure", "Upstream Failure", SourceUnavailable, 1 + RETRIES),
    ],
)
async def test_each_refusal_means_one_thing_and_only_what_may_get_better_is_tried_again(
    fake: FakeBluesky,
    bluesky: BlueskySource,
    anna: str,
    status: int,
    error: str,
    message: str,
    meaning: type[SourceError],
    tries: int,
) -> None:
    fake.fail(Fault(how="refused", times=None, status=status, error=error, message=message))
    with pytest.raises(meaning):
        await head(bluesky, anna)
    assert len(fake.asked()) == tries


async def test_a_server_that_wants_credentials_is_not_asked_without(
    fake: FakeBluesky, bluesky: BlueskySource
) -> None:
    fake.requires_auth = True
    with pytest.raises(AuthenticationFailed):
        await head(bluesky, "anna.test")


# Answers that break


BREAKS: list[How] = ["cut", "truncated", "nonsense", "dropped"]


@pytest.mark.parametrize("how", BREAKS)
async def test_an_answer_that_breaks_is_asked_for_again(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str, how: How
) -> None:
    whole = await head(bluesky, anna)
    for _ in range(RETRIES):
        fake.fail(Fault(how=how, status=200))
    assert await head(bluesky, anna) == whole
    assert len(fake.asked()) == 1 + 1 + RETRIES


@pytest.mark.parametrize("how", BREAKS)
async def test_answers_that_all_break_are_a_source_that_is_not_there(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str, how: How
) -> None:
    fake.fail(Fault(how=how, status=200, times=None))
    with pytest.raises(SourceUnavailable):
        await head(bluesky, anna)
    assert len(fake.asked()) == 1 + RETRIES


@pytest.mark.parametrize("how", ["slow", "trickling"])
async def test_an_answer_that_takes_too_long_is_none(fake: FakeBluesky, anna: str, how: How) -> None:
    fake.fail(Fault(how=how, seconds=3600, times=None))
    async with open_bluesky(settings(fake), environ={}, request_timeout=0.1) as bluesky:
        with pytest.raises(SourceUnavailable, match=r"did not respond within 0\.1 s"):
            await head(bluesky, anna)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with FakeBluesky(World()) as fake:
        gone = settings(fake)
    async with open_bluesky(gone, environ={}) as bluesky:
        with pytest.raises(SourceUnavailable):
            await head(bluesky, "did:plc:anna")


# How often it is asked


async def test_no_more_is_asked_at_once_than_there_are_connections(fake: FakeBluesky, anna: str) -> None:
    fake.latency = 0.01
    polling = PollSettings(connections=3)
    async with open_bluesky(settings(fake, polling=polling), environ={}) as bluesky:
        await asyncio.gather(*(head(bluesky, anna) for _ in range(30)))
    assert fake.max_in_flight() == 3
    assert len({each.connection for each in fake.asked()}) == 3


async def test_when_the_rate_is_limited_all_requests_wait_and_none_is_lost(
    fake: FakeBluesky, anna: str
) -> None:
    """Ten ask at once where five may. The five that are refused are the last ones that are."""
    fake.limit.set(5, seconds=1)
    fake.gate.clear()
    budget = RateLimiter(10)
    async with open_bluesky(settings(fake), limiter=budget, environ={}) as bluesky:
        asking = asyncio.gather(*(head(bluesky, anna) for _ in range(10)))
        await wait_until(lambda: fake.in_flight == 10, seconds=20)
        fake.gate.set()
        pages = await asking
    assert len(pages) == 10
    statuses = [each.status for each in sorted(fake.asked(), key=lambda each: each.started)]
    assert statuses.count(429) == 5
    assert statuses[10:] == [200] * 5


async def test_the_budget_learns_what_is_left(fake: FakeBluesky, anna: str) -> None:
    fake.limit.set(3000)
    budget = RateLimiter(10)
    async with open_bluesky(settings(fake), limiter=budget, environ={}) as bluesky:
        await head(bluesky, anna)
        await head(bluesky, anna)
    assert budget.remaining == 2998
    assert budget.request_count == 2


async def test_what_is_kept_back_is_not_asked_for(fake: FakeBluesky, anna: str) -> None:
    """A limit of twenty of which others use ten per cent: no request is ever refused."""
    fake.limit.set(20, seconds=1)
    async with open_bluesky(settings(fake, polling=PollSettings(connections=1)), environ={}) as bluesky:
        for _ in range(25):
            await head(bluesky, anna)
    assert fake.limit.refused == 0


# Hints, and settings


async def test_a_list_hints_at_who_has_news(fake: FakeBluesky, anna: str) -> None:
    world = fake.world
    quiet = world.account("quiet.test")
    uri = world.make_list(anna, [anna, quiet])
    async with open_bluesky(settings(fake, hints=uri), environ={}) as bluesky:
        assert isinstance(bluesky, HintSource)
        assert await bluesky.latest_activity() == {anna: max(world.everything_of(anna).values())}


async def test_without_a_feed_of_many_there_are_no_hints(bluesky: BlueskySource) -> None:
    assert not isinstance(bluesky, HintSource)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (BlueskySettings(service="public.api.bsky.app"), "bluesky.service"),
        (BlueskySettings(pds="ftp://bsky.social"), "bluesky.pds"),
        (BlueskySettings(service="http://[::1"), "bluesky.service"),
        (BlueskySettings(service="https://me:secret@bsky.example"), "bluesky.service"),
        (BlueskySettings(identifier="anna.test", pds="http://bsky.example"), "bluesky.pds"),
        (BlueskySettings(identifier="anna.test", pds="http://127.0.0.2"), "bluesky.identifier"),
        (BlueskySettings(hints="always"), "bluesky.hints"),
        (BlueskySettings(hints="timeline"), "bluesky.hints"),
        (BlueskySettings(identifier="anna.test"), "bluesky.identifier"),
    ],
)
async def test_invalid_settings_are_reported_before_any_request(
    settings: BlueskySettings, where: str
) -> None:
    with pytest.raises(InvalidSettings) as raised:
        async with open_bluesky(FeedSettings(bluesky=settings), environ={}):
            pass
    assert raised.value.setting == where


async def test_an_unchanged_page_of_a_server_without_etags_is_not_decoded_again(
    fake: FakeBluesky, bluesky: BlueskySource, anna: str
) -> None:
    fake.gives_etags = False
    etag = (await head(bluesky, anna)).etag
    assert etag is not None
    assert await bluesky.page(anna, limit=100, etag=etag) is None
    fake.world.publish(anna, "news")
    assert await bluesky.page(anna, limit=100, etag=etag) is not None
