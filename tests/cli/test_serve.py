"""What `perdure serve` says, whether that is true, and who is let in where. The servers are shared by several
tests, none of which ends them.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from perdure.cli.serve.banner import banner
from perdure.cli.serve.command import ServeOptions
from perdure.cli.serve.servers import sample_server
from perdure.mcp.tool import DurableTool
from perdure.operating import Operator
from perdure.runtime import Function
from perdure.storage import StorageInfo, open_storage
from perdure.storage.registry import redact_url
from perdure.tasks import Status

from ..conditions import wait_until
from ..feeds.fake_server.process import fake_process
from ..mcp.raw_clients import Client2025, Client2026
from ..mcp.tool_helpers import text_of
from ..storage.engines import new_url
from ..test_examples import Person, running, sampled, started, visiting
from .serve_process import (
    DASHBOARD_TOKEN,
    LONG_REPORT,
    TOKEN,
    Background,
    anyone,
    content_of,
    in_background,
    is_writing,
    pasted,
    snippet_in,
)

pytestmark = pytest.mark.anyio

OPTIONS = ServeOptions()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Generator[Background]:
    """As it is without options, but for the file."""
    folder = tmp_path_factory.mktemp("plain")
    with in_background(folder, "--url", f"sqlite:///{folder / 'tried.db'}") as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Generator[Background]:
    """Where others can reach it."""
    with in_background(
        tmp_path_factory.mktemp("guarded"),
        host="0.0.0.0",  # noqa: S104 - the point of it
        environment={"PERDURE_TOKEN": TOKEN},
    ) as server:
        yield server


@pytest.fixture(scope="module")
def two_tokens(tmp_path_factory: pytest.TempPathFactory) -> Generator[Background]:
    """With a token for callers, and another for who may look, at an address that is not called localhost."""
    folder = tmp_path_factory.mktemp("two_tokens")
    options = ("--read-only", "--token", TOKEN, "--allowed-host", "tasks.example")
    token = {"PERDURE_DASHBOARD_TOKEN": DASHBOARD_TOKEN}
    with in_background(folder, *options, host="127.0.0.2", environment=token) as server:
        yield server


# What it says


async def test_it_says_where_it_is_and_what_it_can_and_does_it(plain: Background) -> None:
    ada = Person(name="Ada")
    async with visiting(plain.url, ada) as (client, tasks):
        tools = {tool.name for tool in (await client.list_tools()).tools}
        signed = await client.call_tool("sign_report", {"year": 2026})
        printed = await client.call_tool("print_report", {"year": 2026})
        report = await started(client, tasks, "build_report", LONG_REPORT)
        await wait_until(lambda: is_writing(report), seconds=30)
        await report.cancel()
    async with await open_storage(f"sqlite:///{plain.file}") as storage:
        unprinted = (await Operator(storage).tasks(name="print_report", limit=1)).tasks

    reports = [
        "build_report", "sign_report", "approve_report", "archive_report", "print_report", "mail_report"
    ]  # fmt: skip
    feeds = {"recent_posts", "shared_links"}
    assert tools == {*reports, *feeds, "read_feeds"}
    assert all(f"{tool}(" in plain.output for tool in tools)
    assert f"    durable     {', '.join([*reports, 'read_feeds'])}\n" in plain.output
    assert "    not durable recent_posts, shared_links\n" in plain.output
    assert text_of(signed) == "the 2026 report is signed by Ada"
    assert printed.is_error
    assert "out of paper" in text_of(printed)
    assert [row.display_status for row in unprinted] == ["failed"]
    assert f"storage     {plain.log.with_name('tried.db')}   (durable)" in plain.output
    assert plain.log.with_name("tried.db").exists()
    assert f"kill -9 {plain.pid}" in plain.output
    assert plain.url in plain.output


async def test_it_promises_that_tasks_survive_where_the_next_process_finds_them(
    on_engine: str, tmp_path: Path
) -> None:
    url = await new_url(on_engine, tmp_path)
    hosted = sample_server(url, OPTIONS, simulated=True)
    async with await open_storage(url) as storage:
        output = banner(OPTIONS, hosted, "http://127.0.0.1:8000", storage.name, await storage.info(), {})
    place = str(tmp_path / "tasks.db") if on_engine == "sqlite" else redact_url(url)
    assert (f"    storage     {place}   (durable)\n" in output) == (on_engine != "memory")
    assert ("(durable)" in output, "kill -9" in output) == ((on_engine != "memory"),) * 2
    password = urlsplit(url).password
    assert password is None or password not in output


@pytest.mark.parametrize(
    ("durable", "others", "lines"),
    [
        (
            (),
            (),
            "    durable     none; write @tasks.durable below @server.tool()\n\n",
        ),
        (("a", "b"), (), "    durable     a, b\n\n"),
        (
            ("a",),
            tuple("cdefghijklmn"),
            "    durable     a\n    not durable c, d, e, f, g, h, i, j, k, l and 2 more\n\n",
        ),
    ],
)
def test_it_shows_every_durable_tool_and_the_first_of_the_others(
    durable: tuple[str, ...], others: tuple[str, ...], lines: str
) -> None:
    hosted = sample_server("memory:", OPTIONS, simulated=True)
    mark = DurableTool(function=print, run=Function(name="a", handler=print))
    tools = {**dict.fromkeys(durable, mark), **dict.fromkeys(others)}
    info = StorageInfo(is_shared=False)
    assert lines in banner(OPTIONS, hosted, "http://127.0.0.1:8000", "memory", info, tools)


async def test_its_snippets_connect(plain: Background, tmp_path: Path) -> None:
    await _snippets_connect(plain, tmp_path, token=False)


async def test_its_snippets_connect_with_a_token_that_they_do_not_print(
    guarded: Background, tmp_path: Path
) -> None:
    await _snippets_connect(guarded, tmp_path, token=True)
    assert TOKEN not in guarded.output


async def _snippets_connect(server: Background, folder: Path, *, token: bool) -> None:
    desktop = json.loads(next(line for line in server.output.splitlines() if "mcpServers" in line))
    printed = await _pasted(server, folder, snippet_in(server.output))
    assert re.search(r"TaskWasCancelled: task \w+ was cancelled\n", printed), printed
    (entry,) = desktop["mcpServers"].values()
    assert entry["command"] == "npx"
    assert entry["args"][:3] == ["-y", "mcp-remote", server.url]
    assert ("env" in entry) == token
    inspector = f"npx @modelcontextprotocol/inspector@latest --transport http --server-url {server.url}"
    assert inspector in server.output
    assert ("--header" in server.output) == token


async def _pasted(server: Background, folder: Path, lines: str) -> str:
    """Return what `python -m asyncio` prints of these lines. The report that they request is cancelled after
    five pages, which is longer than an HTTP client waits by default.
    """
    process = await pasted(folder, lines)
    async with await open_storage(f"sqlite:///{server.file}") as storage:
        operator = Operator(storage)

        async def is_cancelled() -> bool:
            assert process.returncode is None, await process.communicate()
            found = await operator.tasks(statuses=[Status.WORKING], name="build_report")
            writing = [
                row for row in found.tasks if not row.is_cancelling and (row.progress_fraction or 0) >= 5 / 12
            ]
            for row in writing:
                await operator.cancel(row.locator, row.task_id)
            return bool(writing)

        await wait_until(is_cancelled, seconds=60)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out
    return out.decode()


# Where it is


async def test_it_finds_another_port_where_its_own_is_taken_and_needs_no_extra_without_a_dashboard(
    tmp_path: Path,
) -> None:
    code = "import sys; sys.modules['jinja2'] = None; from perdure.cli import main; main()"
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8000))
            taken.listen()
        except OSError:
            pass  # another has it, which is as good
        async with running(tmp_path, "-c", code, "serve", "--no-dashboard") as program, anyone() as browser:
            await program.wait_for_output("Press Ctrl+C to stop.")
            endpoint = re.search(r"http://127\.0\.0\.1:\d+/mcp", program.output)
            assert endpoint is not None, program.output
            async with visiting(endpoint[0]) as (client, _):
                assert (await client.list_tools()).tools
            root = endpoint[0].removesuffix("/mcp")
            assert (await browser.get(f"{root}/")).status_code == 404
            assert (await browser.get(f"{root}/health")).status_code == 200

    assert ":8000/" not in endpoint[0]
    assert "dashboard  " not in program.output


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("127.0.0.2", 200),
        ("localhost", 200),
        ("[::1]", 200),
        ("tasks.example", 200),  # by which a proxy passes it on
        ("evil.example", 421),
    ],
)
async def test_at_another_address_of_loopback_it_answers_to_its_own_names(
    two_tokens: Background, name: str, status: int
) -> None:
    """With a port and without, as a browser leaves out the usual one."""
    async with anyone(DASHBOARD_TOKEN) as visitor, anyone(TOKEN) as caller:
        for port in ("", ":8000"):
            named = {"Host": f"{name}{port}"}
            page = await visitor.get(f"{two_tokens.root}/tasks", headers=named)
            listed = await caller.post(
                two_tokens.url,
                json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
                headers={
                    **named,
                    "accept": "application/json, text/event-stream",
                    "Origin": f"http://{name}{port}",
                },
            )
            assert page.status_code == status
            assert (listed.status_code == 421) == (status == 421), listed.text
            assert listed.status_code != 403, listed.text


# Tokens


async def test_beyond_this_machine_every_call_and_page_needs_the_token(guarded: Background) -> None:
    async with anyone() as browser:
        assert (await browser.get(guarded.root + "/health")).json() == {"status": "ok"}
        assert TOKEN not in (await browser.get(guarded.root + "/")).text
        assert (await browser.get(guarded.root + "/tasks")).status_code != 200
        assert (await browser.post(guarded.url, json={})).status_code == 401
    async with Client2026(guarded.url, token="another") as stranger:  # noqa: S106
        assert (await stranger.send("tools/list")).status == 401
    async with Client2026(guarded.url, token=TOKEN) as friend, Client2025(guarded.url, token=TOKEN) as older:
        task_id = await friend.start("build_report", {"year": 2026, "seconds": 0})
        await friend.until(task_id, "completed")
        listed = (await older.send("tasks/list")).result["tasks"]
    async with anyone(TOKEN) as bearer:
        assert (await bearer.get(guarded.root + "/tasks")).status_code == 200

    assert task_id in [task["taskId"] for task in listed]
    assert "   (token required)\n" in guarded.output


async def test_a_token_of_the_dashboard_opens_that_alone_and_the_other_one_the_server_alone(
    two_tokens: Background,
) -> None:
    for token, sees, calls in ((DASHBOARD_TOKEN, 200, 401), (TOKEN, 401, 200)):
        async with anyone(token) as browser, Client2026(two_tokens.url, token=token) as client:
            assert (await browser.get(two_tokens.root + "/tasks")).status_code == sees
            assert (await client.send("tools/list")).status == calls
    assert TOKEN not in two_tokens.output
    assert DASHBOARD_TOKEN not in two_tokens.output
    assert f"dashboard   {two_tokens.root}/   (read-only, separate token)\n" in two_tokens.output


# What is the server's, and not the dashboard's


PROBED = ("oauth-protected-resource/mcp", "oauth-authorization-server", "openid-configuration")


async def test_a_slash_behind_the_servers_path_leads_to_the_server(
    plain: Background, guarded: Background
) -> None:
    for server, token in ((plain, None), (guarded, TOKEN)):
        async with anyone(token) as caller:
            sent = await caller.post(f"{server.url}/", json={})
        assert sent.status_code == 307, sent.text
        assert sent.headers["location"] == server.url


async def test_a_client_that_looks_for_authorization_is_not_sent_to_the_login(
    plain: Background, guarded: Background
) -> None:
    async with anyone() as client:
        for server in (plain, guarded):
            for name in PROBED:
                answer = await client.get(f"{server.root}/.well-known/{name}", headers={"accept": "*/*"})
                assert (answer.status_code, answer.text) == (404, "Not Found")
        assert (await client.post(f"{guarded.url}/", json={})).status_code == 401


# The dashboard


async def test_the_dashboard_shows_the_tasks_of_the_server_beside_it(plain: Background) -> None:
    async with visiting(plain.url) as (client, _), anyone() as browser:
        await client.call_tool("print_report", {"year": 2026})
        page = await browser.get(plain.root + "/tasks")
        rebound = await browser.get(plain.root + "/tasks", headers={"Host": "evil.example"})

    assert page.status_code == 200
    assert "print_report" in page.text
    assert rebound.status_code == 421
    assert f"dashboard   {plain.root}/\n" in plain.output


# Bluesky instead of the samples


async def test_without_the_sample_feeds_bluesky_is_read_and_made_up_people_are_left_alone(
    plain: Background, tmp_path: Path
) -> None:
    """Two servers on one file, of which one makes up its people."""
    url = f"sqlite:///{plain.log.with_name('tried.db')}"
    async with visiting(plain.url) as (client, _):
        made_up = content_of(await client.call_tool("read_feeds", {"accounts": ["ada.example"]}))
    async with fake_process() as fake:
        dids: list[str] = await fake.order("populate", accounts=2, posts=5, every=60_000_000)
        (tmp_path / "feeds.toml").write_text(f'[bluesky]\nservice = "{fake.url}"\npds = "{fake.url}"\n')
        async with (
            sampled(tmp_path, "--no-dashboard", "--no-sample-feeds", "--url", url) as server,
            visiting(server.url) as (client, _),
        ):
            found = content_of(await client.call_tool("read_feeds", {"accounts": dids}))

    assert found == {"accounts": 2, "items": made_up["items"] + 10}
