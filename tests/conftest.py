"""What every test may use. Tests that name a parity row carry `@row(n)` from `tests.rows`."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("PERDURE_HYPOTHESIS", "quick"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
