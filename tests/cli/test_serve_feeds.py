"""`perdure serve --feeds`: one process serves, polls and shows."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.feeds import load_settings
from perdure.feeds.bluesky import open_bluesky
from perdure.samples.source import with_simulated
from perdure.storage import open_storage

from ..conditions import wait_until
from ..test_examples import sampled, visiting
from .command import TIMEOUT
from .feeds_folder import FeedsFolder, feeds_folder, now
from .serve_process import anyone, content_of, ended_well, refused
from .user_servers import OWN_SERVER

pytestmark = pytest.mark.anyio


@pytest.fixture
async def place(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[FeedsFolder]:
    """A folder with the default storage, and settings that name a Bluesky alone."""
    async with feeds_folder(tmp_path, name="perdure.db") as made:
        made.write_settings(url=None)
        yield made


def root_of(url: str) -> str:
    return url.removesuffix("/mcp")


async def test_accounts_that_are_added_meanwhile_are_polled_shown_and_released_at_the_end(
    place: FeedsFolder,
) -> None:
    alice = place.person("alice.test", 3)
    async with sampled(place.folder, "--feeds") as server, anyone() as browser:
        page = f"{root_of(server.url)}/feeds"
        assert "perdure feeds add HANDLE" in (await browser.get(page)).text
        assert "feeds       polled from Bluesky" in server.program.output
        await place.feeds("add", "alice.test")  # in the same folder, it needs no option
        await server.program.wait_for_output("[INITIAL] alice.test: 3 posts, 0 URLs across 1 pages")
        assert "alice.test" in (await browser.get(page)).text
        health = (await browser.get(f"{root_of(server.url)}/health")).json()
        assert health == {"status": "ok", "feeds": "polled"}
        place.fake.gate.clear()
        place.world.publish(alice, "news")
        async with place.store() as store:
            await store.update(alice, lambda account: replace(account, next_poll_at=now()))
        await wait_until(lambda: place.fake.in_flight > 0, TIMEOUT)
        code = await server.program.end(signal.SIGTERM)
    ended_well(server.program, code)
    assert (await place.account(alice)).lease is None
    assert len(await place.items(alice)) == 3


async def test_wrong_credentials_are_logged_and_shown_and_do_not_end_the_server(place: FeedsFolder) -> None:
    alice, me = place.person("alice.test", 1), place.person("me.test")
    await place.added(alice)
    place.fake.sessions.passwords[me] = "right"
    place.write_settings(url=None, identifier="me.test")
    variables = {"PERDURE_BLUESKY_PASSWORD": "wrong"}
    async with sampled(place.folder, "--feeds", variables=variables) as server, anyone() as browser:
        await server.program.wait_for_output("feed polling stopped: ")
        assert "as me.test failed" in server.program.output
        assert "and its app password; restarting in 60 s" in server.program.output
        health = await browser.get(f"{root_of(server.url)}/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        assert health.json()["feeds"] == "not polled; see the server log"
        async with visiting(server.url) as (client, _):
            assert await client.list_tools()
        code = await server.program.end(signal.SIGINT)
    ended_well(server.program, code)
    assert (await place.account(alice)).lease is None


async def test_the_storage_is_that_of_the_users_own_server(place: FeedsFolder) -> None:
    (place.folder / "own.py").write_text(OWN_SERVER)
    place.write_settings(url="sqlite:///elsewhere.db")
    place.url = f"sqlite:///{place.folder / 'own.db'}"
    await place.added(place.person("alice.test", 2))
    async with sampled(place.folder, "own:server", "--feeds") as server, anyone() as browser:
        await server.program.wait_for_output("[INITIAL] alice.test: 2 posts")
        assert "alice.test" in (await browser.get(f"{root_of(server.url)}/feeds")).text
    assert not (place.folder / "elsewhere.db").exists()


async def test_made_up_people_of_the_sample_tools_stay_available(place: FeedsFolder) -> None:
    """Bluesky does not know them; the poller reads them from where the tools do."""
    async with sampled(place.folder, "--feeds") as server, visiting(server.url) as (client, _):
        read = content_of(await client.call_tool("read_feeds", {"accounts": ["ada.example"]}))
        assert read["accounts"] == 1
        (ada,) = await place.accounts()
        async with place.store() as store:
            await store.update(ada.account_id, lambda account: replace(account, next_poll_at=now()))

        async def is_polled() -> bool:
            return (await place.account(ada.account_id)).poll_count > ada.poll_count

        await wait_until(is_polled, TIMEOUT)
    account = await place.account(ada.account_id)
    assert (account.status, account.consecutive_failures) == (ada.status, 0)
    assert place.fake.asked(actor=ada.account_id) == []


async def test_bluesky_is_not_asked_for_the_profiles_of_made_up_people(place: FeedsFolder) -> None:
    alice = place.person("alice.test")
    async with open_bluesky(load_settings(place.folder / "feeds.toml")) as bluesky:
        found = await with_simulated(bluesky).profiles([alice, "did:example:ada"])
        only = await with_simulated(bluesky).profiles(["did:example:ada"])
    assert {each.handle for each in found} == {"alice.test", "ada.example"}
    assert [each.handle for each in only] == ["ada.example"]
    assert len(place.fake.log) == 1


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        ('[bluesky]\nidentifier = "me.test"\n', "me.test needs a password; set PERDURE_BLUESKY_PASSWORD"),
        ("[polling]\nposts_per_page = 500\n", "polling.posts_per_page: must be between 1 and 100"),
    ],
)
async def test_settings_that_are_wrong_are_refused_before_anything_is_opened(
    tmp_path: Path, settings: str, because: str
) -> None:
    (tmp_path / "feeds.toml").write_text(settings)
    assert because in await refused(tmp_path, "--feeds")


async def test_settings_that_name_another_storage_are_warned_of(place: FeedsFolder) -> None:
    place.write_settings(url="sqlite:///elsewhere.db")
    async with sampled(place.folder, "--feeds") as server:
        await server.program.wait_for_output("ignoring `url` in the feeds settings")
    async with await open_storage(place.url):
        assert not (place.folder / "elsewhere.db").exists()
