"""The rows of the report, their targets, and how they are printed."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from textwrap import fill
from time import perf_counter

import msgspec

HEADINGS = ("what", "baseline", "subject", "ratio", "target", "verdict")


class Target(msgspec.Struct, frozen=True):
    """An upper or lower limit of a ratio."""

    bound: float
    at_least: bool = False

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}"


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement. Without a target it has no verdict."""

    what: str
    baseline: str
    subject: str
    ratio: float
    target: Target | None = None

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "met" if self.target.is_met(self.ratio) else "MISSED"

    @property
    def cells(self) -> tuple[str, ...]:
        target = "" if self.target is None else str(self.target)
        return self.what, self.baseline, self.subject, f"{self.ratio:.2f}", target, self.verdict


class InfoTable(msgspec.Struct, frozen=True, kw_only=True):
    """Further numbers, without verdicts."""

    text: str
    """Explains the numbers."""
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a part."""

    rows: list[ResultRow] = []
    tables: list[InfoTable] = []

    def __add__(self, other: Results) -> Results:
        return Results(rows=self.rows + other.rows, tables=self.tables + other.tables)


def at_most(bound: float) -> Target:
    return Target(bound)


def at_least(bound: float) -> Target:
    return Target(bound, at_least=True)


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"


def per_second(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s"


def render(results: Results) -> str:
    """Return tables that are readable as plain text and as Markdown."""
    judged = _table(HEADINGS, [row.cells for row in results.rows])
    tables = [f"{fill(table.text, 100)}\n\n{_table(table.headings, table.rows)}" for table in results.tables]
    return "\n\n".join((judged, *tables))


def _table(headings: tuple[str, ...], cells: Sequence[tuple[str, ...]]) -> str:
    rows = [headings, *cells]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows)


def machine(folder: Path) -> str:
    """Describe the machine, without naming it."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()}; "
        f"Python {platform.python_version()} ({sys.implementation.name}), "
        f"SQLite {sqlite3.sqlite_version}, msgspec {msgspec.__version__}; "
        f"4 KiB written and synced to disk in {micros(_sync_seconds(folder))}"
    )


def measured(on: str) -> str:
    """Return when and on which machine it was measured."""
    return f"Measured on {datetime.now(UTC).date():%Y-%m-%d}: {on}."


def report(results: Results, measured_on: str) -> str:
    """Return the text of RESULTS.md."""
    return (
        "# Results of `make bench`\n\n"
        f"{measured(measured_on)}\n\n"
        "Baseline and subject ran in turn, in one process except on the wire, and each ratio is the median\n"
        "of the ratios of the rounds. Compare ratios, not numbers: the machine was not idle.\n\n"
        f"{render(results)}\n"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _sync_seconds(folder: Path) -> float:
    """Measure how long a sync takes: about the time that a commit waits if it shares no flush."""
    seconds: list[float] = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(50):
            started = perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            seconds.append(perf_counter() - started)
    return median(seconds)
