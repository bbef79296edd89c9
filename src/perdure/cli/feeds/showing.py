"""Polls as they happen: a live display for people, plain lines for files, JSON lines for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ...feeds import CycleStats, PolledElsewhere, PollOutcome, RateLimiter
from ...feeds.health import Alarm, AlarmState
from ...operating.times import format_clock
from ...storage import Micros
from ..output import one_line, plural, print_message, print_result, stderr
from .telling import event_of, lines_of, tell_json

_COLOURS = {
    "[INITIAL]": "cyan",
    "[POLL]": "green",
    "[SKIP]": "yellow",
    "[ERROR]": "red",
    "ALARM:": "bold red",
    "warning:": "yellow",
}
SLOW_CYCLE = 30.0
"""Seconds after which a cycle is slow; for many accounts, so many for each."""
SLOW_ACCOUNT = 0.1


class Lines:
    """A line for each poll that has something to say."""

    def __init__(self, budget: RateLimiter) -> None:
        self.cycle = CycleStats()
        self.total: int | None = None
        """Accounts that are there to be polled."""
        self.idle_until: Micros | None = None
        """When the next of them is due."""
        self._budget = budget
        self._seen: set[str] = set()
        self._began = time.monotonic()

    @property
    def accounts(self) -> int:
        """Of how many accounts there was something to tell."""
        return len(self._seen)

    def tell(self, outcome: PollOutcome) -> None:
        self.cycle.add(outcome)
        if not isinstance(outcome, PolledElsewhere):
            self._seen.add(outcome.account.account_id)
        self._outcome(outcome)

    def _outcome(self, outcome: PollOutcome) -> None:
        for line in lines_of(outcome):
            self.show(line)

    def show(self, line: str) -> None:
        """Print a result."""
        print_result(line)

    def say(self, line: str) -> None:
        """Print a diagnostic."""
        print_message(line)

    def waits(self, reason: str, until: Micros) -> None:
        """Report a long wait."""
        self.say(f"waiting until {format_clock(until)}: {one_line(reason)}")

    def alarm(self, alarm: Alarm, state: AlarmState) -> None:
        """Report an alarm while the polls run."""
        self.say(f"{'ALARM' if state == 'raised' else 'alarm cleared'}: {one_line(alarm.message)}")

    @property
    def is_slow(self) -> bool:
        """Whether a cycle took much longer than it should."""
        return time.monotonic() - self._began > max(SLOW_CYCLE, SLOW_ACCOUNT * self.accounts)

    def warn_of_slowness(self) -> None:
        """Warn if the cycle was slow. The reasons are a slow source, its rate limit, or very many posts."""
        if self.is_slow:
            took = time.monotonic() - self._began
            self.say(f"warning: slow cycle, {took:.0f} s for {plural(self.accounts, 'account')}")

    def end(self, alarms: Sequence[Alarm]) -> None:
        self.show(self._summary())
        for alarm in alarms:
            self.alarm(alarm, "raised")

    def _summary(self) -> str:
        cycle = self.cycle
        took = time.monotonic() - self._began
        parts = [
            f"{plural(cycle.polled, 'poll')} of {plural(self.accounts, 'account')}",
            f"{cycle.with_new_items} with new posts, {cycle.initial} polled for the first time",
            f"{plural(cycle.new_items, 'new post')}, {plural(cycle.new_links, 'URL')}",
            *([f"{cycle.skipped} skipped"] if cycle.skipped else []),
            *([f"{cycle.failed} failed"] if cycle.failed else []),
            *([f"{cycle.invalid_records} records set aside"] if cycle.invalid_records else []),
            *([f"{cycle.elsewhere} not polled, because another poller has them"] if cycle.elsewhere else []),
            f"{plural(self._budget.request_count, 'request')} in {took:.1f} s",
        ]
        return "; ".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class JsonLines(Lines):
    """An event on each line of standard output; polls that brought nothing are events too."""

    def _outcome(self, outcome: PollOutcome) -> None:
        tell_json(event_of(outcome))

    def waits(self, reason: str, until: Micros) -> None:
        tell_json({"event": "wait", "reason": reason, "until": until})

    def alarm(self, alarm: Alarm, state: AlarmState) -> None:
        tell_json({"event": "alarm", "state": state, "alarm": alarm})

    def warn_of_slowness(self) -> None:
        """The last event says it."""

    def end(self, alarms: Sequence[Alarm]) -> None:
        figures = {name: getattr(self.cycle, name) for name in self.cycle.__struct_fields__}
        figures |= {"requests": self._budget.request_count, "is_slow": self.is_slow}
        tell_json({"event": "end", **figures, "alarms": alarms})


class LiveLines(Lines):
    """The same lines, and below them how far it is."""

    def __init__(self, budget: RateLimiter, screen: Console) -> None:
        super().__init__(budget)
        self._screen = screen
        self._spinner = Spinner("dots")
        self._live = Live(
            get_renderable=self._shown,
            console=screen,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=False,  # a file, or the same terminal: then lines are printed above the display
        )

    def show(self, line: str) -> None:
        if not sys.stdout.isatty():
            print_result(line)
            return
        label, _, _ = line.partition(" ")
        text = Text(line)
        text.stylize(_COLOURS.get(label, ""), 0, len(label))
        self._screen.print(text, soft_wrap=True)

    def _shown(self) -> RenderableType:
        row = Table.grid(padding=(0, 1))
        figures = Text(" · ".join(self._figures()), no_wrap=True, overflow="ellipsis")
        row.add_row(self._spinner, *self._bar(), figures)
        return row

    def _bar(self) -> list[RenderableType]:
        """Until everybody had a turn."""
        if self.total is None or self.accounts >= self.total:
            return []
        return [ProgressBar(total=self.total, completed=self.accounts, width=16)]

    def _figures(self) -> list[str]:
        budget = self._budget
        left = budget.remaining
        figures = [
            f"{self.accounts}/{'?' if self.total is None else self.total} accounts",
            f"{self.cycle.new_items} new",
            f"{budget.request_count} requests" if left is None else f"{max(left, 0)} requests left",
        ]
        if (until := self.waits_until()) is not None:
            figures.append(f"waiting until {format_clock(until)}")
        return figures

    def waits_until(self) -> Micros | None:
        """For the source, or for the next account whose time comes."""
        now = self._budget.clock()
        times = (self._budget.paused_until, self.idle_until)
        return next((each for each in times if each is not None and each > now), None)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def shown(budget: RateLimiter, *, json: bool) -> Lines:
    """As it suits who looks at it."""
    if json:
        return JsonLines(budget)
    can_move = stderr.is_terminal and not stderr.is_dumb_terminal
    return LiveLines(budget, stderr) if can_move else Lines(budget)
