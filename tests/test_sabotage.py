"""The mutants of `make sabotage` match the sources, and every proven row has one."""

from __future__ import annotations

import pytest

from tools.parity import ROOT, rows
from tools.sabotage import Mutant, planned


@pytest.mark.parametrize("sabotage", planned(), ids=lambda each: f"row {each.row}")
def test_the_line_that_is_to_be_broken_is_there_once(sabotage: Mutant) -> None:
    text = (ROOT / "src" / "perdure" / sabotage.file).read_text(encoding="utf-8")
    assert text.count(sabotage.old) == 1
    assert sabotage.new != sabotage.old


def test_every_row_that_is_claimed_is_sabotaged() -> None:
    assert {row.number for row in rows() if row.is_proven} <= {each.row for each in planned()}
