"""`perdure serve`, as a real process: killed, stopped, refused, reached with and without a token, and with a
server of one's own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp_types import CallToolResult

from perdure.mcp.client import ClientTasks, Handle

from .feeds.fake.process import fake_process
from .mcp.wire import Core, Modern
from .rows import row
from .runtime.replicas import until
from .test_examples import (
    EXAMPLES,
    SERVING,
    Person,
    Program,
    Served,
    free_port,
    running,
    sampled,
    started,
    text_of,
    visiting,
)

pytestmark = pytest.mark.anyio

TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - the point is that it is not told
REPORT = {"year": 2026, "seconds": 4}
LONG_REPORT = {"year": 2026}


async def has_page(handle: Handle, page: int) -> bool:
    return (await handle.status()).variables.get("page", 0) >= page


async def is_writing(handle: Handle) -> bool:
    state = await handle.status()
    return state.status_message == "writing page 1 of 12, attempt 1" and state.progress is not None


@asynccontextmanager
async def anyone() -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=30) as client:
        yield client


def root_of(server: Served) -> str:
    return server.url.removesuffix("/mcp")


# Being killed


@row(97)
async def test_a_report_is_finished_from_its_checkpoint_when_the_server_was_killed(tmp_path: Path) -> None:
    async with sampled(tmp_path) as server:
        async with visiting(server.url) as (client, tasks):
            handle = await started(client, tasks, "build_report", REPORT)
            kept = handle.save()
            await until(lambda: has_page(handle, 4))
        await server.program.end(signal.SIGKILL)
    async with sampled(tmp_path) as server, visiting(server.url) as (client, tasks):
        result = await tasks.resume(client, kept).wait(60)

    begun = re.fullmatch(
        r"the report of 2026: 12 pages, written in 2 attempt\(s\), the last from page (\d+)", text_of(result)
    )
    assert begun is not None, result
    assert int(begun[1]) > 4


async def test_feeds_are_read_to_their_end_when_the_server_was_killed_meanwhile(tmp_path: Path) -> None:
    async with sampled(tmp_path, "--no-dashboard") as server:
        async with visiting(server.url) as (client, tasks):
            handle = await started(client, tasks, "read_feeds", {})
            kept = handle.save()
            await until(lambda: _has_read(handle, 3))
        await server.program.end(signal.SIGKILL)
    async with sampled(tmp_path, "--no-dashboard") as server, visiting(server.url) as (client, tasks):
        first = await tasks.resume(client, kept).wait(90)
        again = await client.call_tool("read_feeds", {"accounts": ["ada.example"]})
        posts = await client.call_tool("recent_posts", {"limit": 200})
        links = await client.call_tool("shared_links", {"limit": 3})

    found, later = content_of(first), content_of(again)
    assert found["accounts"] == 8
    assert found["items"] > 300  # a day of eight people
    assert 0 <= later["items"] - found["items"] <= 8  # what they posted meanwhile
    uris = [post["uri"] for post in content_of(posts)["result"]]
    assert len(uris) == len(set(uris)) == 200
    most_shared = content_of(links)["result"]
    assert len(most_shared) == 3
    assert len(most_shared[0]["sharers"]) > 1
    assert all(name.endswith(".example") for name in most_shared[0]["sharers"])


def content_of(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None, result
    return result.structured_content


async def _has_read(handle: Handle, accounts: int) -> bool:
    progress = (await handle.status()).progress
    return progress is not None and progress["done"] >= accounts


# What it says, and whether that is true


async def test_it_says_where_it_is_and_what_it_can_and_does_it(tmp_path: Path) -> None:
    ada = Person(name="Ada")
    url = f"sqlite:///{tmp_path / 'tried.db'}"
    async with sampled(tmp_path, "--url", url) as server, visiting(server.url, ada) as (client, tasks):
        said = server.program.said
        tools = {tool.name for tool in (await client.list_tools()).tools}
        signed = await client.call_tool("sign_report", {"year": 2026})
        printed = await client.call_tool("print_report", {"year": 2026})
        report = await started(client, tasks, "build_report", LONG_REPORT)
        await until(lambda: is_writing(report))

    reports, feeds = {"build_report", "sign_report", "print_report"}, {"recent_posts", "shared_links"}
    assert tools == reports | feeds | {"read_feeds"}
    assert all(f"{tool}(" in said for tool in tools)
    assert text_of(signed) == "the report of 2026, signed by Ada"
    assert printed.is_error
    assert "out of paper" in text_of(printed)
    assert (tmp_path / "tried.db").exists()
    assert str(tmp_path / "tried.db") in said
    assert f"kill -9 {server.program.pid}" in said
    assert server.url in said


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_its_snippets_connect(tmp_path: Path, token: str | None) -> None:
    options = [] if token is None else ["--token", token]
    async with sampled(tmp_path, *options) as server:
        said = server.program.said
        desktop = json.loads(next(line for line in said.splitlines() if "mcpServers" in line))
        snippet = re.search(r"Python:\n((?: {4}.*\n)+)", said)
        assert snippet is not None, said
        lines = textwrap.dedent(snippet[1]).replace('"build_report"', '"print_report"')
        printed = await _run_snippet(tmp_path, lines)

    assert "out of paper" in printed
    assert TOKEN not in said
    (entry,) = desktop["mcpServers"].values()
    assert entry["command"] == "npx"
    assert entry["args"][:3] == ["-y", "mcp-remote", server.url]
    assert ("env" in entry) == (token is not None)
    assert f"npx @modelcontextprotocol/inspector@latest --transport http --server-url {server.url}" in said
    assert ("--header" in said) == (token is not None)


async def _run_snippet(directory: Path, lines: str) -> str:
    """What it prints, as `python -m asyncio` would run it."""
    code = f"import asyncio\nasync def main():\n{textwrap.indent(lines, '    ')}\nasyncio.run(main())\n"
    (directory / "snippet.py").write_text(code)
    environment = {**os.environ, "PERDURE_TOKEN": TOKEN}
    async with running(directory, "snippet.py", environment=environment) as program:
        assert await program.ended() == 0, program.said
    return program.said


# The end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at_work", [False, True])
async def test_a_signal_ends_it_in_good_order(
    tmp_path: Path, number: signal.Signals, *, at_work: bool
) -> None:
    async with sampled(tmp_path) as server:
        if at_work:
            async with visiting(server.url) as (client, tasks):
                report = await started(client, tasks, "build_report", LONG_REPORT)
                await until(lambda: is_writing(report))
        code = await server.program.end(number)

    _ended_well(server.program, code)
    assert f"{number.name}: finishing what runs" in server.program.said


async def test_it_ends_though_clients_are_connected_and_wait(tmp_path: Path) -> None:
    """One is told of each change of a task, another has a session open, a third looks at the dashboard."""
    pushed = ClientTasks(push=True)
    async with sampled(tmp_path) as server, anyone() as browser, Core(server.url) as core:
        await core.send("tools/list")
        async with browser.stream("GET", root_of(server) + "/events/tasks") as events:
            assert events.status_code == 200
            async with Client(server.url, extensions=[pushed]) as client:
                report = await started(client, pushed, "build_report", LONG_REPORT)
                await until(lambda: is_writing(report))
                code = await server.program.end(signal.SIGTERM)

    _ended_well(server.program, code)


def _ended_well(program: Program, code: int) -> None:
    assert code == 0, program.said
    assert "Traceback" not in program.said, program.said
    assert "stopped; what was not finished goes on" in program.said


async def test_a_report_that_was_stopped_goes_on_at_the_next_start_and_has_lost_no_attempt(
    tmp_path: Path,
) -> None:
    async with sampled(tmp_path, "--no-dashboard") as server:
        async with visiting(server.url) as (client, tasks):
            handle = await started(client, tasks, "build_report", {"year": 2026, "seconds": 24})
            kept = handle.save()
            await until(lambda: has_page(handle, 2), seconds=30)
        await server.program.end(signal.SIGTERM)
    async with sampled(tmp_path, "--no-dashboard") as server, visiting(server.url) as (client, tasks):
        result = await tasks.resume(client, kept).wait(60)

    assert text_of(result).startswith("the report of 2026: 12 pages, written in 1 attempt(s), the last from ")


# Ports


async def test_it_finds_another_port_where_its_own_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8000))
            taken.listen()
        except OSError:
            pass  # another has it, which is as good
        async with running(tmp_path, *SERVING, "--no-dashboard") as program:
            await program.until_said("Ctrl-C stops it.")
            endpoint = re.search(r"http://127\.0\.0\.1:\d+/mcp", program.said)
            assert endpoint is not None, program.said
            async with visiting(endpoint[0]) as (client, _):
                assert (await client.list_tools()).tools

    assert ":8000/" not in endpoint[0]


def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(tmp_path, "--port", port, because=f"port {port} of 127.0.0.1 is taken; name another")


# Tokens


def refused(directory: Path, *arguments: str, because: str, hide: str | None = None) -> None:
    """It ends at once, with one sentence, and makes no file."""
    before = sorted(directory.iterdir())
    hiding = "" if hide is None else f"sys.modules[{hide!r}] = None; "
    code = f"import sys; {hiding}from perdure.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-B", "-c", code, "serve", *arguments],
        cwd=directory,
        env={**os.environ, "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2, ended
    assert because in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(directory.iterdir()) == before


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])  # noqa: S104 - refused
def test_what_others_can_reach_needs_a_token(tmp_path: Path, host: str) -> None:
    refused(tmp_path, "--host", host, because=f"{host} can be reached by others")


def test_a_token_that_no_header_can_carry_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "--token", "pass wörd", because="the token must be of ASCII letters")


async def test_beyond_this_machine_every_call_and_page_needs_the_token(tmp_path: Path) -> None:
    environment = {**os.environ, "PERDURE_TOKEN": TOKEN}
    port = free_port()
    at_all = ("--host", "0.0.0.0", "--port", str(port))  # noqa: S104 - the point of it
    async with running(tmp_path, *SERVING, *at_all, environment=environment) as program:
        await program.until_said("Ctrl-C stops it.")
        server = Served(program, port)
        async with anyone() as browser:
            assert (await browser.get(root_of(server) + "/health")).json() == {"status": "ok"}
            assert TOKEN not in (await browser.get(root_of(server) + "/")).text
            assert (await browser.get(root_of(server) + "/tasks")).status_code != 200
            assert (await browser.post(server.url, json={})).status_code == 401
        async with Modern(server.url, token="another") as stranger:  # noqa: S106
            assert (await stranger.send("tools/list")).status == 401
        async with Modern(server.url, token=TOKEN) as friend, Core(server.url, token=TOKEN) as older:
            task_id = await friend.start("build_report", {"year": 2026, "seconds": 0})
            await friend.until(task_id, "completed")
            listed = (await older.send("tasks/list")).result["tasks"]
        bearer = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"})
        async with bearer:
            assert (await bearer.get(root_of(server) + "/tasks")).status_code == 200

    assert [task["taskId"] for task in listed] == [task_id]
    assert TOKEN not in program.said


# The dashboard


async def test_the_dashboard_shows_the_tasks_of_the_server_beside_it(tmp_path: Path) -> None:
    async with sampled(tmp_path) as server, visiting(server.url) as (client, _), anyone() as browser:
        await client.call_tool("print_report", {"year": 2026})
        page = await browser.get(root_of(server) + "/tasks")
        rebound = await browser.get(root_of(server) + "/tasks", headers={"Host": "evil.example"})

    assert page.status_code == 200
    assert "print_report" in page.text
    assert rebound.status_code >= 400
    assert f"dashboard   {root_of(server)}/" in server.program.said


async def test_a_read_only_dashboard_says_so(tmp_path: Path) -> None:
    async with sampled(tmp_path, "--read-only") as server, anyone() as browser:
        assert (await browser.get(root_of(server) + "/")).status_code == 200

    assert f"dashboard   {root_of(server)}/   (read-only)" in server.program.said


async def test_without_the_dashboard_there_is_only_the_server(tmp_path: Path) -> None:
    async with sampled(tmp_path, "--no-dashboard") as server, anyone() as browser:
        assert (await browser.get(root_of(server) + "/")).status_code == 404
        assert (await browser.get(root_of(server) + "/health")).status_code == 200

    assert "dashboard  " not in server.program.said


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    refused(
        tmp_path, hide="jinja2", because="install the dashboard with: pip install 'perdure[web]', or leave"
    )


async def test_without_the_extra_it_serves_all_the_same_if_no_dashboard_is_asked_for(tmp_path: Path) -> None:
    code = "import sys; sys.modules['jinja2'] = None; from perdure.cli import main; main()"
    async with running(
        tmp_path, "-c", code, "serve", "--no-dashboard", "--port", str(free_port())
    ) as program:
        await program.until_said("Ctrl-C stops it.")


# A server of one's own

OWN_SERVER = '''
import anyio
from mcp.server import MCPServer, Server
from perdure import Task, Tasks
from perdure.runtime import App

tasks = Tasks("sqlite:///own.db")
server = MCPServer("kitchen", **tasks.attach())
without = MCPServer("without tasks")
app = App("sqlite:///own.db")
text = "hello"
unreachable = MCPServer("far", **Tasks("postgresql://user:hunter2@127.0.0.1:1/db").attach())


@server.tool()
@tasks.durable()
async def brew(cups: int, task: Task) -> str:
    """Brew."""
    return f"{cups} cups of coffee"
'''

OWN_FASTMCP = '''
from fastmcp import FastMCP
from perdure import Task, Tasks
from perdure.mcp.fastmcp import attach

tasks = Tasks("memory:")
server = FastMCP("kitchen")
attach(tasks, server)


@server.tool()
@tasks.durable()
async def brew(cups: int, task: Task) -> str:
    """Brew."""
    return f"{cups} cups of coffee"
'''

OWN_LOW_LEVEL = """
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from perdure import Task, Tasks

tasks = Tasks("memory:")


@tasks.durable()
async def brew(cups: int, task: Task) -> str:
    return f"{cups} cups of coffee"


async def list_tools(context, params):
    schema = {"type": "object", "properties": {"cups": {"type": "integer"}}}
    return ListToolsResult(tools=[Tool(name="brew", input_schema=schema)])


async def call(context, params):
    return CallToolResult(content=[TextContent(text=str(await brew(**params.arguments)))])


server = Server("kitchen", on_list_tools=list_tools, on_call_tool=call)
tasks.install(server)
"""


@pytest.mark.parametrize(
    "code", [OWN_SERVER, OWN_FASTMCP, OWN_LOW_LEVEL], ids=["sdk", "fastmcp", "low-level"]
)
async def test_a_server_of_ones_own_is_served_with_a_dashboard_on_its_own_storage(
    tmp_path: Path, code: str
) -> None:
    (tmp_path / "own.py").write_text(code)
    async with sampled(tmp_path, "own:server") as server, visiting(server.url) as (client, tasks):
        handle = await started(client, tasks, "brew", {"cups": 2})
        assert text_of(await handle.wait(30)) == "2 cups of coffee"
        async with anyone() as browser:
            page = await browser.get(root_of(server) + "/tasks")
        code_of_end = await server.program.end(signal.SIGTERM)

    assert "brew" in page.text
    assert "kitchen, served by perdure" in server.program.said
    assert "build_report" not in server.program.said
    _ended_well(server.program, code_of_end)
    assert not (tmp_path / "perdure.db").exists()


DECLARED = OWN_LOW_LEVEL.replace("install(server)", "install(server, authenticated=True)")
"""Whose user checks callers, in a transport that is not the one that is served."""


@pytest.mark.parametrize("code", [OWN_SERVER, DECLARED], ids=["sdk", "low-level"])
async def test_a_token_guards_a_server_of_ones_own_that_lets_in_everybody(tmp_path: Path, code: str) -> None:
    (tmp_path / "own.py").write_text(code)
    async with (
        sampled(tmp_path, "own:server", "--token", TOKEN) as server,
        Modern(server.url) as stranger,
        Modern(server.url, token=TOKEN) as friend,
    ):
        assert (await stranger.send("tools/list")).status == 401
        assert (await friend.send("tools/list")).status == 200


async def test_a_server_with_tokens_of_its_own_keeps_to_them(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text((EXAMPLES / "authenticated.py").read_text())
    ada_token = "ada-secret"  # noqa: S105 - of the example
    async with sampled(tmp_path, "own:server", "--token", TOKEN) as server:
        async with Modern(server.url, token=TOKEN) as stranger, Modern(server.url, token=ada_token) as ada:
            assert (await stranger.send("tools/list")).status == 401
            assert (await ada.send("tools/list")).status == 200
        async with anyone() as browser:
            assert (await browser.get(root_of(server) + "/tasks")).status_code != 200


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (["own"], "'own' names no server; write it as module:server"),
        (["nowhere:server"], "there is no module 'nowhere'"),
        (["own:nothing"], "the module own has no 'nothing'"),
        (["own:text"], "own:text is a str, neither an MCPServer nor a FastMCP server"),
        (["own:app"], "run it with: perdure worker own:app"),
        (["own:tasks"], "own:tasks is the Tasks of a server; name the server itself"),
        (["own:without"], "own:without has no durable tasks; make it with MCPServer("),
        (["own:server", "--url", "memory:"], "--url is for the sample tools"),
        (["own:server", "--no-sample-feeds"], "--sample-feeds is for the sample tools"),
        (["own:unreachable"], "cannot"),
        (["--url", "mysql://there"], "its scheme names no engine"),
        (["--url", "sqlite:////nowhere/at/all.db"], "create /nowhere/at"),
        (["--host", "no.such.host.invalid", "--token", TOKEN], "--host no.such.host.invalid is no address"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else "",  # pyright: ignore
)
def test_what_cannot_be_served_is_told_in_one_sentence(
    tmp_path: Path, arguments: list[str], because: str
) -> None:
    (tmp_path / "own.py").write_text(OWN_SERVER)
    refused(tmp_path, *arguments, because=because)


# Bluesky instead of the samples


async def test_without_the_sample_feeds_bluesky_is_read_and_made_up_people_are_left_alone(
    tmp_path: Path,
) -> None:
    async with sampled(tmp_path, "--no-dashboard") as server, visiting(server.url) as (client, _):
        made_up = content_of(await client.call_tool("read_feeds", {"accounts": ["ada.example"]}))
    async with fake_process() as fake:
        dids: list[str] = await fake.order("populate", accounts=2, posts=5, every=60_000_000)
        (tmp_path / "feeds.toml").write_text(f'[bluesky]\nservice = "{fake.url}"\npds = "{fake.url}"\n')
        async with (
            sampled(tmp_path, "--no-dashboard", "--no-sample-feeds") as server,
            visiting(server.url) as (client, _),
        ):
            found = content_of(await client.call_tool("read_feeds", {"accounts": dids}))

    assert found == {"accounts": 2, "items": made_up["items"] + 10}
