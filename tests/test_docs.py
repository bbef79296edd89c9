"""The documentation is correct: its pages are run, its Python is compiled, its site is built."""

from __future__ import annotations

import ast
import fcntl
import importlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.storage.kit.servers.process import free_port
from perdure.tasks import Status
from perdure.tasks.lifecycle import TRANSITIONS

from . import servers
from .conditions import wait_until
from .doc_pages.pages import DOCS, Block, blocks_of, every_page, is_seen, name_of, runnable_pages
from .doc_pages.shell import Terminal, terminal
from .mcp.raw_clients import is_open

pytestmark = pytest.mark.anyio

ROOT = DOCS.parent
POSTGRES = "postgresql://user@host/database"
"""The reader's database, as pages name it."""
RUN = {
    "tutorial.md",
    "guides/authentication.md",
    "guides/checkpoints.md",
    "guides/clients.md",
    "guides/encryption.md",
    "guides/input-rounds.md",
    "guides/operating.md",
    "guides/postgres.md",
    "guides/replicas.md",
    "guides/testing.md",
}
PORT = re.compile(r"\b80\d\d\b")


# Pages that are run


class Reader:
    """Follows a page, with its own ports and database."""

    def __init__(self, page: Path, folder: Path, shell: Terminal) -> None:
        self._blocks = blocks_of(page)
        self._folder = folder
        self._shell = shell
        self._instead = {port: str(free_port()) for port in PORT.findall(page.read_text("utf-8"))}
        if POSTGRES in page.read_text("utf-8"):
            self._instead[POSTGRES] = servers.postgres().new_url()

    async def follow(self) -> None:
        for block in self._blocks:
            await self._do(block.language, block.title, self._own(block.text))

    def _own(self, text: str) -> str:
        for theirs, ours in self._instead.items():
            text = text.replace(theirs, ours)
        return text

    async def _do(self, language: str, title: str | None, text: str) -> None:
        match language:
            case "python" if title is not None:
                (self._folder / title).write_text(text, "utf-8")
            case "sh":
                assert await self._shell.run(text) == 0, f"{text}{self._shell.shown}"
                await self._until_open(text)
            case "text":
                await self._see(text)
            case _:
                pass

    async def _see(self, expected: str) -> None:
        """Wait for the expected output: a server in the background may print it a moment later."""

        async def is_there() -> bool:
            await self._shell.run("true")
            return is_seen(expected, self._shell.shown)

        with suppress(TimeoutError):
            await wait_until(is_there, seconds=30)
        shown = self._shell.look()
        assert is_seen(expected, shown), shown

    async def _until_open(self, commands: str) -> None:
        """Wait until a started server listens, as a person takes a while to type the next command."""
        if commands.rstrip().endswith("&") or "&\n" in commands:
            named = re.search(r"(?:PORT=|--port )(\d+)", commands)
            port = next(iter(self._instead.values())) if named is None else named[1]
            await wait_until(lambda: is_open(int(port)), seconds=60)


def pages_to_run() -> list[Path]:
    left_out = [] if "postgres" not in servers.LEFT_OUT else ["guides/postgres.md"]
    return [page for page in runnable_pages() if name_of(page) not in left_out]


@pytest.mark.parametrize("page", pages_to_run(), ids=name_of)
async def test_what_a_page_tells_to_type_does_what_it_says(page: Path, tmp_path: Path) -> None:
    async with terminal(tmp_path) as shell:
        await Reader(page, tmp_path, shell).follow()


SAY = "import os, sys; print(os.environ['WORD'], sys.argv, os.getcwd()); sys.exit(3)"


async def test_what_a_page_runs_has_its_own_words_folder_variables_output_and_code(tmp_path: Path) -> None:
    (tmp_path / "say.py").write_text(SAY, "utf-8")
    async with terminal(tmp_path) as shell:
        assert await shell.run("WORD=first python say.py\nexport WORD=second\npython say.py a 'b c'") == 3
        first, second = shell.look().splitlines()
    assert first == f"first ['say.py'] {tmp_path}"
    assert second == f"second ['say.py', 'a', 'b c'] {tmp_path}"


async def test_what_a_page_runs_in_the_background_is_what_it_kills(tmp_path: Path) -> None:
    (tmp_path / "stay.py").write_text(
        "import os, time; print(os.getpid(), flush=True); time.sleep(60)", "utf-8"
    )
    async with terminal(tmp_path) as shell:
        await shell.run("python stay.py &\necho $!")

        async def both_are_told() -> bool:
            await shell.run("true")
            return len(shell.shown.split()) == 2

        await wait_until(both_are_told, seconds=30)
        background, process = shell.look().split()
        assert background == process
        assert await shell.run(f"kill -9 {process}\nwait {process}") == 128 + signal.SIGKILL


def test_the_tutorial_and_the_guides_are_among_the_pages_that_are_run() -> None:
    assert {name_of(page) for page in runnable_pages()} == RUN


def test_every_text_block_of_a_run_page_is_compared_with_what_a_command_printed() -> None:
    for page in runnable_pages():
        languages = [block.language for block in blocks_of(page)]
        assert all("sh" in languages[:at] for at, language in enumerate(languages) if language == "text"), (
            page
        )


@pytest.mark.parametrize(
    ("expected", "output", "seen"),
    [
        ("one\ntwo", "zero\n  one\nand\ntwo\n", True),
        ("two\none", "one\ntwo\n", False),
        ("page ... of 3\n...\ndone", "page 2 of 3\nother\ndone", True),
        ("one", "one and more", False),
        ("one\none", "one\n", False),
    ],
)
def test_what_is_said_to_be_seen_is_looked_for_line_by_line(
    expected: str,
    output: str,
    seen: bool,  # noqa: FBT001
) -> None:
    assert is_seen(expected, output) is seen


# Python on all pages


def python_blocks() -> list[tuple[str, Block]]:
    return [
        (f"{page.relative_to(ROOT).as_posix()}-{number}", block)
        for page in [*every_page(), ROOT / "README.md"]
        for number, block in enumerate(blocks_of(page))
        if block.language == "python"
    ]


@pytest.mark.parametrize("block", [pytest.param(block, id=place) for place, block in python_blocks()])
def test_python_on_a_page_compiles_and_imports_what_there_is(block: Block) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    tree = compile(textwrap.dedent(block.text), "page", "exec", flags=flags)
    assert isinstance(tree, ast.Module)
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and (each.module or "").partition(".")[0] in ("perdure", "mcp"):
            module = importlib.import_module(each.module or "")
            assert [name.name for name in each.names if not hasattr(module, name.name)] == []


# The life of a task, decisions


def test_the_drawing_of_a_tasks_life_has_an_arrow_for_each_move() -> None:
    drawn = re.findall(r"<title>(\w+) to (\w+)</title>", (DOCS / "lifecycle.svg").read_text("utf-8"))
    moves = {(before.value, after.value) for before, afters in TRANSITIONS.items() for after in afters}
    assert sorted(drawn) == sorted(moves)
    assert {status.value for status in Status} == {word for move in drawn for word in move}


def test_every_decision_is_listed_under_its_title() -> None:
    listed = (DOCS / "decisions" / "index.md").read_text("utf-8")
    for page in sorted((DOCS / "decisions").glob("0*.md")):
        title = page.read_text("utf-8").splitlines()[0].removeprefix("# ")
        assert f"[{title}]({page.name})" in listed


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built once for all processes that test it."""
    base = tmp_path_factory.getbasetemp()
    target = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "sitemap.xml").exists():
            build(target)
    return target


def build(target: Path) -> None:
    """Build the site as `make docs` does. A broken link fails it."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr


def test_every_page_is_on_the_site_and_in_its_navigation(site: Path) -> None:
    front = (site / "index.html").read_text("utf-8")
    for page in every_page():
        address = name_of(page).removesuffix(".md") + "/"
        if page.name == "index.md":
            address = address.removesuffix("index/")
        assert (site / address / "index.html").exists(), address
        assert f'href="{address or "."}"' in front, address


def test_the_reference_tells_what_a_docstring_says(site: Path) -> None:
    page = (site / "reference" / "mcp" / "index.html").read_text("utf-8")
    assert 'id="perdure.mcp.Tasks.durable"' in page
    assert "Make the calls of a tool tasks, which survive the server." in page


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r'<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+rel="stylesheet"[^>]+href="https?:'
    )
    for page in site.rglob("*.html"):
        assert loading.search(page.read_text("utf-8")) is None, page
