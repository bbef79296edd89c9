"""The lines of the result, how they are judged and how they are shown."""

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

HEADINGS = ("what", "floor", "subject", "ratio", "target", "verdict")


class Target(msgspec.Struct, frozen=True):
    """How large a ratio may be, or must be."""

    bound: float
    at_least: bool = False

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One thing measured. Without a target it is told, not judged."""

    what: str
    floor: str
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
        return self.what, self.floor, self.subject, f"{self.ratio:.2f}", target, self.verdict


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers beside the lines, that are told and not judged."""

    text: str
    """What they are."""
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a part."""

    lines: list[Line] = []
    sheets: list[Sheet] = []

    def __add__(self, other: Findings) -> Findings:
        return Findings(lines=self.lines + other.lines, sheets=self.sheets + other.sheets)


def at_most(bound: float) -> Target:
    return Target(bound)


def at_least(bound: float) -> Target:
    return Target(bound, at_least=True)


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us"


def per_second(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f}/s"


def render(findings: Findings) -> str:
    """Tables that read as plain text and as Markdown."""
    judged = _table(HEADINGS, [line.cells for line in findings.lines])
    sheets = [f"{fill(sheet.text, 100)}\n\n{_table(sheet.headings, sheet.rows)}" for sheet in findings.sheets]
    return "\n\n".join((judged, *sheets))


def _table(headings: tuple[str, ...], cells: Sequence[tuple[str, ...]]) -> str:
    rows = [headings, *cells]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    rows.insert(1, tuple("-" * width for width in widths))
    return "\n".join(f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows)


def machine(folder: Path) -> str:
    """What it was measured on: enough to judge the numbers by, nothing that names the machine."""
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()}; "
        f"Python {platform.python_version()} ({sys.implementation.name}), "
        f"SQLite {sqlite3.sqlite_version}, msgspec {msgspec.__version__}; "
        f"4 KiB written and synced to disk in {micros(_sync_seconds(folder))}"
    )


def measured(on: str) -> str:
    """When it was measured, and on what."""
    return f"Measured on {datetime.now(UTC).date():%Y-%m-%d}: {on}."


def report(findings: Findings, measured_on: str) -> str:
    """The text of RESULTS.md."""
    return (
        "# Results of `make bench`\n\n"
        f"{measured(measured_on)}\n\n"
        "Floor and subject ran in turn, in one process except on the wire, and each ratio is the median\n"
        "of the ratios of the rounds. Compare ratios, not numbers: the machine was not idle.\n\n"
        f"{render(findings)}\n"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _sync_seconds(folder: Path) -> float:
    """What the disk takes to make a page safe: about what a commit that shares nothing has to wait."""
    seconds: list[float] = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(50):
            began = perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            seconds.append(perf_counter() - began)
    return median(seconds)
