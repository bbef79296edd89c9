"""What the fake refuses, limits, remembers and breaks: tokens, rates, ETags, cut answers, garbage."""

from __future__ import annotations

import asyncio
from typing import Literal

import httpx2
import pytest

from perdure.storage.time_types import HOUR, SECOND

from ..conditions import wait_until
from .fake_server import FEED, FakeBluesky, Fault
from .fake_server.client import LOGIN, asking, bearing, identity, reading
from .fake_server.process import fake_process
from .simulation import World

pytestmark = pytest.mark.anyio

REFRESH = "com.atproto.server.refreshSession"


# Tokens


async def test_a_server_of_accounts_wants_a_token() -> None:
    world = World()
    did = world.account()
    async with asking(world, requires_auth=True) as reader:
        assert (await reader.refusal(FEED, actor=did))[:2] == (401, "AuthMissing")
        assert (await reader.refusal(FEED, actor=did, headers=bearing("x")))[:2] == (400, "InvalidToken")
        wrong = await reader.post(LOGIN, body={"identifier": did, "password": "guessed"})
        assert (wrong.status_code, wrong.json()["error"]) == (401, "AuthenticationRequired")
        token = (await reader.login(did))["accessJwt"]
        assert await reader.feed(did, headers=bearing(token)) == {"feed": []}


async def test_tokens_run_out_and_are_renewed_once() -> None:
    world = World()
    did = world.account()
    now = [world.at]
    async with asking(world, requires_auth=True, clock=lambda: now[0]) as reader:
        session = await reader.login(did)
        now[0] += 2 * HOUR
        expired = await reader.refusal(FEED, actor=did, headers=bearing(session["accessJwt"]))
        assert expired == (400, "ExpiredToken", "Token has expired")
        renewed = (await reader.post(REFRESH, token=session["refreshJwt"])).json()
        assert await reader.feed(did, headers=bearing(renewed["accessJwt"])) == {"feed": []}
        for token in (session["refreshJwt"], renewed["accessJwt"]):
            again = await reader.post(REFRESH, token=token)
            assert (again.status_code, again.json()["error"]) == (400, "InvalidToken")
        reader.fake.sessions.expire("access")
        assert (await reader.refusal(FEED, actor=did, headers=bearing(renewed["accessJwt"])))[0] == 400
        reader.fake.sessions.revoke()
        gone = await reader.post(REFRESH, token=renewed["refreshJwt"])
        assert gone.json()["error"] == "InvalidToken"


async def test_who_is_blocked_sees_more_without_a_token() -> None:
    world = World()
    viewer, blocked, blocking = (world.account() for _ in range(3))
    world.block(viewer, blocked)
    world.block(blocking, viewer)
    async with asking(world) as reader:
        token = bearing((await reader.login(viewer))["accessJwt"])
        assert (await reader.refusal(FEED, actor=blocked, headers=token))[:2] == (400, "BlockedActor")
        assert (await reader.refusal(FEED, actor=blocking, headers=token))[:2] == (400, "BlockedByActor")
        assert await reader.feed(blocked) == await reader.feed(blocking) == {"feed": []}
        world.unblock(viewer, blocked)
        assert await reader.feed(blocked, headers=token) == {"feed": []}
    assert [each.is_authorized for each in reader.fake.asked(actor=blocking)] == [True, False]


# Limits and ETags


async def test_a_limit_counts_a_window_and_says_when_it_ends() -> None:
    world = World(now=1_800_000_000 * SECOND)
    did = world.account()
    now = [world.at]
    async with asking(world, clock=lambda: now[0]) as reader:
        reader.fake.limit.set(2, seconds=60)
        answers = [await reader.get(FEED, actor=did) for _ in range(3)]
        limits = [{name: answer.headers.get(name) for name in LIMIT_HEADERS} for answer in answers]
        common = {"ratelimit-limit": "2", "ratelimit-reset": "1800000060", "ratelimit-policy": "2;w=60"}
        assert limits == [
            {**common, "ratelimit-remaining": "1", "retry-after": None},
            {**common, "ratelimit-remaining": "0", "retry-after": None},
            {**common, "ratelimit-remaining": "0", "retry-after": "60"},
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[2].json()["error"] == "RateLimitExceeded"
        now[0] += 60 * SECOND
        assert (await reader.get(FEED, actor=did)).headers["ratelimit-remaining"] == "1"
        reader.fake.limit.set(0, sends_headers=False)
        silent = await reader.get(FEED, actor=did)
        assert silent.status_code == 429
        assert "retry-after" not in silent.headers


LIMIT_HEADERS = (
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "ratelimit-policy",
    "retry-after",
)


async def test_an_unchanged_answer_is_304_and_has_no_body() -> None:
    world = World()
    did = world.account()
    world.publish(did)
    async with asking(world) as reader:
        reader.fake.limit.set(100)
        first = await reader.get(FEED, actor=did)
        known = {"if-none-match": first.headers["etag"]}
        same = await reader.get(FEED, actor=did, headers=known)
        world.publish(did)
        changed = await reader.get(FEED, actor=did, headers=known)
        reader.fake.gives_etags = False
        without = await reader.get(FEED, actor=did, headers=known)
    assert first.headers["etag"].startswith('W/"')
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
    assert same.headers["ratelimit-remaining"] == "98"
    assert (changed.status_code, without.status_code) == (200, 200)
    assert "etag" not in without.headers


# What goes wrong


async def test_an_answer_may_be_cut_or_never_come() -> None:
    world = World()
    did = world.account()
    for _ in range(50):
        world.publish(did, at=world.advance(SECOND))
    async with asking(world) as reader:
        for how in ("cut", "dropped"):
            reader.fake.fail(Fault(how=how))
            with pytest.raises(httpx2.RemoteProtocolError):
                await reader.get(FEED, actor=did)
            assert len((await reader.feed(did))["feed"]) == 50


async def test_an_answer_may_be_truncated_or_nonsense_or_an_error() -> None:
    world = World()
    did = world.account()
    world.publish(did)
    async with asking(world) as reader:
        reader.fake.fail(Fault(how="truncated"))
        truncated = await reader.get(FEED, actor=did)
        reader.fake.fail(Fault(how="nonsense", status=502))
        nonsense = await reader.get(FEED, actor=did)
        reader.fake.fail(Fault(how="refused", status=502, error="UpstreamFailure", message="no luck"))
        assert await reader.refusal(FEED, actor=did) == (502, "UpstreamFailure", "no luck")
    assert truncated.status_code == 200
    with pytest.raises(ValueError, match=r"delimiter|Unterminated|Expecting"):
        truncated.json()
    assert (nonsense.status_code, nonsense.headers["content-type"]) == (502, "text/html")


@pytest.mark.parametrize("how", ["slow", "trickling"])
async def test_an_answer_may_come_too_late(how: Literal["slow", "trickling"]) -> None:
    world = World()
    did = world.account()
    async with FakeBluesky(world) as fake, httpx2.AsyncClient(timeout=20) as http:
        url = f"{fake.url}/xrpc/{FEED}"
        fake.fail(Fault(how=how, seconds=60, times=None))
        with pytest.raises(httpx2.ReadTimeout):
            await http.get(url, params={"actor": did}, timeout=httpx2.Timeout(20, read=0.2))
        fake.faults.clear()
        assert (await http.get(url, params={"actor": did})).status_code == 200


async def test_a_fault_befalls_only_what_it_is_meant_for() -> None:
    world = World()
    one, other = world.account(), world.account()
    for _ in range(2):
        world.publish(one, at=world.advance(SECOND))
    async with asking(world) as reader:
        reader.fake.fail(Fault(how="refused", actor=one, with_cursor=True, path="getAuthorFeed", times=None))
        assert (await reader.feed(other))["feed"] == []
        cursor = (await reader.feed(one, limit=1))["cursor"]
        for _ in range(2):
            assert (await reader.refusal(FEED, actor=one, cursor=cursor))[0] == 503
        reader.fake.faults.clear()
        assert len((await reader.feed(one, cursor=cursor))["feed"]) == 1


async def test_garbage_within_a_page_is_skipped_record_by_record() -> None:
    world = World()
    did = world.account()
    posts = [world.publish(did, at=world.advance(SECOND)) for _ in range(40)]
    for post in posts[::2]:
        world.spoil(post)
    async with FakeBluesky(world) as fake, reading(fake) as source, httpx2.AsyncClient() as http:
        page = await source.page(did, limit=100)
        raw = (await http.get(f"{fake.url}/xrpc/{FEED}", params={"actor": did})).json()["feed"]
    assert page is not None
    assert page.invalid_records == 20
    assert {item.uri for item in page.items} == {*posts[1::2]} == {*world.everything_of(did)}
    assert len({str(item)[:40] for item in raw[1::2]}) > 3


# The log, and other processes


async def test_the_log_lists_requests_and_which_overlapped() -> None:
    world = World()
    one, other = world.account(), world.account()
    async with asking(world) as reader:
        fake = reader.fake
        fake.gate.clear()
        asking_all = asyncio.gather(*(reader.get(FEED, actor=actor) for actor in (one, one, other)))
        await wait_until(lambda: fake.in_flight == 3, seconds=20)
        fake.gate.set()
        await asking_all
        await reader.get(FEED, actor="did:plc:unknown", cursor="c")
    assert fake.max_in_flight() == 3
    assert (fake.max_in_flight(actor=one), fake.max_in_flight(actor=other)) == (2, 1)
    assert (fake.log[-1].status, fake.log[-1].cursor, fake.log[-1].path) == (400, "c", FEED)


async def test_who_does_not_wait_for_the_answer_is_in_the_log_too() -> None:
    world = World()
    did = world.account()
    async with asking(world, latency=60) as reader:
        fake = reader.fake
        impatient = asyncio.create_task(reader.get(FEED, actor=did))
        await wait_until(lambda: fake.in_flight == 1, seconds=20)
        impatient.cancel()
        await wait_until(lambda: len(fake.log) == 1, seconds=20)
    assert [each.status for each in fake.log] == [499]


async def test_a_failure_of_the_fake_itself_is_not_hidden() -> None:
    world = World()
    with pytest.raises(KeyError):
        async with asking(world) as reader, httpx2.AsyncClient() as http:
            assert (await http.post(f"{reader.fake.url}/_fake/nonsense")).status_code == 500


async def test_the_fake_runs_as_a_process_of_its_own_with_its_knobs_outside() -> None:
    async with fake_process("--seed", "3") as fake, httpx2.AsyncClient(base_url=fake.url) as http:
        [did] = await fake.order("populate", accounts=1, posts=3, every=SECOND)
        uri = await fake.order("world/publish", did=did, text="from outside")
        await fake.order("knobs", cursors="time")
        page = (await http.get(f"/xrpc/{FEED}", params={"actor": did, "limit": 2})).json()
        assert identity(page["feed"][0]) == uri
        assert page["cursor"].endswith("Z")
        assert len(await fake.order("world/everything_of", did=did)) == 4
        await fake.order("fail", how="refused", status=500)
        await fake.order("limit", most=1)
        answers = [await http.get(f"/xrpc/{FEED}", params={"actor": did}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [500, 429]
        assert [each["status"] for each in await fake.order("log")] == [200, 500, 429]
    assert fake.returncode == 0
