"""What every test may use. Tests that name a parity row carry `@row(n)` from `tests.rows`."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

from . import servers
from .storage.subjects import FIVE

settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("PERDURE_HYPOTHESIS", "quick"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_configure() -> None:
    """Tests interrupt processes, which a shell turns off for what it runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What proves a parity row proves it on all five engines; other tests run on the two quickest."""
    if "on_engine" in metafunc.fixturenames:
        is_row = metafunc.definition.get_closest_marker("row") is not None
        metafunc.parametrize("on_engine", FIVE if is_row else ["memory", "sqlite"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--row", type=int, help="run only the tests of this parity row")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted: int | None = config.getoption("--row")
    if wanted is not None:
        items[:] = [
            item for item in items if any(wanted in marker.args[0] for marker in item.iter_markers("row"))
        ]


def pytest_sessionfinish() -> None:
    servers.close_all()
