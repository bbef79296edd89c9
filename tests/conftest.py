"""Options, hooks and fixtures of all tests. Markers such as `@row(n)` are in `tests.markers`."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import settings

from . import engines, fork_server, quick, raised, servers

settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("PERDURE_HYPOTHESIS", "quick"))


LONG = (
    "tests/faults/test_scenario.py",
    "tests/feeds/test_month.py",
    "tests/mcp/test_conformance.py",
    "tests/mcp/test_restarting.py",
    "tests/mcp/without_tasks/test_late_clients.py",
    "tests/runtime/test_crash.py",
    "tests/cli/test_serve_shutdown.py",
    "tests/cli/test_serve_feeds.py",
    "tests/storage/test_dynamodb_faults.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_wheel.py",
)
"""Files with long tests. Most of them wait for leases of killed processes to expire."""


def with_long_ones_first(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Let every second process start with its share of the long tests, so that none is left for the end.

    Initially each process gets the same number of consecutive tests; idle processes take over tests later.
    """
    long = [item for item in items if item.nodeid.startswith(LONG)]
    rest = iter([item for item in items if not item.nodeid.startswith(LONG)])
    starters = range(0, processes, 2)
    ordered: list[pytest.Item] = []
    for process in range(processes):
        size = (len(items) - len(ordered)) // (processes - process)
        own = long[process // 2 :: len(starters)] if process in starters else []
        ordered += [*own, *islice(rest, max(0, size - len(own)))]
    return [*ordered, *rest]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--row", type=int, help="run only the tests of this parity row")
    parser.addoption("--quick", action="store_true", help="run only the tests that need no server")
    parser.addoption(
        "--engines",
        choices=["chosen", "all"],
        default="chosen",
        help="see tests/engines.py (default: chosen)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start what the processes of a run share, before they start."""
    # a shell ignores interrupts for its background jobs
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    engines.seed()
    raised.record()
    if not is_worker(config):
        servers.host()
        if config.getoption("numprocesses", None):
            fork_server.socket_path()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not is_worker(config):
        servers.close_all()


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a process of pytest-xdist."""
    return hasattr(config, "workerinput")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    engines.parametrize(metafunc)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--quick") and quick.is_left_out(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted: int | None = config.getoption("--row")
    if wanted is not None:
        items[:] = [
            item for item in items if any(wanted in marker.args[0] for marker in item.iter_markers("row"))
        ]
    if config.getoption("--quick"):
        items[:] = quick.select(items)
    if config.getoption("--engines") != "all":
        items[:] = [item for item in items if item.get_closest_marker("in_test_all") is None]
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = with_long_ones_first(items, processes)


def pytest_collection_finish() -> None:
    """Exclude the thousands of test items from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    quick.watch(is_testing=True)
    try:
        return (yield)
    finally:
        quick.watch(is_testing=False)


# The seed, and the errors that were raised


def pytest_sessionstart(session: pytest.Session) -> None:
    if not is_worker(session.config):
        _print(session.config, f"ENGINE_SEED={engines.seed()}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - a process of pytest-xdist, which has no types
    raised.raised.update(getattr(node, "workeroutput", {}).get("raised", ()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a whole run that passes if it has not raised every error of perdure."""
    config = session.config
    if is_worker(config):
        cast("Any", config).workeroutput["raised"] = sorted(raised.raised)
    elif exitstatus == pytest.ExitCode.OK and _is_whole(config):
        if config.pluginmanager.has_plugin("cacheprovider"):
            cast("Any", config).cache.set(raised.KEY, sorted(raised.raised))
        for name in raised.missing(raised.raised):
            _print(config, f"no test raised {name}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _is_whole(config: pytest.Config) -> bool:
    options = config.option
    narrowed = (options.keyword, options.markexpr, options.row, options.quick, options.collectonly)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not any(narrowed)


def _print(config: pytest.Config, line: str) -> None:
    """Print a line in quiet runs, too."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(line)
