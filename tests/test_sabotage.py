"""The mutants of `make sabotage` match the sources, and every row has one."""

from __future__ import annotations

import pytest

from tools.parity import ROOT, rows
from tools.sabotage import Mutant, load_mutants


@pytest.mark.parametrize("mutant", load_mutants(), ids=lambda each: f"row {each.row}")
def test_the_line_that_is_to_be_broken_is_there_once(mutant: Mutant) -> None:
    text = (ROOT / "src" / "perdure" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1
    assert mutant.new != mutant.old


def test_every_row_has_a_mutant() -> None:
    assert {row.number for row in rows()} <= {each.row for each in load_mutants()}
