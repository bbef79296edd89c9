"""`perdure serve` for several tests: in the background of those that only look, and refused at once, in
processes that have loaded everything before.
"""

from __future__ import annotations

import os
import signal
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

from perdure.mcp.client import Handle

from ..test_examples import SERVING, Program, free_port

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - the point is that it is not told
DASHBOARD_TOKEN = "another-that-nobody-guesses"  # noqa: S105
REPORT = {"year": 2026, "seconds": 4}
LONG_REPORT = {"year": 2026}
PATIENCE = 60.0


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
    def said(self) -> str:
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
        _wait_for("Ctrl-C stops it.", server, process)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_for(text: str, server: Background, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while text not in server.said:
        assert process.poll() is None, server.said
        assert time.monotonic() < deadline, server.said
        time.sleep(0.02)


@asynccontextmanager
async def anyone(token: str | None = None) -> AsyncGenerator[httpx2.AsyncClient]:
    """A visitor of the dashboard, or one who shows a token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(timeout=30, headers=headers) as client:
        yield client


# Tasks


async def has_page(handle: Handle, page: int) -> bool:
    return (await handle.status()).variables.get("page", 0) >= page


async def is_writing(handle: Handle) -> bool:
    state = await handle.status()
    return state.status_message == "writing page 1 of 12, attempt 1" and state.progress is not None


async def has_read(handle: Handle, accounts: int) -> bool:
    progress = (await handle.status()).progress
    return progress is not None and progress["done"] >= accounts


def content_of(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None, result
    return result.structured_content


def ended_well(program: Program, code: int) -> None:
    assert code == 0, program.said
    assert "Traceback" not in program.said, program.said
    assert "stopped; what was not finished goes on" in program.said


# Refused

FORGE = """
import json, os, signal, sys
import perdure.cli.commands, perdure.cli.serve.running, perdure.web
from perdure.cli import main

for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if not pid:
        signal.alarm(60)  # one that serves is not refused
        os.chdir(order["folder"])
        os.environ["COLUMNS"] = "300"
        said = os.open(order["said"], os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv[1:] = ["serve", *order["arguments"]]
        try:
            main()
        except SystemExit as ending:
            sys.stderr.flush()
            os._exit(ending.code)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Loads what every server needs, which takes longer than to refuse one, and then makes a process for each."""


class Forge:
    """Processes of `perdure serve` that end at once. Each is one of its own, with its code and its words."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-c", FORGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def refused(self, folder: Path, *arguments: str, code: int = 2) -> str:
        """What it says: one sentence, and it leaves no file behind."""
        before, said = sorted(folder.iterdir()), self._folder / "said.txt"
        said.write_text("")
        assert self._ended(folder, said, arguments) == code, said.read_text()
        told = said.read_text()
        assert told.startswith("perdure: ")
        assert "Traceback" not in told
        assert sorted(folder.iterdir()) == before
        return told

    def _ended(self, folder: Path, said: Path, arguments: tuple[str, ...]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"folder": str(folder), "said": str(said), "arguments": arguments}
        self._process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()
