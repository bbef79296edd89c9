"""`perdure serve` for several tests: in the background of those that only look, and refused at once."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from mcp_types import CallToolResult

from perdure.mcp.client import ClientTask
from perdure.storage.kit.servers.process import free_port

from ..fork_server import PIPE, STDOUT, ForkedProcess, spawn
from ..test_examples import SERVING, Program

TOKEN = "a-token-that-is-hard-to-guess"  # noqa: S105 - a test value
DASHBOARD_TOKEN = "another-that-is-hard-to-guess"  # noqa: S105
REPORT = {"year": 2026, "seconds": 4}
LONG_REPORT = {"year": 2026, "seconds": 60}
TIMEOUT = 60.0


# In the background


class Background(msgspec.Struct, frozen=True):
    """A server that several tests look at, and none of them ends."""

    pid: int
    root: str
    log: Path

    @property
    def url(self) -> str:
        return f"{self.root}/mcp"

    @property
    def file(self) -> Path:
        """Where its tasks are, as it says."""
        match = re.search(r"^ +storage +(\S+) ", self.output, re.MULTILINE)
        assert match is not None, self.output
        return Path(match[1])

    @property
    def output(self) -> str:
        return self.log.read_text()


@contextmanager
def in_background(
    directory: Path, *options: str, host: str = "127.0.0.1", environment: Mapping[str, str] = {}
) -> Generator[Background]:
    """`perdure serve` with its sample tools, at a port of its own; how it is reached from this machine."""
    port, log = free_port(), directory / "said.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *SERVING, "--host", host, "--port", str(port), *options],
            cwd=directory, env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    near = host if host.startswith("127.") else "127.0.0.1"
    server = Background(process.pid, f"http://{near}:{port}", log)
    try:
        _wait_for("Press Ctrl+C to stop.", server, process)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_for(text: str, server: Background, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while text not in server.output:
        assert process.poll() is None, server.output
        assert time.monotonic() < deadline, server.output
        time.sleep(0.02)


@asynccontextmanager
async def anyone(token: str | None = None) -> AsyncGenerator[httpx2.AsyncClient]:
    """A visitor of the dashboard, or one who shows a token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(timeout=30, headers=headers) as client:
        yield client


# Tasks


async def has_page(task: ClientTask, page: int) -> bool:
    return ((await task.status()).progress or {}).get("done", 0) >= page


async def is_writing(task: ClientTask) -> bool:
    state = await task.status()
    match = re.fullmatch(r"writing page \d+ of 12, attempt 1", state.status_message or "")
    return match is not None and state.progress is not None


async def has_read(task: ClientTask, accounts: int) -> bool:
    progress = (await task.status()).progress
    return progress is not None and progress["done"] >= accounts


def content_of(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None, result
    return result.structured_content


def ended_well(program: Program, code: int) -> None:
    assert code == 0, program.output
    assert "Traceback" not in program.output, program.output
    assert "\nStopped." in program.output


# The Python lines of the greeting


def snippet_in(output: str) -> str:
    snippet = re.search(r'^Python, in ".*python -m asyncio":\n((?:.+\n)+\n)', output, re.MULTILINE)
    assert snippet is not None, output
    return snippet[1]


RUN_PASTED = """
import ast, asyncio, sys, traceback
lines = compile(sys.stdin.read(), "pasted", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
try:
    asyncio.run(eval(lines, {}))
except Exception:
    traceback.print_exc()
"""
"""Does what `python -m asyncio` does, which in Python 3.13.0 reads a statement of several lines only from a
terminal: in one, it is right."""


async def pasted(folder: Path, lines: str) -> ForkedProcess:
    """Paste lines into `python -m asyncio`, in a terminal that has the token."""
    (folder / "pasted").write_text(lines)
    with (folder / "pasted").open("rb") as file:
        return await spawn(
            *(("-m", "asyncio") if sys.version_info < (3, 13) else ("-c", RUN_PASTED)),
            cwd=folder,
            env={**os.environ, "PERDURE_TOKEN": TOKEN},
            stdin=file,
            stdout=PIPE,
            stderr=STDOUT,
        )


# Refused


async def refused(folder: Path, *arguments: str, code: int = 2) -> str:
    """What it says that is not served: one sentence, and it leaves no file behind."""
    before = _files_in(folder)
    variables = {**os.environ, "COLUMNS": "300", "PYTHONDONTWRITEBYTECODE": "1"}
    process = await spawn(*SERVING, *arguments, cwd=folder, env=variables, stdout=PIPE, stderr=STDOUT)
    try:
        output = (await asyncio.wait_for(process.communicate(), TIMEOUT))[0].decode()
    finally:
        if process.returncode is None:  # one that serves is not refused
            process.kill()
    assert process.returncode == code, output
    assert output.startswith("perdure: ")
    assert "Traceback" not in output
    assert _files_in(folder) == before
    return output


def _files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())
