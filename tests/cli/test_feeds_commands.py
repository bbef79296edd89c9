"""`perdure feeds ...`: which accounts are polled, what is shown of them, and how mistakes are reported."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.feeds import AccountStatus
from perdure.storage.time_types import HOUR

from ..feeds.fake_server import Fault
from .feeds_folder import FeedsFolder, feeds_folder, now

pytestmark = pytest.mark.anyio


@pytest.fixture
async def place(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[FeedsFolder]:
    async with feeds_folder(tmp_path) as made:
        yield made


# Adding and removing


async def test_add_resolves_handles_and_names_those_that_do_not_exist(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test"), place.person("bob.test")
    ended = await place.feeds(
        "add", "@alice.test", "unknown.test", "no-handle", "https://bsky.app/profile/bob.test", code=1
    )
    assert [each.account_id for each in await place.accounts()] == [alice, bob]
    assert ended.out == "alice.test: added\nbob.test: added\n"
    for unknown in ("unknown.test", "no-handle"):
        assert f"unknown Bluesky account {unknown}; check the spelling" in ended.err


async def test_adding_again_changes_nothing_but_a_new_handle(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 3)
    await place.added(alice)
    await place.polled()
    before = await place.account(alice)
    assert "alice.test: already added" in (await place.feeds("add", "alice.test")).out
    assert await place.account(alice) == before
    place.world.rename(alice, "alison.test")
    document = await place.json("add", "alison.test")
    assert document["changes"] == [
        {"account": alice, "handle": "alison.test", "action": "renamed", "note": "was alice.test"}
    ]
    assert await place.account(alice) == replace(before, handle="alison.test")


async def test_a_name_that_the_source_refuses_does_not_keep_others_out(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test"), place.person("bob.test")
    document = await place.json("add", "alice.test", "a-.test", "bob.test", code=1)
    assert document["unknown"] == ["a-.test"]
    assert {each.account_id for each in await place.accounts()} == {alice, bob}


async def test_remove_keeps_the_items_unless_they_are_to_go_too(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test", 3), place.person("bob.test", 2)
    await place.added(alice, bob)
    await place.polled()
    assert "alice.test: removed (3 items kept)" in (await place.feeds("remove", "alice.test")).out
    deleted = await place.feeds("remove", "bob.test", "--delete-items")
    assert "bob.test: removed (2 items deleted)" in deleted.out
    assert await place.accounts() == []
    assert {item.author_id for item in await place.items()} == {alice}
    assert len((await place.json("items", alice))["items"]) == 3
    await place.feeds("items", bob, code=2)


async def test_follow_list_adds_followed_accounts_and_prunes_those_that_are_unfollowed(
    place: FeedsFolder,
) -> None:
    me, alice, bob = place.person("me.test"), place.person("alice.test"), place.person("bob.test")
    place.world.follow(me, alice)
    place.world.follow(me, bob)
    assert (
        "me.test follows 2 accounts: 2 added, 0 already" in (await place.feeds("follow-list", "me.test")).out
    )
    place.world.unfollow(me, alice)
    assert (
        "1 account suspended: no longer followed by me.test"
        in (await place.feeds("follow-list", "me.test", "--prune")).out
    )
    suspended = await place.account(alice)
    assert (suspended.status, suspended.reason) == (AccountStatus.SUSPENDED, "no longer followed by me.test")
    place.world.follow(me, alice)
    assert "2 accounts: 1 resumed, 1 already" in (await place.feeds("follow-list", "me.test", "--prune")).out
    assert {each.status for each in await place.accounts()} == {AccountStatus.ACTIVE}


async def test_pruning_keeps_accounts_that_are_deactivated_or_added_otherwise(
    place: FeedsFolder,
) -> None:
    """Absent from a follow list is not the same as unfollowed."""
    boss, other = place.person("boss.test"), place.person("other.test")
    people = {name: place.person(f"{name}.test") for name in ("gone", "left", "both", "hand")}
    for name, did in people.items():
        place.world.follow(boss, did)
        if name == "both":
            place.world.follow(other, did)
    await place.feeds("add", "hand.test")
    await place.feeds("follow-list", "boss.test")
    await place.feeds("follow-list", "other.test")
    for name in ("left", "both", "hand"):
        place.world.unfollow(boss, people[name])
    place.world.follow(boss, place.person("new.test"))
    place.world.deactivate(people["gone"])
    output = (await place.feeds("follow-list", "boss.test", "--prune")).out
    assert "1 account suspended: no longer followed by boss.test" in output
    statuses = {name: (await place.account(did)).status for name, did in people.items()}
    active = AccountStatus.ACTIVE
    assert statuses == {"gone": active, "left": AccountStatus.SUSPENDED, "both": active, "hand": active}


async def test_a_stored_account_that_the_source_does_not_show_is_not_unknown(
    place: FeedsFolder,
) -> None:
    alice = place.person("alice.test")
    await place.added(alice)
    place.world.deactivate(alice)
    await place.feeds("once", code=1)
    assert (
        "alice.test: already added, unavailable: Profile not found" in (await place.feeds("add", alice)).out
    )


async def test_follow_list_does_not_resume_accounts_that_were_suspended_by_hand(place: FeedsFolder) -> None:
    me, alice = place.person("me.test"), place.person("alice.test")
    place.world.follow(me, alice)
    await place.feeds("follow-list", me)
    await place.feeds("suspend", "alice.test", "--reason", "noise")
    await place.feeds("follow-list", me, "--prune")
    assert (await place.account(alice)).reason == "noise"


async def test_an_empty_follow_list_prunes_no_account(place: FeedsFolder) -> None:
    alice = place.person("alice.test")
    await place.added(alice)
    ended = await place.feeds("follow-list", "alice.test", "--prune", code=2)
    assert "alice.test follows no accounts, so pruning would suspend every account" in ended.err
    assert (await place.account(alice)).status is AccountStatus.ACTIVE
    assert (
        "unknown account unknown.test; check the spelling"
        in (await place.feeds("follow-list", "unknown.test", code=2)).err
    )


async def test_a_suspended_account_is_not_polled_until_it_is_resumed(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test", 1), place.person("bob.test", 1)
    await place.added(alice, bob)
    await place.feeds("suspend", "alice.test")
    await place.polled()
    assert place.fake.asked(actor=alice) == []
    await place.feeds("suspend", "bob.test", "unknown.test", code=2)
    assert (await place.account(bob)).status is AccountStatus.ACTIVE  # all of them, or none
    await place.feeds("resume", "alice.test")
    await place.polled()
    assert len(await place.items(alice)) == 1


async def test_reset_forgets_how_far_an_account_was_read_and_stores_nothing_twice(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 3)
    await place.added(alice)
    await place.polled()
    await place.feeds("reset", "alice.test")
    assert (await place.account(alice)).watermark is None
    ended = await place.feeds("poll", "alice.test")
    assert "[INITIAL] alice.test: 0 posts, 0 URLs across 1 pages" in ended.out
    assert len(await place.items(alice)) == 3


async def test_backfill_stores_what_is_older_than_the_look_back(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 10, every=12 * HOUR)
    place.write_settings(posts_per_page=2)
    await place.added(alice)
    await place.polled()
    assert len(await place.items(alice)) < 5
    ended = await place.feeds("backfill", "alice.test", "--since", "90h")
    assert re.search(r"\[POLL\] alice.test: \d posts, 0 URLs across \d pages", ended.out)
    assert "alice.test: has been read from" in ended.out
    assert [item.text for item in await place.items(alice)][:8] == [f"alice.test {each}" for each in range(8)]
    await place.feeds("backfill", "alice.test", "--since", "30d", "--no-wait")
    assert len((await place.account(alice)).gaps) == 1
    polled = (await place.feeds("poll", "alice.test")).out
    assert "High volume" not in polled  # the pages are those of the backfill
    assert len(await place.items(alice)) == 10


async def test_audit_finds_and_stores_what_no_poll_can_see(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test", 3, every=HOUR), place.person("bob.test", 1)
    place.write_settings(posts_per_page=2)
    await place.added(alice, bob)
    await place.polled()
    place.world.publish(alice, "from the past", created_at=now() - 900 * HOUR)
    await place.polled()
    assert "4 records at the source, 1 missing" in (await place.feeds("audit", "alice.test", "--dry-run")).out
    assert len(await place.items(alice)) == 3
    ended = await place.feeds("audit", "--all")
    assert "alice.test: 4 records at the source, 1 missing and now stored\n  missing: " in ended.out
    assert "bob.test: 1 record at the source, none missing" in ended.out
    assert "from the past" in {item.text for item in await place.items(alice)}
    place.world.deactivate(bob)
    document = await place.json("audit", "--all", code=1)
    assert [each["audit"] is None for each in document["audits"]] == [False, True]
    await place.feeds("once")
    assert "[SKIP] bob.test: Could not find repo" in (await place.feeds("audit", "--all")).out


async def test_audit_stores_history_and_removes_what_was_deleted_only_on_request(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 4, every=48 * HOUR)
    place.write_settings(posts_per_page=2)
    await place.added(alice)
    await place.polled()
    first = await place.items(alice)
    assert len(first) == 2
    place.world.delete(first[0].uri)
    output = (await place.feeds("audit", "alice.test")).out
    assert "none missing, 2 too old for polls, not stored" in output
    assert "1 stored item not removed, although deleted at the source (use --remove to remove them)" in output
    assert len(await place.items(alice)) == 2
    report = (await place.json("audit", "alice.test", "--history", "--remove"))["audits"][0]["audit"]
    counts = {name: report[name] for name in ("missing", "history", "history_stored", "deleted", "removed")}
    assert counts == {"missing": 0, "history": 2, "history_stored": 2, "deleted": 1, "removed": 1}
    assert {item.uri for item in await place.items(alice)} == set(place.world.everything_of(alice))


# Dry runs


@pytest.mark.parametrize(
    ("arguments", "expected", "asked"),
    [
        (["add", "bob.test"], "bob.test: would be added", ["app.bsky.actor.getProfiles"]),
        (
            ["follow-list", "bob.test", "--prune"],
            "0 accounts would be suspended",
            ["app.bsky.actor.getProfiles", "app.bsky.graph.getFollows"],
        ),
        (["remove", "--delete-items", "alice.test"], "would be removed (3 items deleted)", []),
        (["suspend", "alice.test"], "would be suspended", []),
        (["resume", "alice.test"], "would be resumed", []),
        (["reset", "alice.test"], "would be reset", []),
        (["backfill", "alice.test", "--since", "7d"], "would be read from", []),
        (["once"], "would poll 2 accounts now\n  alice.test\n  carol.test\n", []),
        (["run"], "would poll 1 account now\n  carol.test\n", []),
        (["poll", "alice.test"], "would poll 1 account now\n  alice.test\n", []),
        (["audit", "alice.test"], "3 records at the source, none missing", ["com.atproto.repo.listRecords"]),
    ],
)
async def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    place: FeedsFolder, arguments: list[str], expected: str, asked: list[str]
) -> None:
    alice, carol = place.person("alice.test", 3), place.person("carol.test")
    place.world.follow(place.person("bob.test"), place.person("dave.test"))
    await place.added(alice)
    await place.polled()
    await place.added(carol)
    before = await place.everything()
    place.fake.log.clear()
    assert expected in (await place.feeds(*arguments, "--dry-run")).out
    assert sorted({each.path for each in place.fake.log}) == asked
    assert await place.everything() == before


async def test_a_dry_run_says_so_to_programs_too(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 1)
    await place.added(alice)
    for arguments in (
        ["once"],
        ["backfill", "alice.test", "--since", "7d"],
        ["reset", alice],
        ["audit", alice],
    ):
        assert (await place.json(*arguments, "--dry-run"))["dry_run"] is True


async def test_a_dry_run_of_add_creates_no_storage(place: FeedsFolder) -> None:
    place.person("alice.test")
    await place.feeds("add", "alice.test", "--dry-run")
    assert [each.name for each in place.folder.iterdir()] == ["feeds.toml"]


# Settings and mistakes


async def test_settings_may_be_yaml_and_the_storage_named_by_an_option(place: FeedsFolder) -> None:
    place.person("alice.test")
    place.folder.joinpath("feeds.toml").unlink()
    place.folder.joinpath("feeds.yaml").write_text(
        f"bluesky:\n  service: {place.fake.url}\n", encoding="utf-8"
    )
    await place.feeds("add", "alice.test", "--url", "sqlite:///other.db")
    assert sorted(each.name for each in place.folder.iterdir()) == ["feeds.yaml", "other.db"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["status", "--url", "memory:"],
            "storage with a memory: URL is private to one process; use a file or a database server",
        ),
        (["status", "--url", "mongodb://h/d"], "cannot open mongodb://h/d: unknown URL scheme"),
        (["status", "--settings", "none.toml"], "none.toml: cannot be read"),
        (
            ["status", "--settings", "wrong.toml"],
            "wrong.toml: polling.posts_per_page: must be between 1 and 100, not 500",
        ),
        (["show", "who.test"], "unknown account who.test; `perdure feeds list` lists the known accounts"),
        (["poll", "who.test"], "unknown account who.test"),
        (["suspend", "not a name"], "invalid account 'not a name'; use a handle such as"),
        (["items", "--since", "soon"], "invalid time 'soon'; use 24h, 7d, 2026-11-01"),
        (["links", "--since", "2999-01-01"], "'2999-01-01' must be in the past"),
        (["backfill", "who.test", "--since", "x"], "invalid time 'x'"),
        (["audit"], "give either an account or --all"),
        (["audit", "who.test", "--all"], "give either an account or --all"),
    ],
)
async def test_a_mistake_is_reported_in_one_line(
    place: FeedsFolder, arguments: list[str], message: str
) -> None:
    async with place.store():
        pass
    place.folder.joinpath("wrong.toml").write_text("[polling]\nposts_per_page = 500\n", encoding="utf-8")
    ended = await place.feeds(*arguments, code=2)
    assert ended.err.startswith("perdure: ")
    assert ended.err.count("\n") == 1, ended.err
    assert message in ended.err
    assert ended.out == ""


async def test_a_storage_that_does_not_answer_is_worth_another_try(place: FeedsFolder) -> None:
    ended = await place.feeds("once", "--url", "redis://127.0.0.1:1/0", code=1)
    assert ended.err.startswith("perdure: 127.0.0.1:1: cannot be reached")
    assert ended.err.endswith("; check the host and port of the storage, or try again later\n")
    assert ended.err.count("\n") == 1, ended.err


async def test_two_settings_files_in_a_folder_are_one_too_many(place: FeedsFolder) -> None:
    place.folder.joinpath("feeds.yml").write_text("{}", encoding="utf-8")
    ended = await place.feeds("status", code=2)
    assert "several settings files exist: feeds.toml, feeds.yml; keep only one, or" in ended.err
    async with place.store():
        await place.feeds("status", "--settings", "feeds.yml", "--url", place.url)


async def test_a_source_that_does_not_answer_is_reported_in_one_line(place: FeedsFolder) -> None:
    place.fake.fail(Fault(how="refused", times=None))
    ended = await place.feeds("add", "alice.test", code=1)
    assert ended.err == "perdure: HTTP 503: UpstreamFailure Upstream failure; try again later\n"
