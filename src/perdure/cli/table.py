"""A table for terminals. If the terminal is narrow, the least important columns are dropped or cut.

The tables of the package rich are not used, because they shrink all columns: one long text can make every
other column unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

GAP = 2
"""Number of spaces between two columns."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table. By default, it is always shown, with its full width."""

    name: str
    drop: int | None = None
    """Columns are dropped in the order of these numbers until the table fits. A column with `None` is never
    dropped."""
    wanted_width: int | None = None
    """The column is not cut below this width while a column with a lower `drop` is shown."""
    min_width: int | None = None
    """The width to which the column can be cut. A column with `None` is never cut."""
    style: str = ""


@dataclass(frozen=True)
class FittedTable:
    """A table without borders. Each row has one cell for each column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[RenderableType]]

    def dropped(self, console: Console) -> list[str]:
        """Return the names of the columns that are not shown, because the terminal is too narrow."""
        shown = self._widths(console, console.options)
        return [
            column.name for number, column in enumerate(self.columns) if column.name and number not in shown
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(console, options)
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
        for number, width in widths.items():
            column = self.columns[number]
            table.add_column(column.name, width=width, style=column.style, no_wrap=True, overflow="ellipsis")
        for row in self.rows:
            table.add_row(*(row[number] for number in widths))
        yield table

    def _widths(self, console: Console, options: ConsoleOptions) -> dict[int, int]:
        cells = [[Text(column.name), *(row[n] for row in self.rows)] for n, column in enumerate(self.columns)]
        wide = options.update(width=10_000)
        full = [max(Measurement.get(console, wide, cell).maximum for cell in column) for column in cells]
        return fit(self.columns, full, options.max_width)


def fit(columns: Sequence[Column], full: Sequence[int], width: int) -> dict[int, int]:
    """Choose the columns to show. Return a dict that maps the index of each one to its width.

    `full` contains the full width of each column. `width` is the width of the terminal.
    """
    layout: Mapping[int, int] = {}
    for layout in _layouts(columns, full):  # if no layout fits, the last one is used
        if _total(layout) <= width:
            break
    spare = max(0, width - _total(layout))
    found: dict[int, int] = {}
    for number, given in layout.items():
        found[number] = min(full[number], given + spare)
        spare -= found[number] - given
    return found


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _layouts(columns: Sequence[Column], full: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield possible layouts, best first. A layout maps column indexes to the minimum widths."""
    layout = {number: width for number, width in enumerate(full) if width}
    for number in layout:
        layout[number] = min(full[number], columns[number].wanted_width or full[number])
    yield layout
    droppable = [number for number in layout if columns[number].drop is not None]
    for number in sorted(droppable, key=lambda each: columns[each].drop or 0):
        if (min_width := columns[number].min_width) is not None:
            yield {**layout, number: min(full[number], min_width)}
        layout = {other: width for other, width in layout.items() if other != number}
        yield layout
    yield {number: min(width, columns[number].min_width or width) for number, width in layout.items()}
