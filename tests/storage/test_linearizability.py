"""The linearizability checker: it accepts what one record could have answered, and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.storage import Accepted, ChangeResult, Conflict, Missing
from perdure.storage.kit import Get, Operation, Write, is_linearizable
from perdure.storage.kit.linearizability import State, apply


def op(called: int, returned: int | None, what: Get | Write, answer: State | ChangeResult) -> Operation:
    return Operation(what=what, result=answer, called=called, returned=returned)


INSERT = Write("insert", 0, "a")
TO_B = Write("replace", 1, "b")
TO_C = Write("replace", 1, "c")
DELETE = Write("delete", 1, "")


@pytest.mark.parametrize(
    "history",
    [
        [],
        [op(1, 2, Get(), None)],
        [op(1, 2, INSERT, Accepted(1)), op(3, 4, Get(), (1, "a"))],
        [op(1, 4, INSERT, Accepted(1)), op(2, 3, Get(), None)],  # overlapping: the read may come first
        [op(1, 4, INSERT, Accepted(1)), op(2, 3, Get(), (1, "a"))],  # or second
        [op(1, 2, INSERT, Accepted(1)), op(3, 6, TO_B, Accepted(2)), op(4, 5, TO_C, Conflict(2))],
        [op(1, 2, INSERT, Accepted(1)), op(3, 4, DELETE, Accepted(1)), op(5, 6, TO_B, Missing())],
        [op(1, None, INSERT, None), op(3, 4, Get(), None)],  # its caller never learned: it may be undone
        [op(1, None, INSERT, None), op(3, 4, Get(), (1, "a"))],  # or done
        [op(1, None, INSERT, None), op(3, 4, Get(), None), op(5, 6, Get(), (1, "a"))],  # or done late
    ],
)
def test_what_one_record_could_have_answered_is_accepted(history: list[Operation]) -> None:
    assert is_linearizable(history)


@pytest.mark.parametrize(
    "history",
    [
        [op(1, 2, Get(), (1, "a"))],
        [op(1, 2, INSERT, Accepted(1)), op(3, 4, Get(), None)],  # stale read
        [
            op(1, 2, INSERT, Accepted(1)),
            op(3, 6, TO_B, Accepted(2)),
            op(4, 5, TO_C, Accepted(2)),
        ],  # lost update
        [op(1, 2, INSERT, Accepted(1)), op(3, 4, TO_B, Accepted(2)), op(5, 6, Get(), (2, "c"))],
        [op(1, 2, INSERT, Accepted(1)), op(3, 4, INSERT, Accepted(1))],
        [op(1, 2, INSERT, Accepted(1)), op(3, 4, TO_B, Conflict(1))],
        [op(1, None, INSERT, None), op(3, 4, Get(), (1, "a")), op(5, 6, Get(), None)],  # done, then undone
    ],
)
def test_what_no_record_could_have_answered_is_not(history: list[Operation]) -> None:
    assert not is_linearizable(history)


@given(st.integers(0, 2**32))
def test_a_history_made_by_one_record_is_accepted_however_the_calls_overlap(seed: int) -> None:
    assert is_linearizable(_history(random.Random(seed)))


@given(st.integers(0, 2**32))
def test_a_version_that_is_won_twice_is_not(seed: int) -> None:
    history = _history(random.Random(seed))
    won = [each for each in history if isinstance(each.what, Write) and each.what.kind == "insert"]
    lost = [each for each in won if isinstance(each.result, Conflict)]
    if lost and not any(isinstance(each.what, Write) and each.what.kind == "delete" for each in history):
        history[history.index(lost[0])] = op(lost[0].called, lost[0].returned, lost[0].what, Accepted(1))
        assert not is_linearizable(history)


def _history(chance: random.Random) -> list[Operation]:
    """Operations applied one after the other, each called some time before and returned some time after."""
    state: State = None
    history: list[Operation] = []
    for instant in range(0, 200, 10):
        expected = state[0] if state is not None and chance.random() < 0.7 else 1
        body = str(instant)
        replacing = Write("replace", expected, body)
        inserting, deleting = Write("insert", expected, body), Write("delete", expected, body)
        what = chance.choice([Get(), inserting, replacing, replacing, deleting])
        answer, state = apply(what, state)
        called, returned = instant - chance.randrange(30), instant + chance.randrange(30)
        history.append(op(called, returned, what, answer))
    return history
