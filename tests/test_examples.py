"""Each example runs as its docstring says, in a process of its own, and does what it promises."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from mcp.client import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitRequestParams, ElicitResult, TextResourceContents

from perdure.mcp.client import ClientTask, ClientTasks, TaskState
from perdure.storage.kit.servers.process import free_port

from .conditions import wait_until
from .feeds.fake_server.process import FakeProcess, fake_process
from .fork_server import PIPE, STDOUT, ForkedProcess, spawn
from .markers import row
from .mcp.raw_clients import Client2025, Client2026, is_open
from .mcp.tool_helpers import text_of

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
Mode: TypeAlias = Literal["auto", "legacy"]
BOTH = pytest.mark.parametrize("mode", ["auto", "legacy"])

SERVE = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
example = importlib.import_module(sys.argv[2])
exec(sys.argv[4])
example.server.run("streamable-http", port=int(sys.argv[3]))
"""
"""Runs the server of an example on another port than it would choose, after something else is done."""
ENDLESS = "import anyio, types; example.anyio = types.SimpleNamespace(sleep=lambda _: anyio.sleep_forever())"
"""Whatever takes an example a while never ends."""


# Processes


class Program:
    """A running program, and what it has said."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process
        self._reading = asyncio.create_task(self._read())
        self.output = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.output += line.decode()

    async def wait_for_output(self, text: str, seconds: float = 60) -> None:
        def met() -> bool:
            assert text in self.output or not self._reading.done(), self.output
            return text in self.output

        await wait_until(met, seconds=seconds)

    async def end(self, number: signal.Signals) -> int:
        """Send it a signal; how it ended."""
        self._process.send_signal(number)
        return await self.ended()

    async def ended(self, seconds: float = 60) -> int:
        code = await asyncio.wait_for(self._process.wait(), seconds)
        await self._reading
        return code


@asynccontextmanager
async def running(
    directory: Path, *arguments: str, environment: Mapping[str, str] = os.environ
) -> AsyncGenerator[Program]:
    """`python` with these arguments, in this directory; killed at the end of the block if it still runs."""
    unbuffered = {**environment, "PYTHONUNBUFFERED": "1"}
    process = await spawn(*arguments, cwd=directory, env=unbuffered, stdout=PIPE, stderr=STDOUT)
    program = Program(process)
    try:
        yield program
    finally:
        if process.returncode is None:
            process.kill()
        await program.ended()


async def until_open(program: Program, port: int) -> None:
    await wait_until(lambda: is_open(port), seconds=60)


class Served:
    """The server of an example, at work."""

    def __init__(self, program: Program, port: int) -> None:
        self.program = program
        self.url = f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def served(directory: Path, example: str, before: str = "") -> AsyncGenerator[Served]:
    port = free_port()
    async with running(directory, "-c", SERVE, str(EXAMPLES), example, str(port), before) as program:
        await until_open(program, port)
        yield Served(program, port)


# Clients


class Person:
    """Fills in what it is asked with this, and remembers what it was asked."""

    def __init__(self, **values: str | bool) -> None:
        self._values = values
        self.asked: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        schema: Mapping[str, Any] = getattr(params, "requested_schema", {})
        fields: dict[str, Any] = {name: self._values[name] for name in schema["properties"]}
        return ElicitResult(action="accept", content=fields)


@asynccontextmanager
async def visiting(
    target: str | StdioServerParameters, person: Person | None = None, mode: Mode = "auto"
) -> AsyncGenerator[tuple[Client, ClientTasks]]:
    tasks = ClientTasks()
    async with Client(target, extensions=[tasks], elicitation_callback=person, mode=mode) as client:
        yield client, tasks


async def started(client: Client, tasks: ClientTasks, tool: str, arguments: Mapping[str, Any]) -> ClientTask:
    return await tasks.start(client, tool, arguments)


# What there is


def test_every_example_is_tested_here_and_says_how_to_run_it() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for path in sorted(EXAMPLES.glob("*.py")):
        assert f'"{path.stem}' in here, path
        assert f"python examples/{path.name}" in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_does_nothing_when_it_is_imported(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))

    assert list(tmp_path.iterdir()) == []


# minimal.py


@BOTH
async def test_minimal_brews_over_stdin_and_stdout(tmp_path: Path, mode: Mode) -> None:
    path = EXAMPLES / "minimal.py"
    server = StdioServerParameters(command=sys.executable, args=[str(path)], cwd=tmp_path)
    seen: list[TaskState] = []
    async with visiting(server, mode=mode) as (client, tasks):
        many = await started(client, tasks, "brew", {"cups": 600})
        assert text_of(await client.call_tool("brew", {"cups": 1})) == "1 cups of coffee"
        task = await started(client, tasks, "brew", {"cups": 2})
        assert text_of(await task.wait(30, on_state=seen.append)) == "2 cups of coffee"
        await wait_until(lambda: _has_brewed(many, 2), seconds=30)
        await many.cancel()

    assert seen[-1].status == "completed"
    assert (tmp_path / "minimal.db").exists()


async def _has_brewed(task: ClientTask, cups: int) -> bool:
    match = re.fullmatch(r"brewing cup (\d+)", (await task.status()).status_message or "")
    return match is not None and int(match[1]) >= cups


# fastmcp_reports.py


@BOTH
async def test_fastmcp_reports_are_built_signed_and_printed(tmp_path: Path, mode: Mode) -> None:
    path = EXAMPLES / "fastmcp_reports.py"
    server = StdioServerParameters(command=sys.executable, args=[str(path)], cwd=tmp_path)
    person = Person(value="Ada")
    async with visiting(server, person, mode=mode) as (client, tasks):
        report = await started(client, tasks, "build_report", {"year": 2026})
        printed = await started(client, tasks, "print_on_paper", {"pages": 2})
        assert text_of(await printed.wait(30)) == "2 pages by printing"
        assert text_of(await report.wait(30)) == "Report 2026, signed by Ada"

    assert person.asked == ["Who signs it?"]
    assert (tmp_path / "fastmcp_reports.db").exists()


# authenticated.py


async def test_authenticated_keeps_ada_and_bob_apart(tmp_path: Path) -> None:
    ada_token, bob_token = "ada-secret", "bob-secret"
    async with (
        served(tmp_path, "authenticated") as server,
        Client2026(server.url, token=ada_token) as ada,
        Client2026(server.url, token=bob_token) as bob,
        Client2026(server.url, token="no" + "-secret") as stranger,
        Client2025(server.url, token=bob_token) as bob_of_2025,
    ):
        task_id = await ada.start("archive", {"folder": "letters"})
        assert (await bob.send("tasks/get", {"taskId": task_id})).code == -32602
        assert (await bob.cancel(task_id)).code == -32602
        assert (await bob_of_2025.send("tasks/list")).result["tasks"] == []
        assert (await stranger.send("tasks/get", {"taskId": task_id})).status == 401
        done = await ada.until(task_id, "completed")

    assert done["result"]["content"][0]["text"] == "letters is archived for ada"


async def test_authenticated_limits_each_user_to_ten_tasks(tmp_path: Path) -> None:
    bob_token, ada_token = "bob-secret", "ada-secret"
    async with (
        served(tmp_path, "authenticated", before=ENDLESS) as server,
        Client2026(server.url, token=bob_token) as bob,
        Client2026(server.url, token=ada_token) as ada,
    ):
        answers = await asyncio.gather(*(bob.call("archive", {"folder": f"{n}"}) for n in range(14)))
        assert (await ada.call("archive", {"folder": "a"})).result["resultType"] == "task"

    assert sorted("error" in answer.message for answer in answers) == [False] * 10 + [True] * 4


# elicitation.py


@BOTH
async def test_elicitation_asks_before_it_begins_and_again_in_the_middle(tmp_path: Path, mode: Mode) -> None:
    ada = Person(name="Ada", book=True)
    async with served(tmp_path, "elicitation") as server, visiting(server.url, ada, mode) as (client, _):
        result = await client.call_tool("book_trip", {"city": "Rome"})

    assert text_of(result) == "Ada travels to Rome for 80"
    assert ada.asked == ["Who travels?", "Ada, the trip to Rome costs 80. Book it?"]


@row(81)
async def test_elicitation_is_answered_after_a_restart(tmp_path: Path) -> None:
    asked, answers = Person(name="Ada"), Person(book=False)
    async with served(tmp_path, "elicitation") as server:
        async with visiting(server.url, asked) as (client, tasks):
            task = await started(client, tasks, "book_trip", {"city": "Rome"})
            await wait_until(lambda: _waits(task), seconds=30)
            kept = task.save()
        await server.program.end(signal.SIGKILL)
    async with served(tmp_path, "elicitation") as server, visiting(server.url, answers) as (client, tasks):
        result = await tasks.resume(client, kept).wait(60)

    assert text_of(result) == "Ada stays at home"
    assert (asked.asked, len(answers.asked)) == (["Who travels?"], 1)


async def _waits(task: ClientTask) -> bool:
    return (await task.status()).status == "input_required"


# workflow.py


@BOTH
async def test_workflow_asks_for_what_it_was_not_given_and_ships(tmp_path: Path, mode: Mode) -> None:
    clerk = Person(carrier="Falcon")
    order = {"customer": "Grace", "items": ["pen", "ink"]}
    async with served(tmp_path, "workflow") as server, visiting(server.url, clerk, mode) as (client, _):
        result = await client.call_tool("ship_order", order)

    assert not result.is_error, result
    assert "Falcon: 200 g to 5 Long Street" in str(result.structured_content)
    assert len(clerk.asked) == 1


# checkpoint.py


@row(62, 97)
async def test_checkpoint_resumes_counting_when_its_server_was_killed(tmp_path: Path) -> None:
    chapters: list[int] = []

    def note(state: TaskState) -> None:
        chapters.append((state.progress or {}).get("done", 0))

    async with served(tmp_path, "checkpoint") as server:
        async with visiting(server.url) as (client, tasks):
            task = await started(client, tasks, "count_words", {"chapters": 4})
            kept = task.save()
            await wait_until(lambda: _has_counted(task, 2), seconds=30)
        await server.program.end(signal.SIGKILL)
    async with served(tmp_path, "checkpoint") as server, visiting(server.url) as (client, tasks):
        result = await tasks.resume(client, kept).wait(60, on_state=note)

    assert result.structured_content == {"chapters": 4, "words": 1001 + 1002 + 1003 + 1004}
    assert min(chapters) >= 2


async def _has_counted(task: ClientTask, chapters: int) -> bool:
    return ((await task.status()).progress or {}).get("done", 0) >= chapters


# feeds.py


async def test_feeds_resumes_when_its_server_was_killed_and_shows_shared_links(
    tmp_path: Path,
) -> None:
    async with fake_process("--latency", "0.3") as fake:
        dids: list[str] = await fake.order("populate", accounts=6, posts=5, every=60_000_000)
        (tmp_path / "feeds.toml").write_text(f'[bluesky]\nservice = "{fake.url}"\npds = "{fake.url}"\n')
        async with served(tmp_path, "feeds") as server:
            async with visiting(server.url) as (client, tasks):
                task = await started(client, tasks, "ingest", {"accounts": dids})
                kept = task.save()
                await wait_until(lambda: _has_read(fake, 2), seconds=30)
            await server.program.end(signal.SIGKILL)
        async with served(tmp_path, "feeds") as server, visiting(server.url) as (client, tasks):
            result = await tasks.resume(client, kept).wait(120)
            assert result.structured_content == {"accounts": 6, "items": 30}
            links = await client.call_tool("shared_links", {"limit": 1})
            assert links.structured_content is not None
            (top_link,) = links.structured_content["result"]
            assert top_link["url"].startswith("https://example.com/")
            assert top_link["sharers"] == len(top_link["handles"]) == 6
            posts = await client.call_tool("posts", {"limit": 3})
            assert posts.structured_content is not None
            assert len(posts.structured_content["result"]) == 3
            (content,) = (await client.read_resource("feeds://links/today")).contents
            assert isinstance(content, TextResourceContents)
            assert content.text.startswith("6  https://example.com/")


async def _has_read(fake: FakeProcess, pages: int) -> bool:
    log = await fake.order("log")
    return sum(each["path"] == "app.bsky.feed.getAuthorFeed" for each in log) >= pages


# resuming_client.py

SERVING = ("-m", "perdure.cli", "serve")


@asynccontextmanager
async def sampled(
    directory: Path, *options: str, port: int | None = None, variables: Mapping[str, str] = {}
) -> AsyncGenerator[Served]:
    """`perdure serve` with its sample tools, at a port of its own."""
    port = port or free_port()
    command = (*SERVING, "--port", str(port), *options)
    async with running(directory, *command, environment={**os.environ, **variables}) as program:
        await program.wait_for_output("Press Ctrl+C to stop.")
        yield Served(program, port)


CLIENT = str(EXAMPLES / "resuming_client.py")


def _page(client: Program) -> int:
    """The last page that it has said to be written, if any."""
    return max((int(page) for page in re.findall(r"writing page (\d+) of 12", client.output)), default=0)


async def test_resuming_client_is_stopped_and_waits_again_for_the_same_report(tmp_path: Path) -> None:
    kept = tmp_path / "report.task"
    async with sampled(tmp_path, "--no-dashboard") as server:
        async with running(tmp_path, CLIENT, server.url, "5") as client:
            await wait_until(lambda: _page(client) >= 2, seconds=60)
            code = await client.end(signal.SIGINT)
            assert (code, "Traceback" in client.output) == (0, False), client.output
            assert "Stopped. The task keeps running." in client.output
        task, same = kept.read_text(), tmp_path / "same.task"
        same.hardlink_to(kept)  # stays when the client is done with it
        async with running(tmp_path, CLIENT, server.url) as again:
            assert await again.ended() == 0, again.output

    assert "Resuming the task" in again.output
    assert same.read_text() == task
    assert "2026 report: 12 pages, finished by attempt 1" in again.output
    assert "writing page 1 of 12" not in again.output
    assert not kept.exists()


async def test_resuming_client_gets_its_report_from_a_server_that_was_killed_meanwhile(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with sampled(tmp_path, "--no-dashboard", port=port) as server:
        async with running(tmp_path, CLIENT, server.url, "4") as client:
            await wait_until(lambda: _page(client) >= 3, seconds=60)
            os.kill(server.program.pid, signal.SIGSTOP)  # writes no page more, however long the rest takes
            await client.end(signal.SIGINT)
        await server.program.end(signal.SIGKILL)
    async with (
        sampled(tmp_path, "--no-dashboard", port=port) as server,
        running(tmp_path, CLIENT, server.url) as client,
    ):
        assert await client.ended() == 0, client.output

    assert "2026 report: 12 pages, finished by attempt 2" in client.output
