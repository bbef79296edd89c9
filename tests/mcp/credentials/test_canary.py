"""Nothing secret is in anything that a process writes: output, log, spans, storage and pages."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest

from perdure.storage import open_storage
from perdure.tasks import Snapshot
from perdure.tasks.encryption import Keyring, new_key
from perdure.tasks.stored_task import TASKS
from perdure.tasks.task_record import encode_task

from ...cli.command import PATIENCE, environment
from ...cli.serve_process import anyone
from ...fork_server import PIPE, spawn
from ...markers import row
from ...test_examples import Served, sampled
from ..raw_clients import Client2025, Client2026, Json
from .canary_server import CANARY, ENDS, TOKEN
from .servers import FRAMEWORKS, Framework

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
SERVER = """
import sys
sys.path.insert(0, {root!r})
from tests.mcp.credentials.canary_server import make
server = make({framework!r}, {encrypt!r})
"""
DASHBOARD_TOKEN = "a-token-for-operators"  # noqa: S105
ANSWER: Json = {"action": "accept", "content": {"name": f"{CANARY}answer"}}


def found_in(text: str) -> set[str]:
    """Return which of the secret texts occur."""
    return set(re.findall(rf"{CANARY}[a-z ]+", text))


def stored_in(folder: Path) -> set[str]:
    return {
        each for path in folder.glob("canary.db*") for each in found_in(path.read_bytes().decode("latin-1"))
    }


class Caller(Client2026):
    """A caller with secrets in its headers and in the metadata of its requests."""

    def __init__(self, url: str) -> None:
        super().__init__(url, token=TOKEN)
        self._headers["x-request-id"] = f"{CANARY}header"

    async def __aenter__(self) -> Caller:
        return self

    async def fill(self, end: str) -> str:
        """Start a task and answer its question; return its id."""
        meta = {"example/secret": f"{CANARY}meta"}
        arguments = {"text": f"{CANARY}argument", "end": end}
        answer = await self.send("tools/call", {"name": "fill", "arguments": arguments, "_meta": meta})
        task_id: str = answer.result["taskId"]
        await self.until(task_id, "input_required")
        return task_id


@row(122, 123)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_no_contents_of_a_task_are_in_anything_that_a_process_writes(
    framework: Framework, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(SERVER.format(root=str(ROOT), framework=framework, encrypt="everything"))
    key = new_key()
    variables = {"PERDURE_ENCRYPTION_KEY": key, "PERDURE_DASHBOARD_TOKEN": DASHBOARD_TOKEN}
    async with sampled(tmp_path, "own:server", "-v", variables=variables) as served:
        async with Caller(served.url) as client:
            ended = await ended_tasks(client, framework)
            left = await client.fill("result")
            assert (await client.get(left))["inputRequests"]["name"]["params"][
                "message"
            ] == f"{CANARY}question"
        pages = await pages_of(served, [*ended, left])
        await served.program.end(signal.SIGKILL)  # so that what it had not yet written to its file is there
    assert found_in(served.program.said) == set()
    assert "perdure.run" in served.program.said  # the spans
    assert "raised an unexpected exception" in served.program.said
    assert "ValueError; its text is not logged, because the task is encrypted" in served.program.said
    assert [found_in(page) for page in pages] == [set()] * len(pages)
    assert stored_in(tmp_path) == set()
    for keys in ("", key):
        for command in ("list", *(f"show {task_id}" for task_id in (ended[0], ended[2], left)), "stats"):
            assert found_in(await said_by_command(tmp_path, keys, "tasks", *command.split())) == set()
        assert found_in(await said_by_command(tmp_path, keys, "doctor")) == set()
    assert await found_with(key, tmp_path) >= {  # and all of it was there
        f"{CANARY}{field}"
        for field in (
            *("argument", "meta", "variable", "checkpoint", "progress", "log", "question", "answer"),
            *("result", "tool error", "unexpected", "message", "again", "retry", "token", "header", "claim"),
            *(("data",) if framework == "sdk" else ()),  # FastMCP makes another error of it
        )
    }  # fmt: skip


async def ended_tasks(client: Caller, framework: Framework) -> list[str]:
    """Let tasks end in each way, and refuse calls; return the ids of the tasks."""
    ended: list[str] = []
    for end in ENDS:
        task_id = await client.fill(end)
        await client.update(task_id, {"name": ANSWER})
        task = await client.until(task_id, "completed", "failed")
        assert CANARY in str(task), task
        ended.append(task_id)
    ended.append(await client.start("in_a_thread"))
    await client.until(ended[-1], "completed", "failed")
    cancelled = await client.fill("result")
    await client.cancel(cancelled)
    await client.until(cancelled, "cancelled")
    wrong = await client.update(await client.fill("result"), {"name": {"action": f"{CANARY}wrong"}})
    assert "error" in wrong.message
    if framework == "sdk":
        await client.call("fill", {"text": {f"{CANARY}wrong argument": 1}, "end": "result"})
        await client.call("resolved", {})
    await client.call("fail", {}, declared=False)
    async with Client2025(client._url, token=TOKEN) as core:  # pyright: ignore[reportPrivateUsage]
        await core.send("tasks/list")
        await core.send("tasks/result", {"taskId": await core.start("fail")})
    return [*ended, cancelled]


async def pages_of(served: Served, task_ids: list[str]) -> list[str]:
    root = served.url.removesuffix("/mcp")
    async with anyone() as browser:
        browser.base_url = root
        browser.headers["accept"] = "text/html"
        form = await browser.get("/login")
        csrf = re.search(r'name="csrf_token" value="([^"]+)"', form.text)
        assert csrf is not None
        await browser.post("/login", data={"csrf_token": csrf[1], "token": DASHBOARD_TOKEN})
        paths = ["/", "/tasks", "/workers", *(f"/tasks/find?id={task_id}" for task_id in task_ids)]
        pages = [await browser.get(path, follow_redirects=True) for path in paths]
        pages += [await browser.get(path) for path in ("/health", "/ready")]
    assert [page.status_code for page in pages] == [200] * len(pages)
    return [page.text for page in pages]


async def said_by_command(folder: Path, keys: str, *arguments: str) -> str:
    variables = {**environment(f"sqlite:///{folder / 'canary.db'}"), "PERDURE_ENCRYPTION_KEY": keys}
    process = await spawn("-m", "perdure.cli", *arguments, env=variables, stdout=PIPE, stderr=PIPE)
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, err
    return (out + err).decode()


async def found_with(key: str, folder: Path) -> set[str]:
    """Return which of the secret texts a process with the key reads in the storage."""
    async with await open_storage(f"sqlite:///{folder / 'canary.db'}") as storage:
        records = await storage.page(TASKS, limit=100, now=0)
    tasks = [Snapshot.from_record(record, Keyring([key])).task for record in records]
    return {each for task in tasks for each in found_in(encode_task(task).decode())}


@row(122)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_no_credentials_are_in_anything_that_a_process_writes(
    framework: Framework, tmp_path: Path
) -> None:
    """Without `encrypt="everything"`, contents are stored and shown, and credentials are not."""
    (tmp_path / "own.py").write_text(
        SERVER.format(root=str(ROOT), framework=framework, encrypt="credentials")
    )
    key = new_key()
    variables = {"PERDURE_ENCRYPTION_KEY": key, "PERDURE_DASHBOARD_TOKEN": DASHBOARD_TOKEN}
    async with sampled(tmp_path, "own:server", "-v", variables=variables) as served:
        async with Caller(served.url) as client:
            done, left = await client.fill("unexpected"), await client.fill("result")
            await client.update(done, {"name": ANSWER})
            await client.until(done, "completed")
        pages = await pages_of(served, [done, left])
        await served.program.end(signal.SIGKILL)
    shown = [await said_by_command(tmp_path, key, "tasks", "show", task_id) for task_id in (done, left)]
    secret = {f"{CANARY}{field}" for field in ("token", "header", "claim")}
    assert not secret & (found_in("".join([*pages, *shown])) | stored_in(tmp_path))
    assert not secret & found_in(served.program.said)
    assert f"{CANARY}unexpected" in served.program.said
