"""Markers of tests.

`@row(23)`: the test proves row 23 of docs/trust/parity.md.
`@once`: the test does not depend on the storage (parsing, validation, refusals), so one engine is enough.
`@server`: the test needs a server or another process; see tests/quick.py.
`@in_test_all`: only `make test-all` runs the test.
`@strong_memory(reason)`: the test needs more of the memory engine than the contract promises.
"""

from __future__ import annotations

import pytest

once = pytest.mark.once
server = pytest.mark.server
in_test_all = pytest.mark.in_test_all


def strong_memory(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.strong_memory(reason)


def row(*numbers: int) -> pytest.MarkDecorator:
    return pytest.mark.row(numbers)
