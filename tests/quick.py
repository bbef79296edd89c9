"""What `make quick` runs: every test that needs no server and no other process.

`FILES` lists files in which all tests need one. In other files such tests are marked with `@server`. An
unmarked test that starts a process or opens a socket fails.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from . import engines

FILES = (
    "tests/cli/test_commands",
    "tests/cli/test_doctor",
    "tests/cli/test_elsewhere",
    "tests/cli/test_feeds_",
    "tests/cli/test_one_storage",
    "tests/cli/test_proxy_guide",
    "tests/cli/test_samples_command",
    "tests/cli/test_serve",
    "tests/cli/test_tasks_commands",
    "tests/cli/test_worker",
    "tests/faults/test_proxy",
    "tests/faults/test_scenario",
    "tests/fastmcp/",
    "tests/feeds/test_bluesky_cycles",
    "tests/feeds/test_bluesky_session",
    "tests/feeds/test_bluesky_source",
    "tests/feeds/test_fake_server",
    "tests/feeds/test_follow_list",
    "tests/feeds/test_processes",
    "tests/feeds/test_simulation",
    "tests/mcp/client/",
    "tests/mcp/v2025_11_25/",
    "tests/mcp/credentials/",
    "tests/mcp/durable/",
    "tests/mcp/embedding/",
    "tests/mcp/fuzz/",
    "tests/mcp/v2026_07_28/",
    "tests/mcp/owners/",
    "tests/mcp/without_tasks/",
    "tests/mcp/test_both_generations",
    "tests/mcp/test_conformance",
    "tests/mcp/test_listening",
    "tests/mcp/test_newer",
    "tests/mcp/test_pacing",
    "tests/mcp/test_processes",
    "tests/mcp/test_proxy",
    "tests/mcp/test_schema_check",
    "tests/mcp/test_regressions",
    "tests/mcp/test_restarting",
    "tests/mcp/test_startup_error",
    "tests/mcp/existing/",
    "tests/mcp/test_stdio",
    "tests/mcp/test_streams",
    "tests/operating/test_claims",
    "tests/runtime/test_crash",
    "tests/test_public_names",
    "tests/runtime/test_upgrade",
    "tests/runtime/test_worker_command",
    "tests/storage/test_dynamodb_",
    "tests/storage/test_engine",
    "tests/storage/test_postgres_",
    "tests/storage/test_redis_",
    "tests/storage/test_servers",
    "tests/storage/test_sqlite_processes",
    "tests/test_docs",
    "tests/test_examples",
    "tests/test_packaging",
    "tests/test_page_parts",
    "tests/test_readme",
    "tests/test_wheel",
    "tests/web/test_browser",
    "tests/web/test_every_page",
    "tests/web/test_live",
    "tests/web/test_task_display",
)
FORBIDDEN = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.bind", "socket.connect"}
"""Audit events of tests that need a server."""

_is_testing = False


class NeedsServer(RuntimeError):
    def __init__(self, event: str) -> None:
        super().__init__(f"{event}: mark this test with @server, or add its file to tests/quick.py")


def is_left_out(path: Path) -> bool:
    """Return whether every test in this file or folder needs a server, so that it is not even imported."""
    name = path.relative_to(engines.ROOT).as_posix()
    return f"{name}/".startswith(FILES)


def select(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that need no server. From now on, a test that starts one fails."""
    sys.addaudithook(_forbid)
    return [item for item in items if not _needs_server(item)]


def _needs_server(item: pytest.Item) -> bool:
    if item.get_closest_marker("server") is not None:
        return True
    values: dict[str, Any] = cast("Any", item).callspec.params if hasattr(item, "callspec") else {}
    names = {str(value).partition("-")[0] for value in values.values() if isinstance(value, str)}
    return bool(names & set(engines.SERVERS)) or "url" in getattr(values.get("check"), "needs", ())


def watch(*, is_testing: bool) -> None:
    """Set whether a test is running, as opposed to pytest itself."""
    global _is_testing  # noqa: PLW0603 - an audit hook cannot be removed
    _is_testing = is_testing


def _forbid(event: str, _: tuple[object, ...]) -> None:
    if _is_testing and event in FORBIDDEN:
        raise NeedsServer(event)
