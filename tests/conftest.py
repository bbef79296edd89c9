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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--row", type=int, help="run only the tests of this parity row")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted: int | None = config.getoption("--row")
    if wanted is not None:
        items[:] = [
            item for item in items if any(wanted in marker.args[0] for marker in item.iter_markers("row"))
        ]
