"""Bluesky with credentials, over real HTTP: one session for all requests, and what happens when it ends."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest

from perdure.feeds import FeedPage, FeedSettings, PollSettings, RateLimiter, Retrier
from perdure.feeds.bluesky import BlueskySource, open_bluesky
from perdure.feeds.bluesky.session import MAX_RENEWALS, Session
from perdure.feeds.bluesky.xrpc import XrpcClient
from perdure.feeds.errors import AccountBlocked, AuthenticationFailed, SourceUnavailable
from perdure.feeds.settings import BlueskySettings
from perdure.feeds.source import HintSource

from ..conditions import wait_until
from .fake_server import FEED, FakeBluesky, Fault
from .simulation import World

pytestmark = pytest.mark.anyio

LOG_IN = "com.atproto.server.createSession"
REFRESH = "com.atproto.server.refreshSession"
QUICK = PollSettings(max_retries=1, retry_backoff_ms=1)
PASSWORD = {"PERDURE_BLUESKY_PASSWORD": "abcd-efgh"}
MANY = 30


class Two:
    """A PDS that wants tokens, and the public service, over one world; and a reader."""

    def __init__(self, pds: FakeBluesky, public: FakeBluesky) -> None:
        self.pds = pds
        self.public = public
        self.world = pds.world
        self.reader = self.world.account("reader.test")
        self.anna = self.world.account("anna.test")
        self.post = self.world.publish(self.anna, "a post")
        pds.sessions.passwords[self.reader] = "abcd-efgh"

    def settings(self, hints: str | None = None) -> FeedSettings:
        bluesky = BlueskySettings(
            service=self.public.url, pds=self.pds.url, identifier="reader.test", hints=hints
        )
        return FeedSettings(polling=QUICK, bluesky=bluesky)

    def counts(self) -> tuple[int, int]:
        """The number of logins, and the number of refreshed sessions."""
        return len(self.pds.asked(LOG_IN)), len(self.pds.asked(REFRESH))


@pytest.fixture
async def two() -> AsyncGenerator[Two]:
    world = World()
    async with FakeBluesky(world, requires_auth=True) as pds, FakeBluesky(world) as public:
        yield Two(pds, public)


@pytest.fixture
async def bluesky(two: Two) -> AsyncGenerator[BlueskySource]:
    async with open_bluesky(two.settings(), environ=PASSWORD) as bluesky:
        yield bluesky


async def head(bluesky: BlueskySource, did: str) -> FeedPage:
    page = await bluesky.page(did, limit=100)
    assert page is not None
    return page


async def many(bluesky: BlueskySource, did: str) -> None:
    """Read a feed many times at once; every time it is all there."""
    pages = await asyncio.gather(*(head(bluesky, did) for _ in range(MANY)))
    assert {page.items for page in pages} == {pages[0].items}
    assert len(pages[0].items) == 1


async def test_many_requests_share_one_session(two: Two, bluesky: BlueskySource) -> None:
    await many(bluesky, two.anna)
    assert two.counts() == (1, 0)
    assert all(each.is_authorized for each in two.pds.asked(FEED))
    assert len(two.pds.asked(FEED)) == MANY
    assert two.public.log == []


async def test_everything_is_asked_with_the_session(two: Two, bluesky: BlueskySource) -> None:
    two.world.follow(two.reader, two.anna)
    assert [each.account_id async for each in bluesky.follows("reader.test")] == [two.anna]
    assert [each.account_id for each in await bluesky.profiles(["anna.test"])] == [two.anna]
    assert [uri async for page in bluesky.records(two.anna) for uri in page.uris] == [two.post]
    assert two.public.log == []


async def test_a_token_that_runs_out_is_renewed_once_for_all_that_it_was_refused_to(
    two: Two, bluesky: BlueskySource
) -> None:
    await head(bluesky, two.anna)
    two.pds.sessions.expire("access")
    two.pds.gate.clear()
    reading = asyncio.create_task(many(bluesky, two.anna))
    await wait_until(lambda: two.pds.in_flight == QUICK.connections, seconds=20)
    two.pds.gate.set()
    await reading
    assert two.counts() == (1, 1)
    refused = [each for each in two.pds.asked(FEED) if each.status == 400]
    assert 1 < len(refused) <= QUICK.connections


async def test_tokens_may_run_out_again_and_again_while_many_read(two: Two, bluesky: BlueskySource) -> None:
    two.pds.latency = 0.002
    await head(bluesky, two.anna)

    async def expire_midway() -> None:
        wanted = len(two.pds.asked(FEED)) + MANY // 2
        while len(two.pds.asked(FEED)) < wanted:  # noqa: ASYNC110 - the server has no word for this
            await asyncio.sleep(0)
        two.pds.sessions.expire("access")

    for _ in range(10):
        await asyncio.gather(many(bluesky, two.anna), expire_midway())
    assert two.counts() == (1, 10)


async def test_when_the_whole_session_has_run_out_one_logs_in_again(two: Two, bluesky: BlueskySource) -> None:
    await head(bluesky, two.anna)
    two.pds.sessions.expire()
    await many(bluesky, two.anna)
    assert two.counts() == (2, 1)


async def test_a_session_that_the_server_has_forgotten_is_replaced(two: Two, bluesky: BlueskySource) -> None:
    await head(bluesky, two.anna)
    two.pds.sessions.revoke()
    await many(bluesky, two.anna)
    assert two.counts() == (2, 1)


async def test_a_refresh_whose_answer_breaks_is_tried_again(two: Two, bluesky: BlueskySource) -> None:
    """The first try has used the refresh token up, so the second ends in a new login."""
    await head(bluesky, two.anna)
    two.pds.sessions.expire("access")
    two.pds.fail(Fault(how="cut", path=REFRESH))
    await many(bluesky, two.anna)
    assert two.counts() == (2, 2)


async def test_a_server_that_cannot_refresh_just_now_costs_no_password(
    two: Two, bluesky: BlueskySource
) -> None:
    await head(bluesky, two.anna)
    two.pds.sessions.expire("access")
    two.pds.fail(Fault(how="refused", status=503, times=2, path=REFRESH))
    with pytest.raises(SourceUnavailable):
        await head(bluesky, two.anna)
    assert two.counts() == (1, 2)
    assert (await head(bluesky, two.anna)).items
    assert two.counts() == (1, 3)


async def test_a_wrong_password_stops_everything_and_is_tried_once(two: Two) -> None:
    wrong = {"PERDURE_BLUESKY_PASSWORD": "wrong"}
    async with open_bluesky(two.settings(), environ=wrong) as bluesky:
        answers = await asyncio.gather(
            *(head(bluesky, two.anna) for _ in range(MANY)), return_exceptions=True
        )
    assert {type(answer) for answer in answers} == {AuthenticationFailed}
    assert "reader.test" in str(answers[0])
    assert "wrong" not in str(answers[0])
    assert two.counts() == (1, 0)
    assert two.pds.asked(FEED) == []


async def test_a_password_that_no_longer_holds_stops_everything(two: Two, bluesky: BlueskySource) -> None:
    await head(bluesky, two.anna)
    two.pds.sessions.expire()
    two.pds.sessions.passwords[two.reader] = "another"
    for _ in range(3):
        with pytest.raises(AuthenticationFailed):
            await head(bluesky, two.anna)
    assert two.counts() == (2, 1)


async def test_a_server_that_refuses_its_own_tokens_is_not_asked_forever(
    two: Two, bluesky: BlueskySource
) -> None:
    two.pds.fail(
        Fault(
            how="refused",
            times=None,
            path=FEED,
            status=400,
            error="ExpiredToken",
            message="Token has expired",
        )
    )
    with pytest.raises(SourceUnavailable):  # the login was accepted, so another one would not help
        await head(bluesky, two.anna)
    assert len(two.pds.asked(FEED)) == 1 + MAX_RENEWALS


async def test_the_limits_of_logins_say_nothing_about_reading(two: Two) -> None:
    """A login is one of few in a day. To take that for the limit of everything would be to stop for a day."""
    two.pds.limit.set(30, seconds=86_400)
    budget = RateLimiter(10)
    async with httpx2.AsyncClient() as http:
        client = XrpcClient(http, two.pds.url, Retrier(budget, QUICK))
        session = Session(client, "reader.test", "abcd-efgh")
        await session.ensure_token()
        assert session.token is not None
    assert two.counts() == (1, 0)
    assert budget.remaining is None


# Between processes


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {**PASSWORD, "XDG_STATE_HOME": str(tmp_path)}


def files_in(home: dict[str, str]) -> list[Path]:
    return [each for each in Path(home["XDG_STATE_HOME"]).rglob("*") if each.is_file()]


async def test_a_login_is_kept_for_the_next_command(two: Two, home: dict[str, str]) -> None:
    for _ in range(40):
        async with open_bluesky(two.settings(), environ=home) as bluesky:
            assert (await head(bluesky, two.anna)).items
    assert two.counts() == (1, 0)


async def test_only_its_user_can_read_the_file_of_a_login(two: Two, home: dict[str, str]) -> None:
    async with open_bluesky(two.settings(), environ=home) as bluesky:
        await head(bluesky, two.anna)
    (file,) = files_in(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "abcd-efgh" not in file.read_text()


async def test_a_kept_login_that_ran_out_is_refreshed_and_kept_again(two: Two, home: dict[str, str]) -> None:
    for _ in range(2):
        async with open_bluesky(two.settings(), environ=home) as bluesky:
            await head(bluesky, two.anna)
        two.pds.sessions.expire("access")
    async with open_bluesky(two.settings(), environ=home) as bluesky:
        await head(bluesky, two.anna)
    assert two.counts() == (1, 2)


async def test_two_processes_share_what_one_of_them_refreshed(two: Two, home: dict[str, str]) -> None:
    """A refresh token is valid once, so the second process takes the tokens that the first one stored."""
    async with (
        open_bluesky(two.settings(), environ=home) as one,
        open_bluesky(two.settings(), environ=home) as other,
    ):
        await head(one, two.anna)
        await head(other, two.anna)
        two.pds.sessions.expire("access")
        await head(one, two.anna)
        await head(other, two.anna)
    assert two.counts() == (1, 1)


async def test_a_file_that_others_can_read_or_that_cannot_be_written_costs_only_a_login(
    two: Two, home: dict[str, str]
) -> None:
    async with open_bluesky(two.settings(), environ=home) as bluesky:
        await head(bluesky, two.anna)
    (file,) = files_in(home)
    file.chmod(0o644)
    async with open_bluesky(two.settings(), environ=home) as bluesky:
        await head(bluesky, two.anna)
    assert two.counts() == (2, 0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    file.write_text("no tokens")
    async with open_bluesky(two.settings(), environ=home) as bluesky:
        await head(bluesky, two.anna)
    assert two.counts() == (3, 0)

    unusable = {**home, "XDG_STATE_HOME": str(file)}
    async with open_bluesky(two.settings(), environ=unusable) as bluesky:
        assert (await head(bluesky, two.anna)).items


# A 401 of another server


async def test_a_401_between_their_own_servers_is_retried(two: Two, bluesky: BlueskySource) -> None:
    two.pds.fail(Fault(how="refused", status=401, error="JwtExpired", message="jwt expired", path=FEED))
    assert (await head(bluesky, two.anna)).items
    assert two.counts() == (1, 0)


async def test_whatever_a_login_is_refused_for_is_final(two: Two) -> None:
    two.pds.fail(Fault(how="refused", times=None, status=401, error="AuthFactorTokenRequired", path=LOG_IN))
    async with open_bluesky(two.settings(), environ=PASSWORD) as bluesky:
        for _ in range(2):
            with pytest.raises(AuthenticationFailed, match="AuthFactorTokenRequired"):
                await head(bluesky, two.anna)
    assert two.counts() == (1, 0)


# Blocked


async def test_a_blocked_reader_reads_what_is_public(two: Two, bluesky: BlueskySource) -> None:
    two.world.block(two.anna, two.reader)
    assert [item.uri for item in (await head(bluesky, two.anna)).items] == [two.post]
    assert [each.status for each in two.pds.asked(FEED)] == [400]
    (unsigned,) = two.public.asked(FEED)
    assert not unsigned.is_authorized


async def test_a_blocked_head_that_has_not_changed_is_not_sent_again(
    two: Two, bluesky: BlueskySource
) -> None:
    two.world.block(two.reader, two.anna)
    etag = (await head(bluesky, two.anna)).etag
    assert await bluesky.page(two.anna, limit=100, etag=etag) is None


async def test_a_reader_that_is_blocked_everywhere_gets_an_error(two: Two, bluesky: BlueskySource) -> None:
    two.world.block(two.anna, two.reader)
    two.public.fail(Fault(how="refused", status=400, error="BlockedActor", message="no"))
    with pytest.raises(AccountBlocked):
        await head(bluesky, two.anna)


# Hints


async def test_the_timeline_hints_at_who_has_news(two: Two) -> None:
    two.world.follow(two.reader, two.anna)
    async with open_bluesky(two.settings(hints="timeline"), environ=PASSWORD) as bluesky:
        assert isinstance(bluesky, HintSource)
        assert await bluesky.latest_activity() == {two.anna: two.world.everything_of(two.anna)[two.post]}
