"""`make parity`: the rows of docs/parity.md, each with the tests that prove it.

Fails where a row that is claimed has no test, or tests on one engine only. A row is claimed by the word
`proven` in its last column.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "parity.md"


ENGINES = ("memory", "sqlite")
FORGETFUL = 97
"""The row that the memory engine cannot show: it forgets."""


class Row(msgspec.Struct, frozen=True):
    number: int
    behaviour: str
    stands: str

    @property
    def is_claimed(self) -> bool:
        return self.stands == "proven"


class Collector:
    """A pytest plugin that notes which test names which row."""

    def __init__(self) -> None:
        self.tests: dict[int, list[str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for marker in item.iter_markers("row"):
                for number in marker.args[0]:
                    self.tests.setdefault(number, []).append(item.nodeid)


def rows() -> list[Row]:
    cells = [
        re.split(r"\s*\|\s*", line.strip("| \n")) for line in PAGE.read_text(encoding="utf-8").splitlines()
    ]
    return [Row(int(cell[0]), cell[1], cell[-1]) for cell in cells if cell[0].isdigit()]


def collect() -> dict[int, list[str]]:
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = pytest.main(["--collect-only", "-q", str(ROOT / "tests")], plugins=[collector])
    if status:
        sys.exit(f"the tests cannot be collected:\n{printed.getvalue()}")
    return collector.tests


def missing_engines(row: Row, tests: list[str]) -> list[str]:
    """The engines on which a row is not proven, though it is on another: a test's id begins with its name."""
    seen = {engine for engine in ENGINES for test in tests if f"[{engine}" in test}
    return [engine for engine in ENGINES if seen and engine not in seen and row.number != FORGETFUL]


def show(row: Row, tests: list[str]) -> None:
    say(f"{row.number:4}  {row.behaviour}")
    for name, count in Counter(test.partition("[")[0] for test in tests).items():
        say(f"          {name}{f'  ({count} cases)' if count > 1 else ''}")
    if not tests:
        say(f"          not yet: {row.stands}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brief", action="store_true", help="only count, and name what is missing")
    brief = parser.parse_args().brief
    tests = collect()
    table = rows()
    if not brief:
        for row in table:
            show(row, tests.get(row.number, []))
    claimed = [row for row in table if row.is_claimed]
    missing = [row for row in claimed if row.number not in tests]
    say(f"parity: {len(claimed) - len(missing)} of {len(claimed)} claimed rows (of {len(table)}) have tests")
    for row in missing:
        say(f"  row {row.number} is claimed and has no test: {row.behaviour}")
    partial = {row.number: missing_engines(row, tests.get(row.number, [])) for row in claimed}
    for number, engines in partial.items():
        if engines:
            say(f"  row {number} has no test on {', '.join(engines)}")
    sys.exit(1 if missing or any(partial.values()) else 0)


if __name__ == "__main__":
    main()
