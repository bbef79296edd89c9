"""The lifecycle table: five statuses, and exactly the moves that it has."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from perdure import storage
from perdure.tasks import Status
from perdure.tasks.errors import IllegalTransition, TerminalTask
from perdure.tasks.lifecycle import ACTIVE_STATUSES, TRANSITIONS, check_active, check_transition

from ..markers import row

W, N, C, F, X = Status.WORKING, Status.INPUT_REQUIRED, Status.COMPLETED, Status.FAILED, Status.CANCELLED
LEGAL = {(W, N), (W, C), (W, F), (W, X), (N, W), (N, C), (N, F), (N, X)}
DOCS = Path(__file__).parents[2] / "docs"


@row(1)
def test_there_are_five_statuses_spelled_as_on_the_wire() -> None:
    assert [*Status] == ["working", "input_required", "completed", "failed", "cancelled"]


@row(2)
@pytest.mark.parametrize(("source", "target"), [*product(Status, Status)])
def test_the_table_has_exactly_these_moves(source: Status, target: Status) -> None:
    if (source, target) in LEGAL:
        check_transition(source, target)
        return
    with pytest.raises(IllegalTransition) as caught:
        check_transition(source, target)
    assert (caught.value.source, caught.value.target) == (source, target)


@row(3)
@pytest.mark.parametrize("source", [C, F, X])
@pytest.mark.parametrize("target", [*Status])
def test_a_terminal_status_refuses_every_move_and_names_itself(source: Status, target: Status) -> None:
    with pytest.raises(TerminalTask, match=f"the task is {source}"):
        check_transition(source, target)


def test_active_is_what_can_still_move() -> None:
    assert {W, N} == ACTIVE_STATUSES
    for status in ACTIVE_STATUSES:
        check_active(status)
    for status in set(Status) - ACTIVE_STATUSES:
        with pytest.raises(TerminalTask):
            check_active(status)


@row(5)
def test_the_rules_are_in_one_pure_module_and_engines_contain_none() -> None:
    """No engine, and nothing else in the storage package, speaks of owners, leases, feeds or a status."""
    source = Path(storage.__file__).parent
    files = [path for path in source.rglob("*") if path.suffix in (".py", ".sql", ".lua")]
    assert len(files) > 60
    statuses = "|".join(Status)
    words = re.compile(r"\b(owners?|leases?|feeds?|input_required)\b", re.IGNORECASE)
    status = re.compile(rf"[\"']({statuses})[\"']", re.IGNORECASE)
    for path in files:
        text = path.read_text(encoding="utf-8")
        found = words.search(text) or (
            "kit" not in path.parts and status.search(text)
        )  # its checks fail, too
        assert not found, f"{path.name} speaks of {found}"


def diagram() -> str:
    """Return the table of status changes as a Mermaid diagram."""
    transitions = [
        f"    {source} --> {target}"
        for source in Status
        for target in Status
        if target in TRANSITIONS[source]
    ]
    ends = [f"    {status} --> [*]" for status in Status if status.is_terminal]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Status.WORKING}", *transitions, *ends])


def test_the_diagram_in_the_docs_is_drawn_from_the_table() -> None:
    assert diagram() in (DOCS / "reference" / "lifecycle.md").read_text(encoding="utf-8")
