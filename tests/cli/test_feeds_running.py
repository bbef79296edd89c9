"""`perdure feeds run | once | poll`: what they say while they poll, and how they end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import sqlite3
import struct
import termios
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from perdure.feeds import AccountStatus
from perdure.feeds.account import Lease
from perdure.storage.time_types import HOUR

from ..conditions import wait_until
from ..feeds.fake_server import Fault
from ..fork_server import spawn
from .command import TIMEOUT, result_of
from .feeds_folder import FeedsFolder, environment, feeds_folder, now

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
async def place(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[FeedsFolder]:
    async with feeds_folder(tmp_path) as made:
        yield made


# once


async def test_once_says_what_is_new_and_nothing_of_who_has_no_news(place: FeedsFolder) -> None:
    place.write_settings(posts_per_page=10)
    alice, bob, quiet = (
        place.person("alice.test", 5),
        place.person("bob.test", 25),
        place.person("quiet.test"),
    )
    await place.added(alice, bob, quiet)
    output = (await place.feeds("once")).out.splitlines()
    assert sorted(output[:3]) == [
        "[INITIAL] alice.test: 5 posts, 0 URLs across 1 pages",
        "[INITIAL] bob.test: 25 posts, 0 URLs across 3 pages",
        "[INITIAL] quiet.test: 0 posts, 0 URLs across 1 pages",
    ]
    assert re.fullmatch(
        r"3 polls of 3 accounts; 2 with new posts, 3 polled for the first time; 30 new posts, 0 URLs; "
        r"5 requests in [\d.]+ s",
        output[3],
    )
    output = (await place.feeds("once")).out.splitlines()
    assert len(output) == 1
    assert output[0].startswith(
        "3 polls of 3 accounts; 0 with new posts, 0 polled for the first time; 0 new posts, "
    )
    for number in range(12):
        place.world.publish(alice, f"https://news.test/{number}")
    output = (await place.feeds("once")).out.splitlines()
    assert output[:2] == [
        "[POLL] alice.test: High volume, 2 pages were fetched",
        "[POLL] alice.test: 12 posts, 12 URLs across 2 pages",
    ]


async def test_once_prints_a_json_event_for_each_account_and_a_summary(place: FeedsFolder) -> None:
    alice, gone = place.person("alice.test", 2), place.person("gone.test")
    place.world.deactivate(gone)
    await place.added(alice, gone)
    ended = await place.feeds("once", "--json")
    *polls, end = ended.events
    assert ended.err == ""
    outcomes = {each["event"]: (each["account"], each.get("new_items"), each.get("reason")) for each in polls}
    assert outcomes == {
        "initial": (alice, 2, None),
        "skip": (gone, None, "Profile not found (400 InvalidRequest)"),
    }
    assert (end["event"], end["polled"], end["skipped"], end["new_items"], end["alarms"]) == (
        "end",
        1,
        1,
        2,
        [],
    )


async def test_once_reads_the_profiles_before_it_polls(place: FeedsFolder) -> None:
    """So a new handle is shown, and the alarm does not miss posts that this cycle finds."""
    alice = place.person("alice.test", 2)
    await place.added(alice)
    await place.polled()
    async with place.store() as store:
        await store.update(alice, lambda account: replace(account, profile_posts=2, profile_read_at=1))
    place.world.publish(alice, "news")
    place.world.rename(alice, "alison.test")
    assert "[POLL] alison.test: 1 posts, 0 URLs across 1 pages" in (await place.feeds("once")).out
    account = await place.account(alice)
    assert (account.profile_posts, account.unseen_posts) == (3, 0)


async def test_an_account_that_fails_does_not_fail_the_others(place: FeedsFolder) -> None:
    alice, bob, gone = place.person("alice.test", 1), place.person("bob.test", 1), place.person("gone.test")
    place.world.deactivate(gone)
    await place.added(alice, bob, gone)
    place.fake.fail(Fault(how="refused", times=None, actor=bob))
    output = (await place.feeds("once")).out
    assert "[INITIAL] alice.test: 1 posts" in output
    assert "[SKIP] gone.test: Account unavailable (Profile not found (400 InvalidRequest))\n" in output
    assert "[ERROR] bob.test: HTTP 503: UpstreamFailure Upstream failure\n" in output
    assert "; 1 skipped; 1 failed; " in output


async def test_once_fails_when_every_account_does(place: FeedsFolder) -> None:
    async with place.store():
        pass
    assert "No accounts to poll. Add one with" in (await place.feeds("once")).err
    await place.added(place.person("alice.test", 1), place.person("bob.test", 1))
    place.fake.fail(Fault(how="refused", times=None))
    assert (await place.feeds("once", code=1)).out.count("[ERROR]") == 2


async def test_an_invalid_record_is_reported(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 3)
    place.world.spoil(next(iter(place.world.everything_of(alice))))
    await place.added(alice)
    output = (await place.feeds("once")).out
    assert "[POLL] alice.test: 1 invalid record skipped" in output


async def test_waiting_for_the_source_is_reported(place: FeedsFolder) -> None:
    await place.added(*(place.person(f"user{number}.test") for number in range(6)))
    output = (await asking_at_once(place, 6, place.feeds("once"))).err
    assert re.search(
        r"^waiting until \d\d:\d\d:\d\d UTC: the source received too many requests$", output, re.MULTILINE
    )
    events = (await asking_at_once(place, 6, place.feeds("once", "--json"))).events
    assert "wait" in {each["event"] for each in events}


async def asking_at_once(place: FeedsFolder, count: int, polling: Coroutine[None, None, T]) -> T:
    """Polls of which so many ask the source at the same time, which is one more than it allows for now."""
    place.fake.limit.set(count - 1, seconds=2)
    place.fake.gate.clear()
    task = asyncio.create_task(polling)
    await wait_until(lambda: place.fake.in_flight == count, TIMEOUT)
    place.fake.gate.set()
    return await task


async def test_accounts_of_another_poller_are_left_to_it(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test", 1), place.person("bob.test", 1)
    await place.added(alice, bob)
    async with place.store() as store:
        hold = Lease("another", now() + HOUR)
        await store.update(alice, lambda account: replace(account, lease=hold))
    output = (await place.feeds("once")).out
    assert "[SKIP] alice.test: already being polled by another, lease until " in output
    assert "; 1 leased by other pollers; " in output
    ended = await place.feeds("poll", "alice.test", code=1)
    assert ended.err == "perdure: alice.test is already being polled by another; try again later\n"
    assert "next poll        in progress (another)" in (await place.feeds("show", "alice.test")).out


async def test_once_right_after_a_kill_says_who_was_not_polled_and_fails(place: FeedsFolder) -> None:
    """A job that polls no account has not succeeded."""
    alice = place.person("alice.test", 1)
    await place.added(alice)
    place.fake.gate.clear()
    killed = await place.start("once")
    await wait_until(lambda: place.fake.in_flight > 0, TIMEOUT)
    killed.kill()
    await killed.wait()
    place.fake.gate.set()
    ended = await place.feeds("once", code=1)
    assert re.search(r"\[SKIP\] alice\.test: already being polled by \S+, lease until", ended.out)
    *_, skipped, end = (await place.feeds("once", "--json", code=1)).events
    assert (skipped["event"], skipped["account"], end["elsewhere"]) == ("elsewhere", alice, 1)


@pytest.mark.parametrize(
    "arguments",
    [("add", "bob.test"), ("poll", "alice.test"), ("audit", "alice.test"), ("follow-list", "alice.test")],
)
async def test_every_command_says_what_it_waits_for_and_until_when(
    place: FeedsFolder, arguments: tuple[str, ...]
) -> None:
    alice, bob = place.person("alice.test", 1), place.person("bob.test")
    place.world.follow(alice, bob)
    await place.added(alice)
    place.fake.limit.set(0, seconds=2)
    process = await place.start(*arguments)
    output = await printed_by(process.stderr, "waiting until")
    assert re.search(r"waiting until \d\d:\d\d:\d\d UTC: the source received too many requests", output)
    place.fake.limit.set(None)
    assert await asyncio.wait_for(process.wait(), TIMEOUT) == 0


async def test_a_login_is_kept_between_commands(place: FeedsFolder) -> None:
    alice, me = place.person("alice.test", 1), place.person("me.test")
    await place.added(alice)
    place.fake.sessions.passwords[me] = "right"
    place.write_settings(identifier="me.test")
    place.variables = {"PERDURE_BLUESKY_PASSWORD": "right"}
    for _ in range(3):
        await place.feeds("poll", "alice.test")
    assert len(place.fake.asked("com.atproto.server.createSession")) == 1


async def test_old_items_are_removed_by_a_cycle(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 5, every=24 * HOUR)
    await place.added(alice)
    await place.polled()
    assert len(await place.items(alice)) == 5
    place.write_settings(retention_days=3)
    await place.feeds("once")
    assert [item.text for item in await place.items(alice)] == [f"alice.test {each}" for each in range(3)]
    assert " 0 new posts" in (await place.feeds("once")).out  # and are not stored again


# poll


async def test_poll_fails_for_an_account_that_is_unavailable(place: FeedsFolder) -> None:
    alice = place.person("alice.test", 1)
    await place.added(alice)
    assert "[INITIAL] alice.test: 1 posts" in (await place.feeds("poll", "alice.test")).out
    assert "[POLL] alice.test: 0 posts, 0 URLs" in (await place.feeds("poll", "@alice.test")).out
    place.world.deactivate(alice)
    event = await place.json("poll", alice, code=1)
    assert (event["event"], event["handle"]) == ("skip", "alice.test")
    assert (await place.account(alice)).status is AccountStatus.UNAVAILABLE


# Credentials


@pytest.mark.parametrize("command", ["once", "run"])
async def test_wrong_credentials_end_everything_at_once(place: FeedsFolder, command: str) -> None:
    alice, me = place.person("alice.test", 1), place.person("me.test")
    await place.added(alice)
    place.fake.sessions.passwords[me] = "right"
    place.write_settings(identifier="me.test")
    ended = await place.feeds(command, code=2)
    assert "bluesky.identifier: me.test needs a password; set PERDURE_BLUESKY_PASSWORD" in ended.err
    place.variables = {"PERDURE_BLUESKY_PASSWORD": "wrong"}
    output = (await place.feeds(command, code=2)).err.splitlines()[-1]
    assert "as me.test failed: Invalid identifier or password" in output
    assert output.endswith("; check bluesky.identifier in the settings, and its app password")
    assert (await place.account(alice)).lease is None
    place.variables = {"PERDURE_BLUESKY_PASSWORD": "right"}
    assert "[INITIAL] alice.test: 1 posts" in (await place.feeds("poll", "alice.test")).out


# run


async def printed_by(stream: asyncio.StreamReader | None, words: str) -> str:
    """Everything that a process prints there, up to a line with these words."""
    assert stream is not None
    output = ""
    while words not in output:
        line = (await asyncio.wait_for(stream.readline(), TIMEOUT)).decode()
        assert line, f"it ended, and said only: {output}"
        output += line
    return output


async def test_run_polls_new_accounts_and_those_with_news_until_it_is_stopped(place: FeedsFolder) -> None:
    alice, bob = place.person("alice.test", 1), place.person("bob.test", 2)
    await place.added(alice)
    process = await place.start("run")
    await printed_by(process.stdout, "[INITIAL] alice.test: 1 posts")
    await place.added(bob)
    await printed_by(process.stdout, "[INITIAL] bob.test: 2 posts")
    place.world.publish(alice, "news")
    async with place.store() as store:
        await store.update(alice, lambda account: replace(account, next_poll_at=now()))
    await printed_by(process.stdout, "[POLL] alice.test: 1 posts, 0 URLs across 1 pages")
    process.send_signal(signal.SIGTERM)
    end = await result_of(process)
    assert end.code == 0
    assert "3 polls of 2 accounts; 3 with new posts, 2 polled for the first time; 4 new posts" in end.out


async def until_asked(place: FeedsFolder, count: int) -> None:
    """Until so many feeds have been asked for."""
    await wait_until(lambda: len(place.fake.asked()) >= count, TIMEOUT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("command", "code"), [("run", 0), ("once", 1)])
async def test_a_signal_ends_polls_in_good_order(
    place: FeedsFolder, command: str, code: int, number: signal.Signals
) -> None:
    """Every account that was being polled can be polled by another process at once."""
    await place.added(*(place.person(f"user{each}.test", 3) for each in range(60)))
    place.fake.gate.clear()
    process = await place.start(command)
    await wait_until(lambda: place.fake.in_flight >= 10, TIMEOUT)
    process.send_signal(number)
    assert (await result_of(process)).code == code
    assert len(place.fake.asked()) < 60
    assert [each.handle for each in await place.accounts() if each.lease is not None] == []


async def test_a_second_signal_stops_it_dead(place: FeedsFolder) -> None:
    """The first signal has no effect here: the file is locked, so no lease can be released."""
    await place.added(*(place.person(f"user{each}.test", 3) for each in range(30)))
    place.fake.latency = 0.3
    process = await place.start("run")
    await until_asked(place, 3)
    file = sqlite3.connect(place.folder / "feeds.db", timeout=TIMEOUT, isolation_level=None)
    file.execute("BEGIN IMMEDIATE")
    process.send_signal(signal.SIGTERM)
    await printed_by(
        process.stderr,
        "SIGTERM: releasing accounts; send the signal again to stop immediately.",
    )
    process.send_signal(signal.SIGTERM)
    end = await result_of(process)
    file.close()
    assert end.code == 128 + signal.SIGTERM
    assert "Killed." in end.err


# The live display


class Terminal:
    """A command in a terminal of its own, 100 letters wide."""

    def __init__(self) -> None:
        self.seen = ""
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))

    async def run(self, place: FeedsFolder, *arguments: str, out: int | None = None) -> int:
        """The exit code. Standard output goes to the terminal too, or to the file `out`."""
        process = await spawn(
            *("-m", "perdure.cli", "feeds", *arguments),
            cwd=place.folder,
            env={**environment(), "TERM": "xterm-256color"},
            stdin=self._theirs,
            stdout=self._theirs if out is None else out,
            stderr=self._theirs,
        )
        os.close(self._theirs)
        await asyncio.wait_for(asyncio.to_thread(self._read), TIMEOUT)
        return await process.wait()

    def _read(self) -> None:
        """Read until the other end is closed, which is an error for a terminal."""
        try:
            while got := os.read(self._ours, 65536):
                self.seen += got.decode(errors="replace")
        except OSError:
            os.close(self._ours)

    @property
    def text(self) -> str:
        """Without what colours it, and moves the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)


async def test_a_terminal_shows_how_far_a_cycle_is(place: FeedsFolder) -> None:
    await place.added(*(place.person(f"user{each}.test", 3) for each in range(12)))
    terminal = Terminal()
    assert await asking_at_once(place, 10, terminal.run(place, "once")) == 0
    for shown in (
        r"━ \d+/12 accounts · \d+ new · \d requests left · waiting until \d\d:\d\d:\d\d UTC\r",
        r"\[INITIAL\] user0.test: 3 posts, 0 URLs across 1 pages\r\n",
        r"\n?12 polls of 12 accounts; 12 with new posts, 12 polled .*; 1\d requests in [\d.]+ s\r\n$",
    ):
        assert re.search(shown, terminal.text), terminal.text
    assert "\x1b[36m[INITIAL]\x1b[0m user0.test" in terminal.seen
    assert terminal.seen.count("\x1b[?25l") == terminal.seen.count("\x1b[?25h") == 1  # the cursor is back


async def test_a_file_gets_the_polls_while_a_terminal_shows_how_far_a_cycle_is(place: FeedsFolder) -> None:
    await place.added(*(place.person(f"user{each}.test", 3) for each in range(12)))
    terminal, file = Terminal(), place.folder / "polls.txt"
    with file.open("wb") as out:
        assert await asking_at_once(place, 10, terminal.run(place, "once", out=out.fileno())) == 0
    lines = file.read_text().splitlines()
    assert sorted(lines[:-1]) == sorted(
        f"[INITIAL] user{each}.test: 3 posts, 0 URLs across 1 pages" for each in range(12)
    )
    assert lines[-1].startswith("12 polls of 12 accounts; 12 with new posts")
    assert re.search(r"━ \d+/12 accounts", terminal.text), terminal.text
    assert "[INITIAL]" not in terminal.text
