"""`perdure feeds status | list | show | items | links`: how accounts are shown, and what was found."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from perdure.feeds import Gap
from perdure.feeds.item import ITEMS
from perdure.storage import Committed
from perdure.storage.time_types import HOUR, MINUTE

from ..markers import row
from .feeds_folder import FeedsFolder, now
from .test_feeds_commands import place

__all__ = ["place"]
pytestmark = pytest.mark.anyio


@row(130)
async def test_a_poller_that_died_is_an_alarm_in_every_form_of_the_status(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 1)
    await place.added(alice)
    await place.polled()
    assert (await place.json("status", "--check"))["summary"]["alarms"] == []
    week = 7 * 24 * HOUR
    async with place.store() as store:
        await store.update(
            alice,
            lambda account: replace(account, last_polled_at=now() - week, next_poll_at=now() - week + HOUR),
        )
    ended = await place.feeds("status", "--check", code=1)
    assert "ALARM: 1 of 1 account (alice.test) is overdue (earliest due time: " in ended.out
    (alarm,) = (await place.json("status", "--check", code=1))["summary"]["alarms"]
    assert (alarm["kind"], alarm["count"], alarm["handles"]) == ("late", 1, ["alice.test"])


@row(130)
async def test_one_damaged_item_breaks_no_command(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 3)
    place.world.publish(alice, "https://news.test/a")
    await place.added(alice)
    await place.polled()
    async with place.store() as store:
        storage = store.storage
        (record, *_) = await storage.page(ITEMS, alice, limit=1, now=now())
        damaged = record.replace_with(body='{"handle": 1}', tag=record.tag)
        assert isinstance(await storage.commit([damaged], now=now()), Committed)
    assert len((await place.json("items"))["items"]) == 3
    assert [each["url"] for each in (await place.json("links"))["links"]] == ["https://news.test/a"]
    for command in ("status", "list", "once"):
        await place.feeds(command)
    await place.feeds("audit", "alice.test")


async def test_list_shows_the_accounts_that_a_filter_admits(place: FeedsFolder) -> None:
    alice, quiet, gone = place.person("alice.test", 3), place.person("quiet.test"), place.person("gone.test")
    await place.added(alice, quiet, gone)
    place.world.deactivate(gone)
    await place.polled()
    await place.added(new := place.person("new.test"))

    async def listed(*options: str) -> list[str]:
        return [each["account"] for each in (await place.json("list", *options))["accounts"]]

    assert (await listed())[0] == new  # never polled
    assert sorted(await listed("--without-watermark")) == sorted([new, quiet, gone])
    assert await listed("--status", "unavailable") == [gone]
    assert await listed("--polled-before", "1h") == [new]
    output = (await place.feeds("list", "--status", "unavailable")).out.splitlines()
    assert output[0].split() == ["account", "status", "last", "poll", "watermark", "note"]
    assert output[1].startswith("gone.test  unavailable")
    assert "No matching accounts." in (await place.feeds("list", "--status", "suspended")).err


async def test_status_summarizes_the_accounts(place: FeedsFolder) -> None:
    async with place.store():
        pass
    assert "No accounts yet. Add one with `perdure feeds add HANDLE`" in (await place.feeds("status")).out
    alice, quiet = place.person("alice.test", 3), place.person("quiet.test")
    gone = place.person("gone.test")
    await place.added(alice, quiet, gone)
    place.world.deactivate(gone)
    await place.polled()
    output = re.sub(r" +", " ", (await place.feeds("status", "--check")).out)
    for line in (
        "accounts 3: 2 active, 1 unavailable, 0 suspended\n",
        "with watermark 1 (33%)\n",
        "with gaps 0\n",
        "posts fetched 3 posts\n",
        "failing 1\n gone.test: 1 failure, unavailable: Profile not found",
    ):
        assert line in output
    assert re.search(r"last polled \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(\d+ s ago\)\n", output)
    document = await place.json("status")
    assert (document["summary"]["with_watermark"], document["summary"]["alarms"], document["items"]) == (
        1,
        [],
        3,
    )
    assert [each["handle"] for each in document["failing"]] == ["gone.test"]


async def test_status_check_fails_on_an_alarm(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 1)
    await place.added(alice)
    async with place.store() as store:
        await store.update(
            alice,
            lambda account: replace(account, poll_count=5, unseen_posts=7, unseen_since=1, unseen_polls=5),
        )
    assert (
        "ALARM: 1 account (alice.test) is missing posts: profiles count 7"
        in (await place.feeds("status")).out
    )
    assert "ALARM" in (await place.feeds("status", "--check", code=1)).out


async def test_show_prints_everything_about_an_account(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 3)
    await place.added(alice)
    await place.polled()
    gap = Gap(cursor="somewhere", floor=now() - HOUR, late_floor=now() - HOUR)
    async with place.store() as store:
        await store.update(alice, lambda account: replace(account, gaps=(gap,), reason="why not"))
    output = re.sub(r" +", " ", (await place.feeds("show", "alice.test")).out)
    for line in (
        f"account {alice}\nhandle alice.test\nstatus active: why not\n",
        "items stored 3 items\n",
        "gaps 1\n from cursor somewhere back to ",
        "(1 h",
    ):
        assert line in output
    shown = (await place.json("show", alice))["account"]
    assert (
        shown["posts_fetched_count"],
        shown["consecutive_failures"],
        shown["poll_interval_seconds"],
    ) == (
        3,
        0,
        900,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", shown["watermark"])


async def test_items_are_those_of_a_time_a_kind_and_an_account(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test", 3, every=10 * HOUR), place.person("bob.test", 1)
    place.world.repost(bob, next(iter(place.world.everything_of(alice))))
    await place.added(alice, bob)
    await place.polled()

    async def items(*options: str) -> list[str]:
        document = await place.json("items", *options)
        return sorted(f"{each['account_handle']} {each['item']['kind']}" for each in document["items"])

    assert await items() == ["alice.test post"] * 3 + ["bob.test post", "bob.test repost"]
    assert await items("alice.test", "--since", "15h") == ["alice.test post"] * 2
    assert await items("--kind", "repost") == ["bob.test repost"]
    assert len(await items("alice.test", "--limit", "2")) == 2
    output = (await place.feeds("items", "--kind", "repost")).out
    assert "  bob.test (repost from alice.test): alice.test 2" in output


async def test_items_of_one_time_are_not_torn_apart(place: FeedsFolder) -> None:
    """Else the next page, which has what is older, would leave some out."""
    alice, time = place.person("alice.test", 1), now() - 30 * HOUR
    for number in range(3):
        place.world.publish(alice, f"same {number}", at=time)
    await place.added(alice)
    await place.polled()
    assert len((await place.json("items", "--since", "7d", "--limit", "2"))["items"]) == 4
    older = (await place.json("items", "--before", "2h"))["items"]  # all of them, not those of a day
    assert len(older) == 3
    ended = await place.feeds("items", "--since", "1h", "--before", "2h", code=2)
    assert "--before must be later than --since" in ended.err


async def test_items_are_paged_by_time_and_those_without_links_left_out(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 5)
    shared = "https://news.test/a/?utm_source=x"
    place.world.publish(alice, f"see {shared}", at=now() - HOUR)
    await place.added(alice)
    await place.polled()
    seen: list[str] = []
    before: list[str] = []
    while page := (await place.json("items", "--limit", "4", *before))["items"]:
        seen += [each["item"]["uri"] for each in page]
        before = ["--before", page[-1]["item"]["time"]]
    assert (len(seen), len({*seen})) == (6, 6)
    (found,) = (await place.json("items", "--with-links"))["items"]
    (link,) = found["item"]["links"]
    assert (link["url"], link["shared_url"]) == ("https://news.test/a", shared)
    assert f"  {shared}\n" in (await place.feeds("items", "--with-links")).out
    assert "--before 20" in (await place.feeds("items", "--limit", "1")).err


async def test_what_others_wrote_does_nothing_to_a_terminal(place: FeedsFolder) -> None:
    alice = place.world.account("alice.test")
    place.world.publish(alice, "one\n\x1b[31mtwo\x07 \u202ethree\r :tada: [bold]")
    await place.added(alice)
    await place.polled()
    output = (await place.feeds("items")).out
    assert output.endswith("  alice.test: one [31mtwo three :tada: [bold]\n")


async def test_links_are_ranked_by_how_many_accounts_shared_them(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test"), place.person("bob.test")
    card = {
        "$type": "app.bsky.embed.external",
        "external": {"uri": "https://News.test/a/?utm_source=x", "title": "The news", "description": ""},
    }
    for minutes in (1, 2, 3):
        place.world.publish(alice, "https://often.test", at=now() - minutes * MINUTE)
    place.world.publish(alice, "look", embed=card, at=now() - 9 * MINUTE)
    place.world.publish(bob, "https://news.test/a")
    await place.added(alice, bob)
    await place.polled()
    output = (await place.feeds("links", "--limit", "2")).out
    address = "https://News.test/a/?utm_source=x"
    first = (
        f"   2  The news\n      {address}\n      alice.test, bob.test\n      first shared {{}} by alice.test"
    )
    second = "   1  https://often.test\n      alice.test\n      first shared {} by alice.test"
    trend = "; shared by {} in the last 24 hours, and by 0 in the 24 hours before that\n"
    times = re.findall(r"first shared (\S+ \S+) by", output)
    assert output == (first + trend + second + trend).format(times[0], "2 accounts", times[1], "1 account")
    (ranked, _) = (await place.json("links"))["links"]
    assert (ranked["url"], ranked["shared_url"]) == ("https://news.test/a", address)
    assert (ranked["today"], ranked["day_before"], ranked["handles"][0]) == (2, 0, "alice.test")
    document = (await place.json("links", "--since", "8m"))["links"]
    assert [(each["url"], each["sharers"]) for each in document] == [
        ("https://news.test/a", 1),
        ("https://often.test", 1),
    ]
