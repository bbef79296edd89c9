"""Shows the progress of polls as a live display (in a terminal), as lines of text or as JSON events."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import anyio
from msgspec.structs import asdict
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ...feeds import CycleStats, Feeds, PolledElsewhere, PollOutcome, RateLimiter
from ...feeds.alarms import Alarm, AlarmState
from ...operating.times import format_clock, iso
from ...runtime.background import run_in_background
from ...storage import Micros
from ...storage.errors import StorageError
from ..output import one_line, plural, print_json, print_message, print_result, stderr
from ..signals import run_until_signal
from . import render

REFRESH_SECONDS = 1.0
SLOW_CYCLE_SECONDS = 30.0
SLOW_ACCOUNT_SECONDS = 0.1
"""A warning says that polling was slow if it took more than `SLOW_CYCLE_SECONDS` in total, and more than
`SLOW_ACCOUNT_SECONDS` per account.
"""
STOPPING = (
    "releasing accounts",
    "Accounts that were being polled cannot be polled again for up to a minute.",
)
"""The messages to print when the first and the second stop signal arrive."""
_COLOURS = {"[INITIAL]": "cyan", "[POLL]": "green", "[SKIP]": "yellow", "[ERROR]": "red"}


async def run(feeds: Feeds, *, json: bool) -> None:
    """Poll accounts, and report each poll, until a signal stops the process."""
    log = PollLog(feeds.rate_limiter, json=json)
    source = await feeds.source()
    log.message(f"Polling {source.name} into {feeds.store.storage.name}. Press Ctrl+C to stop.")
    await log.count_accounts(feeds)
    with log.live():
        async with run_in_background(_refresh(log, feeds)):
            await run_until_signal(feeds.run(on_outcome=log.outcome, on_alarm=log.alarm), *STOPPING)
    log.end((await feeds.status()).summary.alarms)


async def run_once(feeds: Feeds, *, json: bool) -> bool:
    """Poll each account once. Return False if a signal stopped the polls before all accounts were polled.

    Also return False if there were accounts to poll but no poll succeeded. Otherwise, return True.
    """
    log = PollLog(feeds.rate_limiter, json=json)
    await log.count_accounts(feeds)
    with log.live():
        cycle = await run_until_signal(feeds.run_once(on_outcome=log.outcome), *STOPPING)
    if log.is_slow:
        log.message(f"warning: polling was slow: {log.seconds:.0f} s for {plural(log.accounts, 'account')}")
    log.end((await feeds.status()).summary.alarms)
    return cycle is not None and (cycle.polled > 0 or not log.total)


async def _refresh(log: PollLog, feeds: Feeds) -> None:
    """Once a second, update the number of accounts and the time of the next poll in the display."""
    while True:
        with suppress(StorageError):  # the polls report the error
            schedule = await feeds.schedule()
            log.total, log.idle_until = schedule.accounts, schedule.next_poll_at
        await anyio.sleep(REFRESH_SECONDS)


def print_wait(reason: str, until: Micros) -> None:
    print_message(f"waiting until {format_clock(until)}: {one_line(reason)}")


class PollLog:
    """Prints a line for each poll that found new items, failed or was skipped.

    With --json, an event is printed for every poll instead. In a terminal, a live progress display is shown
    below the lines.
    """

    def __init__(self, limiter: RateLimiter, *, json: bool) -> None:
        self.cycle = CycleStats()
        self.total = 0
        """Number of accounts to poll."""
        self.idle_until: Micros | None = None
        """The time at which the next account is due, or None if it is unknown."""
        self._limiter = limiter
        self._polled: set[str] = set()
        self._started = time.monotonic()
        self._spinner = Spinner("dots")
        self._json = json
        if json:
            limiter.on_wait = self._print_wait

    def live(self) -> AbstractContextManager[object]:
        """Show progress until the `with` block ends. With --json, or outside a terminal, show nothing."""
        if self._json or not stderr.is_interactive:
            return nullcontext()
        return Live(
            get_renderable=self._render,
            console=stderr,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=False,  # `_print` writes to a file, or prints above the display
        )

    @property
    def accounts(self) -> int:
        """Number of different accounts that have been polled so far."""
        return len(self._polled)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def is_slow(self) -> bool:
        return self.seconds > max(SLOW_CYCLE_SECONDS, SLOW_ACCOUNT_SECONDS * self.accounts)

    async def count_accounts(self, feeds: Feeds) -> None:
        self.total = len(await feeds.pollable_accounts())
        if not self.total:
            self.message(f"No accounts to poll. {render.ADD_ACCOUNT}")

    def outcome(self, outcome: PollOutcome) -> None:
        self.cycle.add(outcome)
        if not isinstance(outcome, PolledElsewhere):
            self._polled.add(outcome.account.account_id)
        if self._json:
            print_json(render.outcome_event(outcome))
        else:
            for line in render.outcome(outcome):
                self._print(line)

    def message(self, line: str) -> None:
        if not self._json:
            print_message(line)

    def alarm(self, alarm: Alarm, state: AlarmState) -> None:
        if self._json:
            print_json({"event": "alarm", "state": state, "alarm": alarm})
        else:
            print_message(f"{'ALARM' if state == 'raised' else 'alarm cleared'}: {one_line(alarm.message)}")

    def end(self, alarms: Sequence[Alarm]) -> None:
        """Print the totals for all polls, and the current alarms."""
        if self._json:
            counts = {"requests": self._limiter.request_count, "is_slow": self.is_slow}
            print_json({"event": "end", **asdict(self.cycle), **counts, "alarms": alarms})
            return
        cycle = self.cycle
        optional = (
            (cycle.skipped, "skipped"),
            (cycle.failed, "failed"),
            (cycle.invalid_records, "invalid record" if cycle.invalid_records == 1 else "invalid records"),
            (cycle.elsewhere, "leased by other pollers"),
        )
        parts = [
            f"{plural(cycle.polled, 'poll')} of {plural(self.accounts, 'account')}",
            f"{cycle.with_new_items} with new posts, {cycle.initial} polled for the first time",
            f"{plural(cycle.new_items, 'new post')}, {plural(cycle.new_links, 'URL')}",
            *(f"{count} {what}" for count, what in optional if count),
            f"{plural(self._limiter.request_count, 'request')} in {self.seconds:.1f} s",
        ]
        self._print("; ".join(parts))
        for alarm in alarms:
            self.alarm(alarm, "raised")

    def _print_wait(self, reason: str, until: Micros) -> None:
        print_json({"event": "wait", "reason": reason, "until": iso(until)})

    def _print(self, line: str) -> None:
        if not (stderr.is_interactive and sys.stdout.isatty()):
            print_result(line)
            return
        label, _, _ = line.partition(" ")
        text = Text(line)
        text.stylize(_COLOURS.get(label, ""), 0, len(label))
        stderr.print(text, soft_wrap=True)

    def _render(self) -> Table:
        limiter, left, now = self._limiter, self._limiter.remaining, self._limiter.clock()
        counts = [
            f"{self.accounts}/{plural(self.total, 'account')}",
            f"{self.cycle.new_items} new",
            plural(limiter.request_count, "request")
            if left is None
            else f"{plural(max(left, 0), 'request')} left",
        ]
        waits = [each for each in (limiter.paused_until, self.idle_until) if each is not None and each > now]
        if waits:
            counts.append(f"waiting until {format_clock(waits[0])}")
        is_complete = self.accounts >= self.total
        bar = [] if is_complete else [ProgressBar(total=self.total, completed=self.accounts, width=16)]
        row = Table.grid(padding=(0, 1))
        row.add_row(self._spinner, *bar, Text(" · ".join(counts), no_wrap=True, overflow="ellipsis"))
        return row
