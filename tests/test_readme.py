"""The README: its files run as they are, and it names the pictures that are made."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from pathlib import Path

import pytest
from mcp.client import Client

from perdure.cli.tasks.render import task_table
from perdure.storage.kit.servers.process import free_port
from tools import crash_recording

from .conditions import wait_until
from .doc_pages.pages import Block, blocks_of, count_words
from .doc_pages.shell import terminal
from .markers import in_test_all
from .mcp.raw_clients import is_open
from .mcp.tool_helpers import text_of
from .test_examples import running, sampled
from .wheels import PLACE

pytestmark = pytest.mark.anyio

README = Path(__file__).parents[1] / "README.md"
MAX_WORDS = 900
MAX_LINES = 25
"""Of each server in the README."""
PICTURES = ["docs/images/dashboard-dark.png", "docs/images/dashboard-light.png", "docs/images/crash.svg"]
RESULT = "report-2026: 12 pages, finished by attempt 1"
ADDRESS = "http://127.0.0.1:8000/mcp"


def files() -> dict[str, Block]:
    return {block.title: block for block in blocks_of(README) if block.title is not None}


def commands() -> list[str]:
    """Return the commands of the README, which are indented, without their comments."""
    text = re.sub(r"^```.*?^```$", "", README.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [line.partition(" #")[0].strip() for line in re.findall(r"^    (.+)$", text, re.MULTILINE)]


@pytest.mark.parametrize("module", ["reports", "reports_fastmcp"])
async def test_a_server_of_the_readme_can_be_served_and_called_by_clients_with_and_without_tasks(
    tmp_path: Path, module: str
) -> None:
    assert f"perdure serve {module}:server --port 8000" in commands()
    server_file, client_file = files()[f"{module}.py"], files()["call.py"]
    (tmp_path / f"{module}.py").write_text(server_file.text, "utf-8")
    async with sampled(tmp_path, f"{module}:server") as server:
        assert ADDRESS in client_file.text
        (tmp_path / "call.py").write_text(client_file.text.replace(ADDRESS, server.url), "utf-8")
        async with running(tmp_path, "call.py") as program, Client(server.url) as client:
            plain, code = await asyncio.gather(
                client.call_tool("build_report", {"year": 2026}), program.ended()
            )
    assert text_of(plain) == RESULT
    assert (code, program.output.strip()) == (0, RESULT)


@pytest.mark.parametrize("module", ["reports", "reports_fastmcp"])
async def test_a_server_of_the_readme_runs_without_a_dashboard_too(tmp_path: Path, module: str) -> None:
    (run,) = re.findall(r"`(server\.run\(.*\))` also works", README.read_text("utf-8"))
    port = free_port()
    call = run.replace("8000", str(port))
    (tmp_path / f"{module}.py").write_text(f"{files()[f'{module}.py'].text}\n\n{call}\n", "utf-8")
    async with running(tmp_path, f"{module}.py"):
        await wait_until(lambda: is_open(port), seconds=60)
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["build_report"]


def test_the_other_commands_of_the_readme_install_perdure_and_run_make() -> None:
    """tests/test_wheel.py runs the first of them."""
    others = [each for each in commands() if not each.startswith("perdure serve ")]
    install, *made = others
    assert re.fullmatch(rf"pip install 'perdure\[[a-z,]+\] @ {PLACE}'", install)
    assert made == ["make run", "make test"]
    makefile = (README.parent / "Makefile").read_text("utf-8")
    assert "\nrun: $(READY)\n\t@$(BIN)/perdure serve\n" in makefile
    assert "\ntest: " in makefile


def test_the_readme_names_what_make_needs() -> None:
    needs = {"$(CONFORMANCE)": "npm", "$(BROWSER)": "Chromium", "$(PROXY)": "nginx"}
    makefile = (README.parent / "Makefile").read_text("utf-8")
    assert needs_of("run", makefile) & {*needs} == set()
    assert needs_of("test", makefile) >= {*needs}
    section = README.read_text("utf-8").partition("## With a checkout")[2]
    both, _, alone = section.partition("`make test` also needs")
    assert [each for each in needs.values() if each in both] == []
    assert [each for each in needs.values() if each not in alone.partition("\n\n")[0]] == []


def needs_of(target: str, makefile: str) -> set[str]:
    (rule,) = re.findall(rf"^{target}: (.*)$", makefile, re.MULTILINE)
    return set(rule.split())


@in_test_all
@pytest.mark.parametrize("module", ["reports", "reports_fastmcp"])
async def test_the_server_of_the_readme_is_killed_and_started_again_and_its_client_gets_the_report(
    tmp_path: Path, module: str
) -> None:
    port = str(free_port())
    for title, block in files().items():
        (tmp_path / title).write_text(block.text.replace("8000", port), "utf-8")
    serve = f"perdure serve {module}:server --port {port} > server.log 2>&1 &"
    async with terminal(tmp_path) as shell:

        async def has_written_a_page() -> bool:
            await shell.run("perdure tasks list")
            return re.search(r"page \d+ of 12", shell.look()) is not None

        await shell.run(f"{serve}\nSERVER=$!")
        await wait_until(lambda: is_open(int(port)), seconds=60)
        await shell.run("python call.py > call.log 2>&1 &\nCALL=$!")
        await wait_until(has_written_a_page, seconds=60)
        await shell.run(f"kill -9 $SERVER\nwait $SERVER\n{serve}")
        assert await shell.run("wait $CALL") == 0, (tmp_path / "call.log").read_text("utf-8")
    assert (tmp_path / "call.log").read_text("utf-8").splitlines()[-1] == RESULT.replace(
        "attempt 1", "attempt 2"
    )


def test_the_text_before_a_file_of_the_readme_names_it() -> None:
    """The title of a block is not shown where the README is read."""
    for title in files():
        before = README.read_text("utf-8").partition(f'title="{title}"')[0]
        assert f"`{title}`" in before.rpartition("```python")[0].rstrip().rpartition("\n\n")[2]


@pytest.mark.parametrize("title", ["reports.py", "reports_fastmcp.py", "call.py"])
def test_a_file_of_the_readme_is_short(title: str) -> None:
    assert len(files()[title].text.splitlines()) <= MAX_LINES


def test_the_readme_is_short() -> None:
    assert count_words(README.read_text("utf-8")) <= MAX_WORDS


def test_the_recorded_crash_shows_the_commands_and_the_result_of_today() -> None:
    picture = (README.parent / PICTURES[-1]).read_text("utf-8")
    shown = [
        unescape(line).replace("\N{NO-BREAK SPACE}", " ")
        for line in re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    ]
    typed = [
        line.removeprefix(crash_recording.PROMPT) for line in shown if line.startswith(crash_recording.PROMPT)
    ]
    assert typed == [step.command for step in crash_recording.STEPS], "run: make pictures"
    assert RESULT.replace("attempt 1", "attempt 2") in shown
    headings = [line.split() for line in shown if line.startswith("id ")]
    assert headings == [" ".join(column.name for column in task_table((), 0).columns).split()] * 2


def test_the_readme_names_the_pictures_that_are_made() -> None:
    text = README.read_text("utf-8")
    assert re.findall(r'(?:srcset="|src="|]\()(docs/images/[^")]+)', text) == PICTURES
