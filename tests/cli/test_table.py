"""The tables of the commands in terminals of any width: what is dropped, what is cut, and what never is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from perdure.cli.feeds.render import account_table
from perdure.cli.table import GAP, Column, fit
from perdure.feeds.account import AccountStatus
from perdure.feeds.api_types import AccountSummary

ID, NAME = Column(name="id"), Column(name="name", min_width=6)
OWNER = Column(name="owner", drop=1)
MESSAGE = Column(name="message", drop=2, wanted_width=20, min_width=10)
COLUMNS = (ID, NAME, OWNER, MESSAGE)
FULL = (8, 12, 16, 90)


@given(st.integers(8 + GAP + 6, 300))
def test_a_table_is_never_wider_than_its_terminal(width: int) -> None:
    shown = fit(COLUMNS, FULL, width)
    assert sum(shown.values()) + GAP * (len(shown) - 1) <= width
    assert shown[0] == FULL[0]


def test_columns_are_dropped_before_others_are_cut_and_the_name_is_cut_last() -> None:
    assert fit(COLUMNS, FULL, 200) == {0: 8, 1: 12, 2: 16, 3: 90}
    assert fit(COLUMNS, FULL, 70) == {0: 8, 1: 12, 2: 16, 3: 28}
    assert fit(COLUMNS, FULL, 61) == {0: 8, 1: 12, 3: 37}  # or the message had 19 characters
    assert fit(COLUMNS, FULL, 34) == {0: 8, 1: 12, 3: 10}
    assert fit(COLUMNS, FULL, 33) == {0: 8, 1: 12}
    assert fit(COLUMNS, FULL, 20) == {0: 8, 1: 10}
    assert fit(COLUMNS, FULL, 5) == {0: 8, 1: 6}


def test_a_column_without_a_heading_and_without_cells_takes_no_room() -> None:
    assert fit(COLUMNS, (8, 12, 0, 10), 100) == {0: 8, 1: 12, 3: 10}


def test_a_long_handle_and_a_long_reason_leave_the_times_of_accounts_whole() -> None:
    handle, reason = f"{'a' * 60}.example", "the account was taken down " * 5
    about = AccountSummary(
        account="did:plc:a",
        handle=handle,
        status=AccountStatus.UNAVAILABLE,
        reason=reason,
        last_polled_at=0,
        watermark=0,
        next_poll_at=0,
        gaps=1,
        consecutive_failures=0,
        origins=("manual",),
    )
    for width in (80, 120):
        console = Console(width=width)
        with console.capture() as shown:
            console.print(account_table([about]))
        lines = shown.get().splitlines()
        assert len(lines) == 2
        assert "aaaaaaaaaaaaaaaa" in lines[1]
        assert "  unavailable  1970-01-01 00:00  " in lines[1]
        assert "  1 gap the" in lines[1]
