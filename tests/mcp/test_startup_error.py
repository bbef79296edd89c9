"""If a server refuses to start, the last line that its process prints says why."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perdure.storage.kit.servers.process import free_port

SDK = """
from mcp.server import MCPServer
from perdure import Tasks

tasks = Tasks({url!r})
server = MCPServer("kitchen", **tasks.attach())


@server.tool()
@tasks.durable
async def brew() -> str:
    return ""
"""
FASTMCP = """
from fastmcp import FastMCP
from perdure.fastmcp import TasksExtension

server = FastMCP("kitchen")
server.add_extension(TasksExtension({url!r}))


@server.tool(task=True)
async def brew() -> str:
    return ""
"""
STDIO = "server.run()"
HTTP = 'server.run(transport="streamable-http", port=0)'
HANDLED = """
import anyio
from perdure import PerdureError


async def main():
    try:
        async with tasks.attach()["lifespan"](server):
            pass
    except PerdureError as error:
        print("handled:", error)


anyio.run(main)
raise SystemExit(3)
"""
FRAMEWORKS = pytest.mark.parametrize(
    ("code", "run"),
    [(SDK, STDIO), (SDK, HTTP), (FASTMCP, STDIO), (FASTMCP, HTTP)],
    ids=["sdk-stdio", "sdk-http", "fastmcp-stdio", "fastmcp-http"],
)


def last_line(folder: Path, code: str, run: str, url: str) -> str:
    (folder / "served.py").write_text(code.format(url=url) + run)
    ended = subprocess.run(
        [sys.executable, "served.py"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    return ended.stderr.rstrip("\n").rpartition("\n")[2].strip()


@FRAMEWORKS
def test_an_unknown_scheme_is_explained_by_the_last_line(tmp_path: Path, code: str, run: str) -> None:
    line = last_line(tmp_path, code, run, "mongodb://host/db")
    assert ": cannot open mongodb://host/db: unknown URL scheme; use one of these schemes: " in line


def test_an_unknown_option_is_explained_by_the_last_line(tmp_path: Path) -> None:
    line = last_line(tmp_path, SDK, STDIO, "sqlite:///x.db?nosuch=1")
    assert ": unknown option 'nosuch'; the options are synchronous=" in line


@pytest.mark.parametrize("run", [STDIO, HTTP], ids=["stdio", "http"])
def test_a_file_of_another_application_is_explained_by_the_last_line(tmp_path: Path, run: str) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("CREATE TABLE theirs (a)")
    line = last_line(tmp_path, SDK, run, "sqlite:///x.db")
    assert re.match(r"perdure: cannot open .*x\.db: .+; .+", line), line


def test_an_error_that_the_program_handled_is_not_printed_at_its_end(tmp_path: Path) -> None:
    assert last_line(tmp_path, SDK, HANDLED, "mongodb://host/db") == ""


@FRAMEWORKS
def test_a_server_that_does_not_answer_is_explained_by_the_last_line(
    tmp_path: Path, code: str, run: str
) -> None:
    line = last_line(tmp_path, code, run, f"redis://127.0.0.1:{free_port()}/0")
    assert line.endswith("; check the host and port of the storage, or try again later"), line
