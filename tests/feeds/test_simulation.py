"""The world shows everything that is in it, and its source shows what perdure's own reads over HTTP."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.feeds import FeedPage, FeedSource, Item
from perdure.feeds.errors import SourceError
from perdure.storage.time_types import SECOND

from .fake_server import FakeBluesky
from .fake_server.client import asking, reading, texts
from .simulation import Knobs, Question, World, WorldSource

pytestmark = pytest.mark.anyio

ODD = (
    *("", "soon", "2026-13-01T00:00:00Z", "2026-11-14T20:00:00", "2026-11-15t00:00:00+05:00"),
    *("1950-01-01T00:00:00Z", "2090-01-01T00:00:00Z", "2026-11-14T20:00:00.123456789Z"),
)
"""What people's programs write where a time should stand."""


def _lived(seed: int, knobs: Knobs | None = None) -> tuple[World, str]:
    """A random history of an account, with a friend whose posts are quoted and reposted."""
    chance = Random(seed)
    world = World(seed=seed, knobs=knobs)
    did, friend = world.account(), world.account()
    world.follow(did, friend)
    for _ in range(chance.randrange(60)):
        world.advance(chance.choice((0, 1000, 123_456, SECOND)))
        _live(world, chance, chance.choice((did, did, friend)))
    if chance.random() < 0.3 and (posts := _posts(world, did)):
        world.pin(did, chance.choice(posts))
    return world, did


def _posts(world: World, did: str | None = None) -> list[str]:
    return [uri for uri, row in world.rows.items() if not row.is_repost and did in (None, row.by.did)]


def _live(world: World, chance: Random, did: str) -> None:
    posts, rows = _posts(world), [*world.rows]
    match chance.randrange(10):
        case 0 | 1 | 2 if posts:
            _respond(world, chance, did, chance.choice(posts))
        case 3 if rows:
            world.delete(chance.choice(rows))
        case 4 if rows:
            world.spoil(chance.choice(rows))
        case 5:
            world.publish(did, "late", created_at=world.at - chance.randrange(10 * SECOND))
        case 6:
            world.publish(did, "odd", created_at=chance.choice(ODD))
        case _:
            world.publish(did, "post")


def _respond(world: World, chance: Random, did: str, post: str) -> None:
    card = {"uri": "https://example.com/a", "title": "A", "description": ""}
    match chance.randrange(3):
        case 0:
            world.repost(did, post)
        case 1:
            world.reply(did, post, "well")
        case _:
            world.quote(did, post, "look", card=chance.choice((None, card)))


async def _walked(source: FeedSource, did: str, limit: int) -> dict[str, int]:
    """Everything that a feed shows to who reads all of it at once."""
    found: dict[str, int] = {}
    cursor, is_over = None, False
    while not is_over:
        page = await source.page(did, limit=limit, cursor=cursor)
        assert page is not None
        assert [*page.items] == sorted(page.items, key=lambda item: -item.time // 1000)
        assert not found.keys() & {item.uri for item in page.items}
        found |= {item.uri: item.time for item in page.items}
        cursor, is_over = page.cursor, page.cursor is None
    return found


_knobs = st.builds(
    Knobs,
    cursors=st.sampled_from(["time", "keyset"]),
    short_pages=st.sampled_from([0.0, 0.4]),
    empty_pages=st.sampled_from([0.0, 0.4]),
    shows_sort_time=st.booleans(),
)


@given(seed=st.integers(0, 1 << 20), limit=st.sampled_from([1, 2, 7, 100]), knobs=_knobs)
async def test_all_pages_together_are_everything_there_is(seed: int, limit: int, knobs: Knobs) -> None:
    world, did = _lived(seed, knobs)
    assert await _walked(WorldSource(world), did, limit) == world.everything_of(did)


@given(seed=st.integers(0, 1 << 20))
async def test_the_same_history_gives_the_same_answers(seed: int) -> None:
    (one, did), (other, same) = _lived(seed), _lived(seed)
    assert did == same
    assert one.everything_of(did) == other.everything_of(did)
    assert await WorldSource(one).page(did, limit=10) == await WorldSource(other).page(did, limit=10)


async def test_what_is_deleted_is_not_shown() -> None:
    world = World()
    did, friend = world.account(), world.account()
    deleted, kept = world.publish(friend, "deleted"), world.publish(friend, "kept")
    reposts = [world.repost(did, post, at=world.advance(SECOND)) for post in (deleted, kept)]
    world.delete(deleted)
    assert [*world.everything_of(did)] == [reposts[1]]
    world.deactivate(friend)
    assert world.everything_of(did) == {}
    assert {*world.ever_of(did)} == {*reposts}
    async with asking(world) as reader:
        page = await reader.feed(did, limit=1)
        assert page["feed"] == []
        assert "cursor" in page
        world.come_back(friend)
        assert texts(await reader.feed(did, limit=1)) == ["kept"]


async def test_what_is_written_between_pages_moves_nothing() -> None:
    """A cursor is a place, not a count: what comes above it or goes below it does not shift the rest."""
    world = World()
    did = world.account()
    posts = [world.publish(did, at=world.advance(SECOND)) for _ in range(9)]

    async def meddle(question: Question) -> None:
        if question.number == 1:
            world.publish(did, at=world.advance(SECOND))
            world.delete(posts[6])
            world.delete(posts[2])

    found = await _walked(WorldSource(world, before=meddle), did, limit=3)
    assert {*posts} - {*found} == {posts[2]}


async def test_the_hook_may_give_the_answer_instead() -> None:
    world = World()
    did = world.account()

    async def fail(question: Question) -> None:
        raise SourceError(question.kind)

    source = WorldSource(world, before=fail)
    with pytest.raises(SourceError, match="page"):
        await source.page(did, limit=1)
    with pytest.raises(SourceError, match="profiles"):
        await source.profiles([did])
    assert [question.kind for question in source.asked] == ["page", "profiles"]


# The two sources


def _plain(item: Item) -> Item:
    return msgspec.structs.replace(item, links=())


def _without_links(page: FeedPage | None) -> FeedPage:
    assert page is not None
    items, pinned = (tuple(_plain(item) for item in part) for part in (page.items, page.pinned))
    return msgspec.structs.replace(page, items=items, pinned=pinned, etag=page.etag and "some")


@pytest.mark.parametrize("style", ["keyset", "time"])
async def test_the_world_shows_what_perdure_reads_over_http(style: Literal["keyset", "time"]) -> None:
    for seed in range(25):
        knobs = Knobs(cursors=style, short_pages=0.2, empty_pages=0.2, shows_sort_time=seed % 2 == 0)
        world, did = _lived(seed, knobs)
        direct, cursor = WorldSource(world), None
        async with FakeBluesky(world) as fake, reading(fake) as source:
            while True:
                page = _without_links(await source.page(did, limit=7, cursor=cursor))
                assert page == _without_links(await direct.page(did, limit=7, cursor=cursor))
                if (cursor := page.cursor) is None:
                    break
            written = [record async for page in source.records(did) for record in page.records]
            there = [record async for page in direct.records(did) for record in page.records]
            assert [_plain(each.item) for each in written] == [_plain(each.item) for each in there]
            assert [each.written_at for each in written] == [each.written_at for each in there]
            items = [each.item for each in written]
            shown = [_plain(item) for item in await source.shown_items(items)]
            assert shown == [_plain(item) for item in await direct.shown_items(items)]
            followed = [*world.accounts, "did:plc:unknown"]
            assert await source.unfollowed(did, followed) == await direct.unfollowed(did, followed)
            assert await source.profiles([did]) == await direct.profiles([did])
            followed = [profile async for profile in source.follows(did)]
            assert followed == [profile async for profile in direct.follows(did)]


async def test_both_sources_fail_alike() -> None:
    world = World()
    gone, there = world.account(), world.account()
    world.publish(there)
    world.deactivate(gone)
    async with FakeBluesky(world) as fake, reading(fake) as source:
        for foreign in ("fails", "malformed"):
            world.knobs.foreign = foreign
            for actor, cursor in ((gone, None), ("did:plc:unknown", None), ("no name", None), (there, "x")):
                errors = [await _error(each, actor, cursor) for each in (source, WorldSource(world))]
                assert errors[0] is errors[1], (actor, errors)


async def _error(source: FeedSource, actor: str, cursor: str | None) -> type[SourceError]:
    with pytest.raises(SourceError) as caught:
        await source.page(actor, limit=1, cursor=cursor)
    return caught.type


async def test_both_sources_know_an_unchanged_page() -> None:
    world = World()
    did = world.account()
    world.publish(did, at=world.advance(SECOND))
    async with FakeBluesky(world) as fake, reading(fake) as http:
        for source in (http, WorldSource(world)):
            page = await source.page(did, limit=10)
            assert page is not None
            assert await source.page(did, limit=10, etag=page.etag) is None
            world.publish(did, at=world.advance(SECOND))
            assert await source.page(did, limit=10, etag=page.etag) is not None


async def test_a_time_for_a_cursor_may_hide_what_has_the_same_time() -> None:
    """Only if the knob is set: what is never shown cannot be found."""
    world = World(knobs=Knobs(cursors="time"))
    did = world.account()
    for _ in range(5):
        world.publish(did)
    source = WorldSource(world)
    assert await _walked(source, did, limit=2) == world.everything_of(did)
    world.knobs.splits_ties = True
    assert len(await _walked(source, did, limit=2)) == 2
