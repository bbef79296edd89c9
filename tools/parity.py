"""`make parity`: lists the rows of docs/trust/parity.md, each with the tests that prove it.

Every row needs a test. There are three kinds of tests:

- contract: a check of the contract kit, which runs on every engine
- rotation: a test of a higher layer, which runs on memory, on SQLite and on one server that the seed chooses
- once: a test that uses no storage, or only one particular engine

With `--all`, the tests are collected for every engine, as for `make test-all`. The command fails if a
row has no test, or if it has storage tests but none on a required engine. It also fails if the last complete
test run did not raise every error (row 100).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests import engines, raised, servers

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trust" / "parity.md"

CONTRACT = "tests/storage/test_contract.py"
PARAMETERS = ("on_engine", "on_shared_engine", "engine")
"""The test parameters whose values are names of engines."""
KINDS = ("contract", "rotation", "once")
IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
"""Makes pytest ignore the warning that this process has already imported some test modules."""
LASTING = ["sqlite", *engines.SERVERS]
ENGINES_BY_ROW = {94: ["memory", "sqlite", "postgres"], 97: LASTING, 107: LASTING}
"""The engines for each row that does not apply to all five. Row 94 lists its engines. The other rows omit
memory, which loses its data when the process ends, and stores no bytes that could be damaged.
"""
LASTING_ROWS = (119, 124, 132)
"""The rows whose tests on several engines kill a process, so they need a storage that outlives it. Without
--all, SQLite and one server are enough.
"""
ERRORS_ROW = 100
"""The row that requires a test for every error. Test runs record the errors that were raised."""


class Row(msgspec.Struct, frozen=True):
    number: int
    behaviour: str


class Proof(msgspec.Struct, frozen=True):
    """A test whose marker `row` contains the number of a row."""

    test: str
    engine: str | None
    """The engine that this case of the test uses. None if the test does not run on several engines."""

    @property
    def function(self) -> str:
        return self.test.partition("[")[0]

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def kind(self) -> str:
        if self.engine is None:
            return "once"
        return "contract" if self.file == CONTRACT else "rotation"


class Collector:
    """A pytest plugin that collects the tests of each row."""

    def __init__(self) -> None:
        self.proofs: dict[int, list[Proof]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            proof = Proof(item.nodeid, engine_of(item))
            for marker in item.iter_markers("row"):
                for number in marker.args[0]:
                    self.proofs.setdefault(number, []).append(proof)


def engine_of(item: pytest.Item) -> str | None:
    """Return the engine of a test case, or None if the test does not run on several engines."""
    if not hasattr(item, "callspec") or item.get_closest_marker("once") is not None:
        return None
    values: dict[str, object] = cast("Any", item).callspec.params
    found = [str(values[name]).partition("-")[0] for name in PARAMETERS if name in values]
    return found[0] if found and found[0] in engines.FIVE else None


def rows() -> list[Row]:
    cells = [
        re.split(r"\s*\|\s*", line.strip("| \n")) for line in PAGE.read_text(encoding="utf-8").splitlines()
    ]
    return [Row(int(cell[0]), cell[1]) for cell in cells if cell[0].isdigit()]


def collect(*options: str) -> dict[int, list[Proof]]:
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        command = ["--collect-only", "-q", "-W", IMPORTED, *options, str(ROOT / "tests")]
        status = pytest.main(command, plugins=[collector])
    if status:
        sys.exit(f"the tests cannot be collected:\n{printed.getvalue()}")
    return collector.proofs


def missing_engines(row: Row, proofs: list[Proof], *, everywhere: bool) -> list[str]:
    """Return the engines on which a row lacks a test. A row without storage tests requires no engine."""
    seen = {proof.engine for proof in proofs} - {None}
    if not seen:
        return []
    is_on_all = everywhere or any(proof.kind == "contract" for proof in proofs)
    memory = [] if row.number in LASTING_ROWS else ["memory"]
    wanted = ENGINES_BY_ROW.get(row.number, [*memory, *(LASTING if is_on_all else ["sqlite"])])
    missing = [each for each in wanted if each not in seen and each not in servers.LEFT_OUT]
    return missing if seen & set(engines.SERVERS) else [*missing, "a server"]


def show(row: Row, proofs: list[Proof]) -> None:
    say(f"{row.number:4}  {row.behaviour}")
    by_function: dict[tuple[str, str], list[Proof]] = {}
    for proof in proofs:
        by_function.setdefault((proof.kind, proof.function), []).append(proof)
    for (kind, function), cases in by_function.items():
        where = sorted({case.engine for case in cases if case.engine}, key=engines.FIVE.index)
        count = f"{len(cases)} cases" if len(cases) > 1 else "1 case"
        say(f"          {kind:8}  {function}  ({count}{': ' if where else ''}{', '.join(where)})")
    if not proofs:
        say("          no test")


def summary(table: list[Row], proofs: dict[int, list[Proof]], *, everywhere: bool) -> str:
    """Return a sentence that counts the rows by the strongest kind of test that each row has."""
    kinds = Counter[str]()
    for row in table:
        found = {proof.kind for proof in proofs.get(row.number, [])}
        kinds[next((kind for kind in KINDS if kind in found), "none")] += 1
    how = "on every engine" if everywhere else f"on one server by rotation (seed {engines.seed()})"
    return (
        f"parity: {len(table) - kinds['none']} of {len(table)} rows have tests: "
        f"{kinds['contract']} in the contract kit on every engine, {kinds['rotation']} {how}, "
        f"{kinds['once']} without a storage or on one particular engine"
    )


def unraised() -> list[str]:
    """Return a message for each error that the last complete test run did not raise, as row 100 requires."""
    seen = raised.recorded()
    if seen is None:
        return [f"row {ERRORS_ROW}: no complete test run was recorded; run: make test"]
    return [f"row {ERRORS_ROW}: no test raised {name}" for name in raised.missing(seen)]


def problems_of(table: list[Row], proofs: dict[int, list[Proof]], *, everywhere: bool) -> list[str]:
    problems = list[str]()
    for row in table:
        if row.number not in proofs:
            problems.append(f"row {row.number} has no test: {row.behaviour}")
        elif lacking := missing_engines(row, proofs[row.number], everywhere=everywhere):
            problems.append(f"row {row.number} has no test on {', '.join(lacking)}")
    return problems


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.parity")
    parser.add_argument("--brief", action="store_true", help="print only the counts and the problems")
    parser.add_argument("--all", action="store_true", help="collect the tests for every engine")
    options = parser.parse_args()
    proofs = collect(*(["--engines=all"] if options.all else []))
    table = rows()
    if not options.brief:
        for row in table:
            show(row, proofs.get(row.number, []))
    say(summary(table, proofs, everywhere=options.all))
    problems = problems_of(table, proofs, everywhere=options.all)
    if not options.brief:  # each complete test run checks its own errors
        problems += unraised()
    for problem in problems:
        say(f"  {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
