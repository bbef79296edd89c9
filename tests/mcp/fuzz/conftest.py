"""One server for the whole storm, and in the end a look at what became of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator

import pytest

from .fuzz_server import Server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """In a process of its own: what it does by chance must not be mistaken for a test's."""
    errors = tmp_path_factory.mktemp("hostile") / "errors.txt"
    command = [sys.executable, "-m", "tests.mcp.tokens", "attacker", "victim"]
    with (
        errors.open("w") as stderr,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        assert process.stdout is not None
        try:
            running = Server(process.stdout.readline().decode().strip(), errors)
            yield running
            running.close()
        finally:
            process.kill()
