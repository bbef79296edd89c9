"""`@row(23)`: this test proves row 23 of docs/parity.md."""

from __future__ import annotations

import pytest


def row(*numbers: int) -> pytest.MarkDecorator:
    return pytest.mark.row(numbers)
