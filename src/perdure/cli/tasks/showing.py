"""Tasks in a terminal: a table, still or live; elsewhere a line for each change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from msgspec.structs import replace
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...operating import TaskChanges, TaskSummary
from ...operating.times import format_clock, format_duration, iso
from ...storage import Micros
from ..output import one_line, print_json, print_result
from . import shapes
from .render import format_progress, task_line

ID_WIDTH = 12
"""Letters of an id that are shown where there is little room; they are enough to find it."""
_COLOURS = {
    "waiting": "dim",
    "working": "cyan",
    "cancelling": "yellow",
    "input required": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
}

stdout = Console(highlight=False, emoji=False)


def is_interactive() -> bool:
    return stdout.is_terminal and not stdout.is_dumb_terminal


def task_table(rows: Iterable[TaskSummary]) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=False)
    for name in ("id", "state", "name", "age"):
        shown.add_column(name, no_wrap=True)
    shown.add_column("progress", no_wrap=True, min_width=8)
    shown.add_column("owner", no_wrap=True)
    shown.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        shown.add_row(*_cells(row))
    return shown


def _cells(row: TaskSummary) -> tuple[RenderableType, ...]:
    return (
        Text(row.task_id[:ID_WIDTH]),
        Text(row.display_status, style=_COLOURS[row.display_status]),
        Text(one_line(row.name)),
        Text(format_duration(row.age)),
        _progress(row),
        Text(row.owner, style="dim"),
        Text(one_line(row.message or "")),
    )


def _progress(row: TaskSummary) -> RenderableType:
    if row.progress_fraction is None:
        return Text(format_progress(row))
    cell = Table.grid(padding=(0, 1))
    cell.add_row(
        ProgressBar(total=1.0, completed=row.progress_fraction, width=10), Text(format_progress(row))
    )
    return cell


class Lines:
    """A line for each row that changed. Of those that went there is nothing to say."""

    def tell(self, changes: TaskChanges, now: Micros) -> None:
        for row in changes.changed:
            print_result(f"{format_clock(now)}  {task_line(row)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class JsonLines(Lines):
    """An event on each line."""

    def tell(self, changes: TaskChanges, now: Micros) -> None:
        for event in shapes.changes(changes):
            print_json({"at": iso(now), **event})


class LiveTable(Lines):
    """The rows as they are, which grow older before one's eyes."""

    def __init__(self, clock: Callable[[], Micros]) -> None:
        self._clock = clock
        self._rows: tuple[TaskSummary, ...] = ()
        self._live = Live(get_renderable=self._shown, console=stdout, refresh_per_second=2)

    def tell(self, changes: TaskChanges, now: Micros) -> None:  # noqa: ARG002
        self._rows = changes.page.tasks
        self._live.refresh()

    def _shown(self) -> RenderableType:
        now = self._clock()
        if not self._rows:
            return Text("no tasks yet; they are shown as they come")
        return task_table(_with_current_age(row, now) for row in self._rows)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _with_current_age(row: TaskSummary, now: Micros) -> TaskSummary:
    return row if row.status.is_terminal else replace(row, age=max(0, now - row.created_at))


def task_display(clock: Callable[[], Micros], *, json: bool) -> Lines:
    """As it suits who looks at it."""
    if json:
        return JsonLines()
    return LiveTable(clock) if is_interactive() else Lines()
