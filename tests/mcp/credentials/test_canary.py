"""Nothing secret is in anything that a process writes: output, log, spans, storage and pages."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path

import httpx2
import pytest

from perdure.storage import open_storage
from perdure.tasks import Snapshot
from perdure.tasks.encryption import EncryptedPart, Keyring, new_key
from perdure.tasks.task_record import encode_task
from perdure.tasks.task_snapshot import TASKS

from ...cli.command import TIMEOUT, environment
from ...cli.serve_process import anyone
from ...fork_server import PIPE, spawn
from ...markers import in_test_all, row
from ...test_examples import Served, running, sampled
from ..raw_clients import Client2025, Client2026, Json
from .canary_server import CANARY, ENDS, TOKEN
from .servers import FRAMEWORKS, Framework, ServerKind

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


@asynccontextmanager
async def served(
    folder: Path, variables: dict[str, str], *, has_worker: bool = False
) -> AsyncGenerator[tuple[Served, Callable[[], str]]]:
    """Serve the tools, perhaps with a worker of their own; yield the server, and what its processes said."""
    if not has_worker:
        async with sampled(folder, "own:server", "-v", variables=variables) as server:
            yield server, lambda: server.program.output
        return
    worker = ("-m", "perdure.cli", "worker", "own:server", "-v")
    async with (
        sampled(folder, "own:server", "-v", "--no-work", variables=variables) as server,
        running(folder, *worker, environment={**os.environ, **variables}) as working,
    ):
        yield server, lambda: server.program.output + working.output


CASES = [
    pytest.param("sdk", False, id="sdk"),
    pytest.param("sdk", True, id="sdk-worker"),
    pytest.param("fastmcp", False, id="fastmcp"),
    pytest.param("fastmcp", True, id="fastmcp-worker", marks=in_test_all),
    pytest.param("low-level", False, id="low-level", marks=in_test_all),
    pytest.param("low-level", True, id="low-level-worker", marks=in_test_all),
]
EVERY_KIND = pytest.mark.parametrize("kind", [*FRAMEWORKS, "low-level"])


def write_server(folder: Path, kind: ServerKind, encrypt: EncryptedPart) -> None:
    (folder / "own.py").write_text(SERVER.format(root=str(ROOT), framework=kind, encrypt=encrypt))


def variables_with(key: str) -> dict[str, str]:
    return {"PERDURE_ENCRYPTION_KEY": key, "PERDURE_DASHBOARD_TOKEN": DASHBOARD_TOKEN}


@row(122, 123)
@pytest.mark.parametrize(("kind", "has_worker"), CASES)
async def test_no_contents_of_a_task_are_in_anything_that_a_process_writes(
    kind: ServerKind, tmp_path: Path, *, has_worker: bool
) -> None:
    write_server(tmp_path, kind, "everything")
    key = new_key()
    async with served(tmp_path, variables_with(key), has_worker=has_worker) as (server, said):
        async with Caller(server.url) as client:
            ended = await ended_tasks(client, kind)
            ended.append(await handed_over_task(client))
            left = await client.fill("result")
            assert (await client.get(left))["inputRequests"]["name"]["params"][
                "message"
            ] == f"{CANARY}question"
        pages = await pages_of(server, [*ended, left])
        await server.program.end(signal.SIGKILL)  # so that what it had not yet written to its file is there
    assert found_in(said()) == set()
    assert "perdure.run" in said()  # the spans
    assert "raised an unexpected exception" in said()
    assert "ValueError; its text is not logged, because the task is encrypted" in said()
    assert [found_in(page) for page in pages] == [set()] * len(pages)
    assert stored_in(tmp_path) == set()
    for command in ("list", f"show {ended[0]}", f"show {left}", "stats"):
        assert found_in(await said_by_command(tmp_path, "", "tasks", *command.split())) == set()
    for command in (f"tasks show {ended[2]}", f"tasks show {left}", f"tasks watch {ended[0]}", "doctor"):
        assert found_in(await said_by_command(tmp_path, key, *command.split(), "--json")) == set()
    copied = await said_by_command(tmp_path, "", "copy", f"sqlite:///{tmp_path / 'canary.db-copy'}")
    assert found_in(copied) | stored_in(tmp_path) == set()
    found = await found_with(key, tmp_path / "canary.db")
    assert await found_with(key, tmp_path / "canary.db-copy") == found
    assert found >= {  # and all of it was there
        f"{CANARY}{field}"
        for field in (
            *("argument", "meta", "variable", "checkpoint", "progress", "log", "question", "answer"),
            *("result", "tool error", "unexpected", "message", "again", "retry", "token", "header"),
            *(("context log", "extra") if kind == "fastmcp" else ("data",)),  # of which FastMCP makes another
            *(() if kind == "low-level" else ("claim",)),
        )
    }  # fmt: skip


@in_test_all
@row(122, 123)
@EVERY_KIND
async def test_no_contents_of_a_task_are_in_what_is_written_after_a_kill_or_without_the_key(
    kind: ServerKind, tmp_path: Path
) -> None:
    write_server(tmp_path, kind, "everything")
    key, written = new_key(), list[str]()

    async def command(*arguments: str, keys: str = key, code: int = 0) -> None:
        written.append(await said_by_command(tmp_path, keys, *arguments, code=code))
        written.append(await said_by_command(tmp_path, keys, *arguments, "--json", code=code))

    async with served(tmp_path, variables_with(key)) as (server, said):
        async with Caller(server.url) as client:
            recovered, cancelled = await client.fill("result"), await client.fill("result")
            answered = await client.start("approve")
            await client.until(answered, "input_required")
        await server.program.end(signal.SIGKILL)
        written.append(said())

    async with served(tmp_path, variables_with(new_key())) as (server, said):
        await server.program.wait_for_output("which this process does not have")
        written += await pages_of(server, [recovered, answered], is_ready=False)
        await server.program.end(signal.SIGKILL)
        written.append(said())

    for keys in ("", new_key()):
        for words in ("tasks list", f"tasks show {recovered}", "tasks stats", "doctor"):
            await command(*words.split(), keys=keys)
        for words in (f"tasks cancel {cancelled}", f"tasks answer {answered} name={CANARY}answer"):
            written.append(await said_by_command(tmp_path, keys, *words.split(), code=1))
    await command("tasks", "cancel", cancelled)
    await command("tasks", "answer", answered, "--value", f'"{CANARY}wrong"', code=2)
    written.append(
        await said_by_command(tmp_path, key, "tasks", "answer", answered, f"name={CANARY}answer", "--json")
    )
    async with served(tmp_path, variables_with(key)) as (server, said):
        await server.program.wait_for_output("was lost")
        async with Caller(server.url) as client:
            await client.until(answered, "completed", "failed")
            await client.until(recovered, "input_required")
            await client.update(recovered, {"name": ANSWER})
            done = await client.until(recovered, "completed", "failed")
            assert f"{CANARY}result" in str(done)
        watching = ("-m", "perdure.cli", "tasks", "watch", "--json")
        variables = {**environment(f"sqlite:///{tmp_path / 'canary.db'}"), **variables_with(key)}
        async with running(tmp_path, *watching, environment=variables) as program:
            await program.wait_for_output(recovered)
            await program.end(signal.SIGINT)
            written.append(program.output)
        await command("tasks", "watch", recovered)
        await server.program.end(signal.SIGKILL)
        written.append(said())

    assert [found_in(each) for each in written] == [set()] * len(written)
    assert stored_in(tmp_path) == set()
    assert await found_with(key, tmp_path / "canary.db") >= {
        f"{CANARY}{field}" for field in ("argument", "question", "answer", "result", "unexpected")
    }


async def ended_tasks(client: Caller, kind: ServerKind) -> list[str]:
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
    if kind == "sdk":
        await client.call("fill", {"text": {f"{CANARY}wrong argument": 1}, "end": "result"})
        await client.call("resolved", {})
    await client.call("fail", {}, declared=False)
    async with Client2025(client._url, token=TOKEN) as core:  # pyright: ignore[reportPrivateUsage]
        await core.send("tasks/list")
        await core.send("tasks/result", {"taskId": await core.start("fail")})
    return [*ended, cancelled]


async def handed_over_task(client: Caller) -> str:
    """Call a tool as a client without tasks does, whose model answers the question; return the task's id."""

    async def call(tool: str, arguments: Json) -> Json:
        return (await client.call(tool, arguments, declared=False, capabilities={})).result

    result = await call("fill", {"text": f"{CANARY}argument", "end": "result"})
    task_id: str = result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"]
    shown = await call("answer_task", {"task_id": task_id, "question": "name"})
    assert f"{CANARY}question" in str(shown)
    await call("answer_task", {"task_id": task_id, "question": "name", **ANSWER})
    assert f"{CANARY}result" in str(await call("wait_for_task", {"task_id": task_id}))
    return task_id


async def pages_of(served: Served, task_ids: list[str], *, is_ready: bool = True) -> list[str]:
    """Return what the dashboard and the probes answer, and what each page receives first on its stream."""
    root = served.url.removesuffix("/mcp")
    async with anyone() as browser:
        browser.base_url = root
        browser.headers["accept"] = "text/html"
        form = await browser.get("/login")
        csrf = re.search(r'name="csrf_token" value="([^"]+)"', form.text)
        assert csrf is not None
        await browser.post("/login", data={"csrf_token": csrf[1], "token": DASHBOARD_TOKEN})
        paths = ["/", "/tasks", "/workers", *(f"/tasks/find?id={task_id}" for task_id in task_ids)]
        pages = [await browser.get(path, follow_redirects=True) for path in [*paths, "/health"]]
        assert [page.status_code for page in pages] == [200] * len(pages)
        ready = await browser.get("/ready")
        assert (ready.status_code == 200) == is_ready
        streams = [
            unescape(path) for page in pages for path in re.findall(r'data-events="([^"]+)"', page.text)
        ]
        assert len(streams) >= len(paths) - len(task_ids)  # the page of a finished task receives no changes
        events = await asyncio.gather(*(first_event(browser, path) for path in streams))
    return [page.text for page in [*pages, ready]] + list(events)


async def first_event(browser: httpx2.AsyncClient, path: str) -> str:
    event = ""
    async with browser.stream("GET", path) as response:
        async for line in response.aiter_lines():
            event += f"{line}\n"
            if "data:" in event and not line:
                return event
    raise AssertionError(f"{path} ended without an event: {event}")


async def said_by_command(folder: Path, keys: str, *arguments: str, code: int = 0) -> str:
    variables = {**environment(f"sqlite:///{folder / 'canary.db'}"), "PERDURE_ENCRYPTION_KEY": keys}
    process = await spawn("-m", "perdure.cli", *arguments, env=variables, stdout=PIPE, stderr=PIPE)
    out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    assert process.returncode == code, (out, err)
    return (out + err).decode()


async def found_with(key: str, file: Path) -> set[str]:
    """Return which of the secret texts a process with the key reads in the storage."""
    async with await open_storage(f"sqlite:///{file}") as storage:
        records = await storage.page(TASKS, limit=100, now=0)
    tasks = [Snapshot.from_record(record, Keyring([key])).task for record in records]
    return {each for task in tasks for each in found_in(encode_task(task).decode())}


@row(122)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_no_credentials_are_in_anything_that_a_process_writes(
    framework: Framework, tmp_path: Path
) -> None:
    """Without `encrypt="everything"`, contents are stored and shown, and credentials are not."""
    write_server(tmp_path, framework, "credentials")
    key = new_key()
    async with served(tmp_path, variables_with(key)) as (server, said):
        async with Caller(server.url) as client:
            done, left = await client.fill("unexpected"), await client.fill("result")
            await client.update(done, {"name": ANSWER})
            await client.until(done, "completed")
        pages = await pages_of(server, [done, left])
        await server.program.end(signal.SIGKILL)
    shown = [await said_by_command(tmp_path, key, "tasks", "show", task_id) for task_id in (done, left)]
    secret = {f"{CANARY}{field}" for field in ("token", "header", "claim")}
    assert not secret & (found_in("".join([*pages, *shown])) | stored_in(tmp_path))
    assert not secret & found_in(said())
    assert f"{CANARY}unexpected" in said()
