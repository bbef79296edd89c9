"""The fake agrees with the recorded answers of a real server, and does all that is known of real ones."""

from __future__ import annotations

from typing import cast

import pytest

from perdure.storage.time_types import HOUR, SECOND

from .fake_server import FEED, FakeBluesky, account_of, load, recorded
from .fake_server.client import asking, bearing, identity, reading, texts
from .simulation import POSTS, REPOSTS, Json, Knobs, World, iso

pytestmark = pytest.mark.anyio

FOLLOWS = "app.bsky.graph.getFollows"
PROFILES = "app.bsky.actor.getProfiles"
RECORDS = "com.atproto.repo.listRecords"
TIMELINE = "app.bsky.feed.getTimeline"


# The recorded answers


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("reposts", {"limit": 4}),
        ("pins", {"limit": 2, "includePins": "true"}),
        ("feed_full", {"limit": 100}),
        ("embeds", {"limit": 50}),
    ],
)
async def test_a_recorded_page_is_answered_to_the_letter(name: str, asked: Json) -> None:
    page, world = recorded(name), World()
    load(world, page)
    async with asking(world) as reader:
        assert await reader.feed(account_of(page), **asked) == page


async def test_the_items_of_the_page_of_100_are_answered_to_the_letter() -> None:
    """That page was put together from others, of two accounts and from before and after one of them took a
    name: its order, its cursor and the names are of no single answer.
    """
    items = cast("list[Json]", _nameless(recorded("page100")["feed"]))
    world = World()
    load(world, {"feed": items})
    owners = {item.get("reason", {}).get("by", item["post"]["author"])["did"] for item in items}
    async with asking(world) as reader:
        pages = [await reader.feed(did, limit=100) for did in owners]
    answered = {identity(item): item for page in pages for item in page["feed"]}
    assert len(items) == 100
    for item in items:
        assert answered[identity(item)] == item


def _nameless(value: object) -> object:
    match value:
        case dict():
            parts = cast("Json", value).items()
            return {name: _nameless(value) for name, value in parts if name != "displayName"}
        case list():
            return [_nameless(each) for each in cast("list[object]", value)]
        case _:
            return value


@pytest.mark.parametrize("name", ["reposts", "pins"])
async def test_a_recorded_cursor_continues_where_the_recorded_feed_does(name: str) -> None:
    page, whole, world = recorded(name), recorded("feed_full"), World()
    load(world, whole)
    identities = [identity(item) for item in whole["feed"]]
    rest = {"reposts": identities[3:], "pins": identities[2:]}[name]
    async with asking(world) as reader:
        following = await reader.feed(account_of(whole), limit=100, cursor=page["cursor"])
    assert [identity(item) for item in following["feed"]] == rest


async def test_perdure_reads_the_recorded_pages_from_the_fake_as_the_world_has_them() -> None:
    for name in ("reposts", "feed_full", "embeds"):
        page, world = recorded(name), World()
        load(world, page)
        async with FakeBluesky(world) as fake, reading(fake) as source:
            read = await source.page(account_of(page), limit=100)
        assert read is not None
        assert {item.uri: item.time for item in read.items} == world.everything_of(account_of(page))


# Order, times and cursors


async def test_a_feed_is_in_the_order_of_the_earlier_of_both_times() -> None:
    world = World()
    did = world.account()
    now = world.at
    world.publish(did, "first")
    world.publish(did, "next", at=now + 10 * SECOND)
    world.publish(did, "future", at=now + 20 * SECOND, created_at=now + HOUR)
    world.publish(did, "no time", at=now + 30 * SECOND, created_at="the other day")
    world.publish(did, "back-dated", at=now + 40 * SECOND, created_at=now + 5 * SECOND)
    async with asking(world) as reader:
        page = await reader.feed(did)
    assert texts(page) == ["no time", "future", "next", "back-dated", "first"]
    seen = [item["post"]["indexedAt"] for item in page["feed"]]
    assert seen == [iso(now + seconds * SECOND) for seconds in (30, 20, 10, 5, 0)]
    assert page["feed"][0]["post"]["record"]["createdAt"] == "the other day"


async def test_a_server_may_show_when_it_saw_a_post_as_it_was() -> None:
    world = World(knobs=Knobs(shows_sort_time=False))
    did = world.account()
    world.publish(did, "back-dated", created_at=world.at - HOUR)
    async with asking(world) as reader:
        [item] = (await reader.feed(did))["feed"]
    assert item["post"]["indexedAt"] == iso(world.at)
    assert [*world.everything_of(did).values()] == [world.at - HOUR]


async def test_an_own_post_that_is_reposted_is_there_twice() -> None:
    world = World()
    did = world.account()
    post = world.publish(did, "again")
    world.advance(SECOND)
    repost = world.repost(did, post)
    async with asking(world) as reader:
        page = await reader.feed(did)
    assert [identity(item) for item in page["feed"]] == [repost, post]
    assert page["feed"][0]["reason"]["indexedAt"] == iso(world.at)
    assert [*world.everything_of(did)] == [post, repost]


async def test_a_pin_comes_on_top_of_the_first_page_only() -> None:
    world = World()
    did = world.account()
    posts = [world.publish(did, str(number), at=world.at + number * SECOND) for number in range(4)]
    world.pin(did, posts[0])
    async with asking(world) as reader:
        first = await reader.feed(did, limit=2, includePins="true")
        second = await reader.feed(did, limit=2, includePins="true", cursor=first["cursor"])
        without = await reader.feed(did, limit=2)
    assert texts(first) == ["0", "3", "2"]
    assert first["feed"][0]["reason"] == {"$type": "app.bsky.feed.defs#reasonPin"}
    assert texts(second) == ["1", "0"]
    assert texts(without) == ["3", "2"]


async def test_the_end_is_an_absent_cursor() -> None:
    world = World()
    did = world.account()
    for number in range(4):
        world.publish(did, at=world.at + number * SECOND)
    async with asking(world) as reader:
        first = await reader.feed(did, limit=2)
        second = await reader.feed(did, limit=2, cursor=first["cursor"])
        third = await reader.feed(did, limit=2, cursor=second["cursor"])
    assert len(second["feed"]) == 2
    assert third == {"feed": []}


async def test_the_two_styles_of_cursors() -> None:
    world = World()
    did = world.account()
    for _ in range(2):
        world.publish(did, at=world.advance(SECOND))
    newest = world.accounts[did].rows[-1]
    async with asking(world) as reader:
        keyset = await reader.feed(did, limit=1)
        world.knobs.cursors = "time"
        time = await reader.feed(did, limit=1)
    assert keyset["cursor"] == f"{world.at // 1000}__{newest.cid}"
    assert time["cursor"] == iso(world.at)


async def test_a_foreign_cursor_is_refused_in_three_ways() -> None:
    world = World()
    did = world.account()
    world.publish(did)
    async with asking(world) as reader:
        foreign = iso(world.at)
        for knobs in (Knobs(cursors="keyset"), Knobs(cursors="time")):
            world.knobs = knobs
            assert (await reader.refusal(FEED, actor=did, cursor=foreign))[:2] == (500, "InternalServerError")
            world.knobs.foreign = "malformed"
            refusal = await reader.refusal(FEED, actor=did, cursor=foreign)
            assert refusal == (400, "InvalidRequest", "Malformed cursor")
            world.knobs.foreign = "empty"
            assert await reader.feed(did, cursor=foreign) == {"feed": []}
            foreign = f"{world.at // 1000}__bafyx"


async def test_short_and_empty_pages_still_have_a_cursor() -> None:
    world = World(seed=5, knobs=Knobs(short_pages=0.4, empty_pages=0.4))
    did = world.account()
    for _ in range(200):
        world.publish(did, at=world.advance(SECOND))
    async with asking(world) as reader:
        pages = [await reader.feed(did, limit=10)]
        again = await reader.feed(did, limit=10)
        while "cursor" in pages[-1]:
            pages.append(await reader.feed(did, limit=10, cursor=pages[-1]["cursor"]))
    lengths = [len(page["feed"]) for page in pages[:-1]]
    assert 0 in lengths
    assert 10 in lengths
    assert any(0 < length < 10 for length in lengths)
    assert again == pages[0]
    assert len({page.get("cursor") for page in pages}) == len(pages)
    found = [identity(item) for page in pages for item in page["feed"]]
    assert found == [*reversed(world.everything_of(did))]


@pytest.mark.parametrize("limit", [0, 101])
async def test_a_limit_is_1_to_100(limit: int) -> None:
    world = World()
    async with asking(world) as reader:
        status, error, _ = await reader.refusal(FEED, actor=world.account(), limit=limit)
    assert (status, error) == (400, "InvalidRequest")


# Who is there


async def test_an_unknown_account_is_not_found() -> None:
    world = World()
    did = world.account("old.test")
    world.rename(did, "new.test")
    missing = (400, "InvalidRequest", "Profile not found")
    async with asking(world) as reader:
        assert await reader.refusal(FEED, actor="did:plc:unknown") == missing
        assert await reader.refusal(FEED, actor="old.test") == missing
        assert await reader.feed("new.test") == await reader.feed(did) == {"feed": []}
        for leave in (world.deactivate, world.take_down):
            leave(did)
            assert await reader.refusal(FEED, actor=did) == missing
            world.come_back(did)
            assert await reader.feed(did) == {"feed": []}
        for actor in ("no name", "did:", "-.test", "@new.test"):
            expected = (400, "InvalidRequest", "Invalid AT identifier")
            assert await reader.refusal(FEED, actor=actor) == expected


async def test_a_renamed_author_is_shown_by_the_new_name() -> None:
    world = World()
    did = world.account("old.test")
    world.publish(did)
    async with asking(world) as reader:
        before = await reader.get(FEED, actor=did)
        world.rename(did, "new.test")
        after = await reader.get(FEED, actor=did, headers={"if-none-match": before.headers["etag"]})
    assert after.json()["feed"][0]["post"]["author"]["handle"] == "new.test"


async def test_profiles_leave_out_who_is_not_there_and_count_posts_only() -> None:
    world = World()
    did, gone = world.account("here.test"), world.account()
    post = world.publish(did)
    world.delete(world.publish(did))
    world.repost(did, post)
    world.follow(gone, did)
    world.deactivate(gone)
    async with asking(world) as reader:
        asked = ["here.test", gone, "did:plc:unknown"]
        [profile] = (await reader.get(PROFILES, actors=asked)).json()["profiles"]
        assert (profile["did"], profile["postsCount"], profile["followersCount"]) == (did, 1, 1)
        many = [f"a{number}.test" for number in range(26)]
        assert (await reader.refusal(PROFILES, actors=many))[:2] == (400, "InvalidRequest")


async def test_follows_come_in_pages_without_who_is_gone() -> None:
    world = World()
    did, *others = (world.account() for _ in range(6))
    for other in others:
        world.follow(did, other)
    world.take_down(others[1])
    world.unfollow(did, others[0])
    async with asking(world) as reader:
        pages = [(await reader.get(FOLLOWS, actor=did, limit=2)).json()]
        while "cursor" in pages[-1]:
            cursor: str = pages[-1]["cursor"]
            pages.append((await reader.get(FOLLOWS, actor=did, limit=2, cursor=cursor)).json())
    found = [account["did"] for page in pages for account in page["follows"]]
    assert found == [others[4], others[3], others[2]]
    assert pages[0]["subject"]["did"] == did


async def test_records_are_listed_in_the_order_of_writing() -> None:
    world = World()
    did = world.account()
    posts = [world.publish(did, at=world.advance(SECOND)) for _ in range(3)]
    late = world.publish(did, at=world.advance(SECOND), created_at=world.at - HOUR)
    repost = world.repost(did, posts[0])
    async with asking(world) as reader:
        asked: Json = {"repo": did, "collection": POSTS, "limit": 3, "reverse": "true"}
        first = (await reader.get(RECORDS, **asked)).json()
        second = (await reader.get(RECORDS, **asked, cursor=first["cursor"])).json()
        third = (await reader.get(RECORDS, **asked, cursor=second["cursor"])).json()
        newest = (await reader.get(RECORDS, repo=did, collection=POSTS, limit=1)).json()
        reposts = (await reader.get(RECORDS, repo=did, collection=REPOSTS)).json()
        missing = await reader.refusal(RECORDS, repo="did:plc:unknown", collection=POSTS)
    assert [record["uri"] for record in first["records"] + second["records"]] == [*posts, late]
    assert first["cursor"] == posts[2].rpartition("/")[2]
    assert third == {"records": []}
    assert [record["uri"] for record in newest["records"]] == [late]
    assert reposts["records"][0]["uri"] == repost
    assert reposts["records"][0]["value"]["subject"]["uri"] == posts[0]
    assert missing == (400, "InvalidRequest", "Could not find repo: did:plc:unknown")


async def test_the_timeline_and_a_list_show_many_accounts_at_once() -> None:
    world = World()
    viewer, friend, stranger = (world.account() for _ in range(3))
    world.follow(viewer, friend)
    members = world.make_list(viewer, [stranger, friend])
    for did in (viewer, friend, stranger) * 2:
        world.publish(did, did, at=world.advance(SECOND))
    world.repost(friend, next(iter(world.everything_of(stranger))), at=world.advance(SECOND))
    async with asking(world) as reader:
        token = bearing((await reader.login(viewer))["accessJwt"])
        first = (await reader.get(TIMELINE, headers=token, limit=3)).json()
        rest = (await reader.get(TIMELINE, headers=token, cursor=first["cursor"])).json()
        listed = (await reader.get("app.bsky.feed.getListFeed", list=members)).json()
        assert (await reader.refusal("app.bsky.feed.getListFeed", list="at://x"))[1] == "UnknownList"
        assert (await reader.refusal(TIMELINE))[:2] == (401, "AuthMissing")
    assert texts(first) + texts(rest) == [stranger, friend, viewer, friend, viewer]
    assert texts(listed) == [stranger, friend, stranger, friend]
