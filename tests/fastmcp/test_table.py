"""The table of features in the guide is the one that the tests prove."""

from __future__ import annotations

import ast

from tools import fastmcp_table


def test_the_table_of_the_guide_is_current() -> None:
    page = fastmcp_table.PAGE.read_text("utf-8")
    assert fastmcp_table.page_with_table(page) == page, "run: python -m tools.fastmcp_table"


def test_every_test_with_a_feature_is_in_the_table() -> None:
    marked = 0
    for path in fastmcp_table.TESTS.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            decorators = getattr(node, "decorator_list", [])
            marked += sum(ast.unparse(each).startswith("feature(") for each in decorators)
    assert len(fastmcp_table.features()) == marked > 25
