"""Marks of tests.

`@row(23)`: this test proves row 23 of docs/parity.md.
`@once`: this test never reaches a storage (parsing, validation, refusals), so one engine is enough.
`@server`: this test needs a server or another process; see tests/quick.py.
`@strong_memory(reason)`: this test needs more of the memory engine than the contract promises.
"""

from __future__ import annotations

import pytest

once = pytest.mark.once
server = pytest.mark.server


def strong_memory(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.strong_memory(reason)


def row(*numbers: int) -> pytest.MarkDecorator:
    return pytest.mark.row(numbers)
