"""The display of running polls: live in a terminal, plain lines in files, JSON events for programs."""

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
from ...storage import Micros
from ...storage.errors import StorageError
from ..output import is_interactive, one_line, plural, print_json, print_message, print_result, stderr
from ..signals import run_in_background, run_until_signal
from .render import ADD_ACCOUNT, outcome_event
from .render import outcome as outcome_lines

REFRESH_SECONDS = 1.0
SLOW_CYCLE_SECONDS = 30.0
SLOW_ACCOUNT_SECONDS = 0.1
"""A cycle is slow if it takes longer than this for each account, and longer than `SLOW_CYCLE_SECONDS`."""
STOPPING = ("releasing accounts", "Leased accounts are polled again within a minute.")
"""What is printed at the first signal to stop, and at the second."""
_COLOURS = {
    "[INITIAL]": "cyan",
    "[POLL]": "green",
    "[SKIP]": "yellow",
    "[ERROR]": "red",
    "ALARM:": "bold red",
    "warning:": "yellow",
}


async def run(feeds: Feeds, *, json: bool) -> None:
    """Poll until a signal stops the process, and show the polls."""
    log = poll_log(feeds.rate_limiter, json=json)
    feeds.rate_limiter.on_wait = log.rate_limited
    source = await feeds.source()
    log.message(f"Polling {source.name} into {feeds.store.storage.name}. Press Ctrl+C to stop.")
    if not await feeds.pollable_accounts():
        log.message(f"No accounts to poll. {ADD_ACCOUNT}")
    with log.display:
        async with run_in_background(_refresh(log, feeds)):
            await run_until_signal(feeds.run(on_outcome=log.outcome, on_alarm=log.alarm), *STOPPING)
    log.end((await feeds.status()).summary.alarms)


async def run_once(feeds: Feeds, *, json: bool) -> bool:
    """Poll every account once. Return whether an account was polled, or there is none."""
    log = poll_log(feeds.rate_limiter, json=json)
    feeds.rate_limiter.on_wait = log.rate_limited
    log.total = len(await feeds.pollable_accounts())
    if not log.total:
        log.message(f"No accounts to poll. {ADD_ACCOUNT}")
    with log.display:
        cycle = await run_until_signal(feeds.run_once(on_outcome=log.outcome), *STOPPING)
    log.warn_if_slow()
    log.end((await feeds.status()).summary.alarms)
    return cycle is not None and (cycle.polled > 0 or not log.total)


async def _refresh(log: PollLog, feeds: Feeds) -> None:
    """Keep the number of accounts and the time of the next poll up to date."""
    while True:
        with suppress(StorageError):  # the polls report it
            schedule = await feeds.schedule()
            log.total, log.idle_until = schedule.accounts, schedule.next_poll_at
        await anyio.sleep(REFRESH_SECONDS)


class PollLog:
    """Prints a line for each poll that found something or failed."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.cycle = CycleStats()
        self.total: int | None = None
        """How many accounts are polled."""
        self.idle_until: Micros | None = None
        """When the next account is due."""
        self.display: AbstractContextManager[object] = nullcontext()
        self._limiter = limiter
        self._polled: set[str] = set()
        self._started = time.monotonic()

    @property
    def accounts(self) -> int:
        """How many different accounts were polled."""
        return len(self._polled)

    def outcome(self, outcome: PollOutcome) -> None:
        self.cycle.add(outcome)
        if not isinstance(outcome, PolledElsewhere):
            self._polled.add(outcome.account.account_id)
        self._print_outcome(outcome)

    def _print_outcome(self, outcome: PollOutcome) -> None:
        for line in outcome_lines(outcome):
            self.result(line)

    def result(self, line: str) -> None:
        print_result(line)

    def message(self, line: str) -> None:
        print_message(line)

    def rate_limited(self, reason: str, until: Micros) -> None:
        """Report a long wait."""
        self.message(f"waiting until {format_clock(until)}: {one_line(reason)}")

    def alarm(self, alarm: Alarm, state: AlarmState) -> None:
        self.message(f"{'ALARM' if state == 'raised' else 'alarm cleared'}: {one_line(alarm.message)}")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def is_slow(self) -> bool:
        return self.seconds > max(SLOW_CYCLE_SECONDS, SLOW_ACCOUNT_SECONDS * self.accounts)

    def warn_if_slow(self) -> None:
        if self.is_slow:
            self.message(f"warning: slow cycle, {self.seconds:.0f} s for {plural(self.accounts, 'account')}")

    def end(self, alarms: Sequence[Alarm]) -> None:
        """Print the sum of all polls."""
        self.result(self._summary())
        for alarm in alarms:
            self.alarm(alarm, "raised")

    def _summary(self) -> str:
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
        return "; ".join(parts)


class JsonPollLog(PollLog):
    """Prints a JSON event for every poll, including those that found nothing."""

    def _print_outcome(self, outcome: PollOutcome) -> None:
        print_json(outcome_event(outcome))

    def message(self, line: str) -> None:
        """Print no text: the events have everything."""

    def rate_limited(self, reason: str, until: Micros) -> None:
        print_json({"event": "wait", "reason": reason, "until": iso(until)})

    def alarm(self, alarm: Alarm, state: AlarmState) -> None:
        print_json({"event": "alarm", "state": state, "alarm": alarm})

    def end(self, alarms: Sequence[Alarm]) -> None:
        counts = {"requests": self._limiter.request_count, "is_slow": self.is_slow}
        print_json({"event": "end", **asdict(self.cycle), **counts, "alarms": alarms})


class LivePollLog(PollLog):
    """Prints the lines of `PollLog`, and shows the progress below them."""

    def __init__(self, limiter: RateLimiter) -> None:
        super().__init__(limiter)
        self._spinner = Spinner("dots")
        self.display = Live(
            get_renderable=self._render,
            console=stderr,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=False,  # a file, or the same terminal: then lines are printed above the display
        )

    def result(self, line: str) -> None:
        if not sys.stdout.isatty():
            print_result(line)
            return
        label, _, _ = line.partition(" ")
        text = Text(line)
        text.stylize(_COLOURS.get(label, ""), 0, len(label))
        stderr.print(text, soft_wrap=True)

    def _render(self) -> Table:
        row = Table.grid(padding=(0, 1))
        counts = Text(" · ".join(self._counts()), no_wrap=True, overflow="ellipsis")
        is_complete = self.total is None or self.accounts >= self.total
        bar = [] if is_complete else [ProgressBar(total=self.total, completed=self.accounts, width=16)]
        row.add_row(self._spinner, *bar, counts)
        return row

    def _counts(self) -> list[str]:
        limiter, left = self._limiter, self._limiter.remaining
        counts = [
            f"{self.accounts}/{'?' if self.total is None else self.total} accounts",
            f"{self.cycle.new_items} new",
            f"{limiter.request_count} requests" if left is None else f"{max(left, 0)} requests left",
        ]
        now = limiter.clock()
        waits = [each for each in (limiter.paused_until, self.idle_until) if each is not None and each > now]
        if waits:
            counts.append(f"waiting until {format_clock(waits[0])}")
        return counts


def poll_log(limiter: RateLimiter, *, json: bool) -> PollLog:
    """Return the log that suits the output."""
    if json:
        return JsonPollLog(limiter)
    return LivePollLog(limiter) if is_interactive(stderr) else PollLog(limiter)
