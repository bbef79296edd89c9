"""`perdure serve module:server`: servers of one's own, of each kind, with a dashboard on their storage."""

from __future__ import annotations

import asyncio
import html
import os
import re
import signal
from pathlib import Path

import pytest

from perdure.storage import open_storage
from perdure.storage.kit.servers.process import free_port
from perdure.tasks import Snapshot, Status
from perdure.tasks.task_snapshot import TASKS

from ..conditions import wait_until
from ..fork_server import PIPE, STDOUT, spawn
from ..mcp.raw_clients import Client2026
from ..mcp.tool_helpers import text_of
from ..test_examples import EXAMPLES, SERVING, Person, Served, running, sampled, started, visiting
from ..web.tool_dashboard import csrf_token_in, path_of
from .command import run
from .serve_process import TOKEN, anyone, ended_well
from .user_servers import DECLARED, OWN_FASTMCP, OWN_LOW_LEVEL, OWN_SERVER, PAUSING

pytestmark = pytest.mark.anyio

ELSEWHERE = "127.0.0.2"
"""An address of this machine that is not called localhost."""
KINDS = pytest.mark.parametrize(
    "code", [OWN_SERVER, OWN_FASTMCP, OWN_LOW_LEVEL], ids=["sdk", "fastmcp", "low-level"]
)


def root_of(server: Served) -> str:
    return server.url.removesuffix("/mcp")


@KINDS
async def test_a_server_of_ones_own_is_served_where_it_is_asked_to_with_a_dashboard_on_its_own_storage(
    tmp_path: Path, code: str
) -> None:
    (tmp_path / "own.py").write_text(code)
    port = free_port()
    options = ("own:server", "--host", ELSEWHERE, "--port", str(port))
    async with running(tmp_path, *SERVING, *options) as program:
        await program.wait_for_output("Press Ctrl+C to stop.")
        root = f"http://{ELSEWHERE}:{port}"
        async with visiting(f"{root}/mcp") as (client, tasks), anyone() as browser:
            task = await started(client, tasks, "brew", {"cups": 2})
            assert text_of(await task.wait(30)) == "2 cups of coffee"
            page = await browser.get(f"{root}/tasks")
            rebound = {"Host": f"evil.example:{port}"}
            assert (await browser.post(f"{root}/mcp", json={}, headers=rebound)).status_code == 421
            assert (await browser.post(f"{root}/mcp/", json={})).headers["location"] == f"{root}/mcp"
        code_of_end = await program.end(signal.SIGTERM)

    assert "brew" in page.text
    assert "kitchen, served by perdure" in program.output
    durable = "brew, cellar_age" if code is OWN_FASTMCP else "brew"
    assert f"    durable     {durable}\n" in program.output
    assert f"    process     {program.pid}\n" in program.output
    assert "build_report" not in program.output
    ended_well(program, code_of_end)
    assert not (tmp_path / "perdure.db").exists()


async def test_a_task_of_a_mounted_server_is_listed_by_the_full_name_of_its_tool(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_FASTMCP.replace('"memory:"', '"sqlite:///own.db"'))
    url = f"sqlite:///{tmp_path / 'own.db'}"
    async with sampled(tmp_path, "own:server", "--no-dashboard") as server, Client2026(server.url) as client:
        task_id = await client.start("cellar_age", {"years": 12})
        ended = await client.until(task_id, "completed")
        listed, shown = await asyncio.gather(run(url, "list"), run(url, "show", task_id))

    assert text_of(ended["result"]) == "12 years old"
    assert re.search(rf"^{task_id}  completed .* cellar_age$", listed.out, re.MULTILINE), listed.out
    assert re.search(r"^name +cellar_age$", shown.out, re.MULTILINE), shown.out
    assert "12 years old" in shown.out


@pytest.mark.parametrize("code", [OWN_SERVER, OWN_FASTMCP], ids=["sdk", "fastmcp"])
@pytest.mark.parametrize("token", [None, TOKEN], ids=["open", "guarded"])
async def test_an_exception_of_ones_own_route_is_logged_once_with_its_traceback(
    tmp_path: Path, code: str, token: str | None
) -> None:
    (tmp_path / "own.py").write_text(code)
    options = () if token is None else ("--token", token)
    async with sampled(tmp_path, "own:server", *options) as server:
        async with anyone(token) as client:
            assert (await client.get(f"{root_of(server)}/broken")).status_code == 500
        await server.program.wait_for_output("KeyError: 'no such cup'")
        await server.program.end(signal.SIGTERM)
    assert "ERROR request GET '/broken' failed\nTraceback" in server.program.output
    assert "in broken\n" in server.program.output
    assert server.program.output.count("KeyError: 'no such cup'") == 1


@pytest.mark.parametrize("code", [OWN_SERVER, DECLARED], ids=["sdk", "low-level"])
async def test_a_token_protects_a_server_of_ones_own_that_has_no_authentication(
    tmp_path: Path, code: str
) -> None:
    (tmp_path / "own.py").write_text(code)
    async with (
        sampled(tmp_path, "own:server", "--token", TOKEN, "--no-dashboard") as server,
        Client2026(server.url) as stranger,
        Client2026(server.url, token=TOKEN) as friend,
        anyone() as client,
    ):
        assert (await stranger.send("tools/list")).status == 401
        assert (await friend.send("tools/list")).status == 200
        assert (await client.get(f"{root_of(server)}/elsewhere")).status_code == 401
        sought = await client.get(f"{root_of(server)}/.well-known/oauth-protected-resource")
        assert sought.status_code == 404  # and not that authorization is needed to learn how to get it


async def test_a_server_with_tokens_of_its_own_keeps_to_them(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text((EXAMPLES / "authenticated.py").read_text())
    ada_token = "ada-secret"  # noqa: S105 - of the example
    async with sampled(tmp_path, "own:server", "--token", TOKEN) as server:
        async with (
            Client2026(server.url, token=TOKEN) as stranger,
            Client2026(server.url, token=ada_token) as ada,
        ):
            assert (await stranger.send("tools/list")).status == 401
            assert (await ada.send("tools/list")).status == 200
        async with anyone() as browser:
            assert (await browser.get(root_of(server) + "/tasks")).status_code != 200
        async with anyone(TOKEN) as operator:
            empty = html.unescape((await operator.get(root_of(server) + "/tasks")).text)
        snippet = re.search(r'^Python, in ".*":\n((?:.+\n)+\n)', server.program.output, re.MULTILINE)
        assert snippet is not None
        (tmp_path / "pasted").write_text(snippet[1])
        with (tmp_path / "pasted").open("rb") as pasted:
            process = await spawn(
                *("-m", "asyncio"),
                cwd=tmp_path,
                env={**os.environ, "ACCESS_TOKEN": ada_token},
                stdin=pasted,
                stdout=PIPE,
                stderr=STDOUT,
            )
        printed = (await process.communicate())[0].decode()

    assert "name='archive'" in printed
    assert "First set ACCESS_TOKEN to an access token that this server accepts.\n" in server.program.output
    assert 'os.environ["ACCESS_TOKEN"]' in empty  # the page shows how to create the first task, too
    assert 'client.call_tool("archive", {...})' in empty


async def test_what_the_dashboard_cancels_is_kept_for_as_long_as_the_server_keeps_results(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(PAUSING)
    ada = Person(name="Ada")  # who can be asked, and is not there to answer
    async with sampled(tmp_path, "own:server") as server, visiting(server.url, ada) as (client, tasks):
        client_task = await started(client, tasks, "brew", {})

        async def asks() -> bool:
            return (await client_task.status()).status == "input_required"

        await wait_until(asks, seconds=30)
        async with anyone() as browser:
            browser.base_url = root_of(server)
            browser.headers["accept"] = "text/html"
            page = await path_of(browser, client_task.id)
            key = csrf_token_in((await browser.get(page)).text)
            await browser.post(f"{page}/cancel", data={"csrf_token": key})
    async with await open_storage(f"sqlite:///{tmp_path / 'own.db'}") as storage:
        (record,) = await storage.page(TASKS, limit=10, now=0)

    task = Snapshot.from_record(record).task
    assert task.status is Status.CANCELLED
    assert task.finished_at is not None
    assert record.expires_at == task.finished_at + 14 * 86_400_000_000  # and not the usual week
