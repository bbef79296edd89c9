"""`python -m tools.fastmcp_table`: writes the table of features in docs/guides/fastmcp.md from the tests.

Each row is the `@feature` of a test in tests/fastmcp, so that nothing is in the table that is not tested.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from tests.fastmcp.features import Feature

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "fastmcp.md"
TESTS = ROOT / "tests" / "fastmcp"
MODULES = ("start", "declarations", "protocols", "context", "questions", "tools", "clients")
"""The modules with features, in the order of the table."""
START, END = "<!-- features: made by tools/fastmcp_table.py -->\n", "<!-- end of features -->\n"


def features() -> list[Feature]:
    """Return the features of all tests, in their order."""
    found: list[Feature] = []
    for name in MODULES:
        module = importlib.import_module(f"tests.fastmcp.test_{name}")
        tests = [each for each in vars(module).values() if inspect.isfunction(each)]
        found += [row for test in tests for row in reversed(vars(test).get("features", []))]
    return found


def table() -> str:
    rows = [f"| {row.name} | {row.peer} | {row.here} |" for row in features()]
    return "\n".join(["| feature | fastmcp-tasks 4.1 | perdure |", "| --- | --- | --- |", *rows, ""])


def page_with_table(page: str) -> str:
    """Return the page with the table as it should be."""
    before, found, rest = page.partition(START)
    _, is_ended, after = rest.partition(END)
    if not (found and is_ended):
        raise SystemExit(f"{PAGE} lacks the marks of the table: {START}{END}")
    return f"{before}{START}\n{table()}\n{END}{after}"


def main() -> None:
    PAGE.write_text(page_with_table(PAGE.read_text("utf-8")), "utf-8")
    sys.stdout.write(f"{len(features())} features are in {PAGE.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
