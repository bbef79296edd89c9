"""Every block of code on a page is run by a test.

Python that is a part of a program runs here, in a program that has what it names.
"""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.server import MCPServer

from perdure import ClientTasks, Tasks
from perdure.operating import Operator
from perdure.storage import open_storage
from perdure.storage.kit.servers.process import free_port
from perdure.testing import OWNER, SIMULATED_INTERVALS, SimulatedTime

from .conditions import wait_until
from .doc_pages.pages import DOCS, blocks_of, every_page, is_seen, name_of, runnable_pages
from .doc_pages.shell import terminal
from .mcp.raw_clients import is_open
from .mcp.tool_helpers import text_of
from .test_examples import sampled
from .web.tool_dashboard import served

pytestmark = pytest.mark.anyio

TOKEN = "a-token-for-one-test"  # noqa: S105 - the server of the test is the only one that knows it
ELSEWHERE = {
    "guides/deployment.md": "tests/fastmcp/test_mounted_app.py",
    "guides/writing-an-engine.md": "tests/storage/test_engine_guide.py",
}
"""Pages whose Python another test runs."""
HERE = {"guides/clients.md": 2, "reference/web.md": 1}
"""How many parts of a page run here."""
OTHERS = {
    ("CONTRIBUTING.md", "text"): [
        "test_project.py::test_the_map_of_the_code_has_the_layers_that_import_linter_checks"
    ],
    ("docs/guides/deployment.md", "nginx"): [
        "cli/test_proxy_guide.py::test_calls_forms_and_open_pages_work_through_the_proxy"
    ],
    ("docs/guides/fastmcp.md", "diff"): [
        "fastmcp/test_guide.py::test_an_existing_server_and_one_mounted_in_it_get_tasks_by_the_change",
        "fastmcp/test_guide.py::test_a_plain_function_is_refused_as_quoted_and_becomes_a_task_by_the_change",
        "fastmcp/test_guide.py::test_the_import_of_either_extension_works_in_the_same_server",
    ],
    ("docs/reference/dynamodb.md", "json"): [
        "storage/test_dynamodb_table_setup.py::test_the_template_in_the_docs_makes_the_same_table"
    ],
    ("docs/reference/lifecycle.md", "mermaid"): [
        "tasks/test_lifecycle.py::test_the_diagram_in_the_docs_is_drawn_from_the_table"
    ],
    ("docs/trust/protocols.md", "text"): [
        "mcp/test_transcripts.py::test_the_transcript_of_2026_07_28_is_what_is_exchanged",
        "mcp/test_transcripts.py::test_the_transcript_of_2025_11_25_is_what_is_exchanged",
    ],
}
"""The blocks of a page that are not Python and that no reader of the page types, and the test of each."""


def parts_of(page: str) -> list[str]:
    """Return the Python of a page that is not a file of the reader."""
    return [each.text for each in blocks_of(DOCS / page) if each.language == "python" and each.title is None]


def run(part: str, **names: Any) -> dict[str, Any]:  # noqa: ANN401 - as in the program of a reader
    """Run a part with these names; return all names that it has then."""
    exec(compile(part, "page", "exec"), names)  # noqa: S102 - it is ours
    return names


def pages_with_parts() -> Iterator[str]:
    return (name_of(page) for page in every_page() if parts_of(name_of(page)))


def test_the_python_of_every_page_runs_here_or_elsewhere() -> None:
    counted = {page: len(parts_of(page)) for page in pages_with_parts() if page not in ELSEWHERE}
    assert counted == HERE
    files = {
        name_of(page)
        for page in set(every_page()) - set(runnable_pages())
        if any(block.language == "python" and block.title for block in blocks_of(page))
    }
    assert files <= set(ELSEWHERE)
    assert all((DOCS.parent / test).exists() for test in ELSEWHERE.values())


def other_blocks(page: Path) -> list[str]:
    """Return the languages of the blocks that `Reader` skips and that are not Python, one for each block."""
    is_followed = page in runnable_pages()
    followed = [("sh", False), ("text", False), ("toml", True)] if is_followed else []
    return [
        each.language
        for each in blocks_of(page)
        if each.language != "python" and (each.language, each.title is not None) not in followed
    ]


def test_every_block_that_is_not_python_is_typed_by_a_reader_or_has_a_test() -> None:
    root = DOCS.parent
    pages = [*every_page(), *root.glob("*.md")]
    found = Counter(
        (page.relative_to(root).as_posix(), each) for page in pages for each in other_blocks(page)
    )
    assert found == {block: len(tests) for block, tests in OTHERS.items()}
    for name in (name for tests in OTHERS.values() for name in tests):
        file, _, test = name.partition("::")
        assert f"def {test}(" in (root / "tests" / file).read_text("utf-8")


@pytest.mark.parametrize("page", [*every_page(), *DOCS.parent.glob("*.md")], ids=lambda page: page.name)
def test_no_fence_is_overlooked(page: Path) -> None:
    """A fence that is indented, or made of other characters, would not be found by `blocks_of`."""
    fences = re.findall(r"^[ >]*(?:```|~~~)", page.read_text("utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks_of(page))


# Clients


async def test_a_client_with_a_transport_of_its_own_calls_a_server_with_a_token(tmp_path: Path) -> None:
    (server,) = [each for each in blocks_of(DOCS / "guides" / "clients.md") if each.title == "server.py"]
    (tmp_path / "server.py").write_text(server.text, "utf-8")
    call_with_token = run(parts_of("guides/clients.md")[0])["call_with_token"]
    async with sampled(tmp_path, "server:server", "--token", TOKEN, "--no-dashboard") as place:
        await call_with_token(place.url, TOKEN)
        with pytest.raises(ExceptionGroup):
            await call_with_token(place.url, TOKEN[:-1])
    async with await open_storage(f"sqlite:///{tmp_path / 'tasks.db'}") as storage:
        (task,) = (await Operator(storage).tasks(limit=2)).tasks
    assert (task.name, task.display_status) == ("count", "completed")


async def test_a_long_call_is_handed_over_with_the_text_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    part = parts_of("guides/clients.md")[1]
    assert part.count("=45") == 1
    tasks: Tasks = run(part.replace("=45", "=0.2"), Tasks=Tasks)["tasks"]  # seconds
    server: MCPServer[Any] = MCPServer("counting", log_level="ERROR", **tasks.attach())
    ending = asyncio.Event()

    @server.tool()
    @tasks.durable
    async def count(upto: int) -> int:
        await ending.wait()
        return upto

    async with Client(server) as client:
        text = text_of(await client.call_tool("count", {"upto": 6}))
        found = re.search(r"'wait_for_task' with \{\"task_id\": \"(\S+)\"\}", text)
        assert found, text
        ending.set()
        result = await client.call_tool("wait_for_task", {"task_id": found[1]})
    assert text_of(result) == "6"
    page = (DOCS / "guides" / "clients.md").read_text("utf-8")
    (shown,) = [
        each for each in re.findall(r"(?:^    .+\n)+", page, re.MULTILINE) if "has not finished" in each
    ]
    assert is_seen(textwrap.dedent(shown).replace("6f0c", ""), text), text


# Input


def test_an_approval_of_the_guide_may_take_weeks() -> None:
    """With the defaults, the question would have to be answered within the ttl of the task, one day."""
    (file,) = [each for each in blocks_of(DOCS / "guides" / "input.md") if each.title == "trip.py"]
    module, end, _ = file.text.partition("\nanyio.run(main)\n")
    assert end
    names = run(module)
    time = SimulatedTime()
    assert time.run(approve_after_four_weeks, names, time) == "approved: Oslo"


async def approve_after_four_weeks(names: dict[str, Any], time: SimulatedTime) -> str:
    answer = {"action": "accept", "content": {"book": True}}
    tasks: Tasks = names["tasks"]
    calls = ClientTasks()
    with tasks.overridden("memory:", owner=OWNER, clock=time.clock, **SIMULATED_INTERVALS):
        async with Client(names["server"], extensions=[calls], elicitation_callback=names["ask"]) as client:
            task = await calls.start(client, "approve_trip", {"city": "Oslo"})
            await anyio.sleep(28 * 24 * 3600)
            await task.answer({"approval": answer})
            return text_of(await task.wait())


# Servers


async def test_the_commands_for_access_from_other_machines_start_a_server_with_a_random_token(
    tmp_path: Path,
) -> None:
    (letters,) = [each for each in blocks_of(DOCS / "guides" / "operating.md") if each.title == "letters.py"]
    (tmp_path / "letters.py").write_text(letters.text, "utf-8")
    page = (DOCS / "guides" / "deployment.md").read_text("utf-8")
    (commands,) = re.findall(r"(?:^    .*PERDURE_TOKEN=.*\n)(?:^    .+\n)+", page, re.MULTILINE)
    assert commands.count("10.0.0.5") == 1
    port = free_port()
    own = textwrap.dedent(commands).replace("10.0.0.5", f"0.0.0.0 --port {port} &")
    async with terminal(tmp_path) as shell:
        await shell.run(own)
        await wait_until(lambda: is_open(port))
        address = f"http://127.0.0.1:{port}/tasks"
        await shell.run(f'curl --silent --head -H "Authorization: Bearer $PERDURE_TOKEN" {address}')
        assert "HTTP/1.1 200 OK" in shell.look()
        await shell.run(f"curl --silent --head {address}")
        assert "HTTP/1.1 401 Unauthorized" in shell.look()


async def test_the_dashboard_can_be_mounted_in_another_application(tmp_path: Path) -> None:
    (part,) = parts_of("reference/web.md")
    headers = {"Host": "tasks.example.org", "Authorization": f"Bearer {TOKEN}"}
    async with await open_storage(f"sqlite:///{tmp_path / 'tasks.db'}") as storage:
        app = run(part, storage=storage, token=TOKEN)["app"]
        async with served(app) as address, httpx2.AsyncClient(base_url=address, headers=headers) as browser:
            page = await browser.get("/dashboard/tasks")
            assert page.status_code == 200
            assert 'href="/dashboard/' in page.text
            elsewhere = await browser.get("/dashboard/tasks", headers={"Host": "other.example.org"})
            assert elsewhere.status_code == 421
