"""`make run`: the server to try perdure with, killed in the middle of a report and started again."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.mcp.client import Handle, TaskState

from .rows import row
from .runtime.replicas import until
from .test_examples import Person, Program, demo, running, started, text_of, until_open, visiting

pytestmark = pytest.mark.anyio

DEMO = ("-m", "perdure.demo")


@asynccontextmanager
async def made_run(directory: Path, *arguments: str) -> AsyncGenerator[tuple[Program, str]]:
    """`python -m perdure.demo`, and where it says that it is."""
    async with running(directory, *DEMO, *arguments) as program:
        await program.until_said("Ctrl-C stops it.")
        endpoint = re.search(r"endpoint +(http://127\.0\.0\.1:(\d+)/mcp)", program.said)
        assert endpoint is not None, program.said
        await until_open(program, int(endpoint[2]))
        yield program, endpoint[1]


async def has_page(handle: Handle, page: int) -> bool:
    return (await handle.status()).variables.get("page", 0) >= page


@row(97)
async def test_a_report_is_finished_from_its_checkpoint_when_the_server_was_killed(tmp_path: Path) -> None:
    states: list[TaskState] = []
    async with demo(tmp_path, seconds_a_page=0.2) as server:
        async with visiting(server.url) as (client, tasks):
            handle = await started(client, tasks, "build_report", {"year": 2026})
            kept = handle.save()
            await until(lambda: has_page(handle, 4))
        await server.program.end(signal.SIGKILL)
    async with demo(tmp_path, seconds_a_page=0.2) as server, visiting(server.url) as (client, tasks):
        result = await tasks.resume(client, kept).wait(60, on_state=states.append)

    assert text_of(result) == "the report of 2026: 12 pages, written in 2 attempt(s)"
    assert min(state.variables["page"] for state in states) >= 4
    assert not any("attempt 2" in message and "page 1 of" in message for message in _messages(states))


def _messages(states: list[TaskState]) -> list[str]:
    return [state.status_message or "" for state in states]


async def test_it_says_where_it_is_and_what_it_can_and_does_it(tmp_path: Path) -> None:
    ada = Person(name="Ada")
    async with made_run(tmp_path, "tried.db") as (program, url), visiting(url, ada) as (client, tasks):
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == {"build_report", "sign_report", "print_report"}
        assert all(f"{tool}(year)" in program.said for tool in tools)
        signed = await client.call_tool("sign_report", {"year": 2026})
        printed = await client.call_tool("print_report", {"year": 2026})
        report = await started(client, tasks, "build_report", {"year": 2026})
        await until(lambda: _is_writing(report))

    assert text_of(signed) == "the report of 2026, signed by Ada"
    assert printed.is_error
    assert "out of paper" in text_of(printed)
    assert (tmp_path / "tried.db").exists()
    assert str(tmp_path / "tried.db") in program.said
    assert str(program.pid) in program.said


async def _is_writing(handle: Handle) -> bool:
    state = await handle.status()
    return state.status_message == "writing page 1 of 12, attempt 1" and state.progress is not None


@pytest.mark.parametrize("at_work", [False, True])
async def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path, *, at_work: bool) -> None:
    async with made_run(tmp_path) as (program, url):
        if at_work:
            async with visiting(url) as (client, tasks):
                report = await started(client, tasks, "build_report", {"year": 2026})
                await until(lambda: _is_writing(report))
        code = await program.end(signal.SIGINT)

    assert (code, "Traceback" in program.said) == (0, False), program.said


async def test_it_finds_another_port_where_its_own_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8000))
            taken.listen()
        except OSError:
            pass  # another has it, which is as good
        async with made_run(tmp_path) as (_, url), visiting(url) as (client, _):
            assert len((await client.list_tools()).tools) == 3

    assert ":8000/" not in url
