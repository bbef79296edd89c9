"""The documentation is correct: its pages are run, its Python is compiled, its site is built."""

from __future__ import annotations

import ast
import fcntl
import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import perdure
import perdure.fastmcp
import perdure.feeds
import perdure.operating
from perdure.tasks import Status
from perdure.tasks.lifecycle import TRANSITIONS
from tools import reference_pages

from . import servers
from .conditions import wait_until
from .doc_pages.pages import DOCS, Block, blocks_of, count_prose, every_page, is_seen, name_of, runnable_pages
from .doc_pages.reader import Reader
from .doc_pages.shell import terminal
from .test_errors import MODULES, classes_of

pytestmark = pytest.mark.anyio

ROOT = DOCS.parent
RUN = {
    "tutorial.md",
    "tutorial-fastmcp.md",
    *(
        f"guides/{guide}.md"
        for guide in (
            "authentication",
            "checkpoints",
            "clients",
            "databases",
            "encryption",
            "fastmcp",
            "feeds",
            "functions",
            "input",
            "metrics",
            "operating",
            "replicas",
            "testing",
            "tools",
        )
    ),
}


# Pages that are run


def pages_to_run() -> list[Path]:
    """Return the pages with commands, but not those that other tests run.

    tests/test_wheel.py runs the tutorial, and tests/cli/test_feeds_guide.py the guide to feeds.
    """
    left_out = {"tutorial.md", "guides/feeds.md"} | (
        {"guides/databases.md"} if "postgres" in servers.LEFT_OUT else set[str]()
    )
    return [page for page in runnable_pages() if name_of(page) not in left_out]


@pytest.mark.parametrize("page", pages_to_run(), ids=name_of)
async def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
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

        async def both_are_shown() -> bool:
            await shell.run("true")
            return len(shell.shown.split()) == 2

        await wait_until(both_are_shown, seconds=30)
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


# Generated parts


def test_the_drawing_of_a_tasks_life_has_an_arrow_for_each_move() -> None:
    drawn = re.findall(
        r"<title>(\w+) to (\w+)</title>", (DOCS / "reference" / "lifecycle.svg").read_text("utf-8")
    )
    moves = {(before.value, after.value) for before, afters in TRANSITIONS.items() for after in afters}
    assert sorted(drawn) == sorted(moves)
    assert {status.value for status in Status} == {word for move in drawn for word in move}


@pytest.mark.parametrize("page", reference_pages.pages(), ids=name_of)
def test_the_generated_parts_of_a_page_are_current(page: Path) -> None:
    expected = reference_pages.pages()[page]
    assert page.read_text("utf-8") == expected, "run: python -m tools.reference_pages"


def test_the_table_of_errors_says_what_each_of_them_means() -> None:
    page = (DOCS / "reference" / "errors.md").read_text("utf-8")
    assert set(reference_pages.ERRORS.values()) == set(MODULES)
    for error in (error for module in MODULES for error in classes_of(module)):
        row = re.search(
            rf"^\| `{error.__name__}` \| `([\w.]+)` \| [A-Z].*\. \| (yes|no) \|$", page, re.MULTILINE
        )
        assert row is not None, error.__name__
        assert getattr(importlib.import_module(row[1]), error.__name__) is error


OPTIONS = ("Config", "Options", "Settings")
"""The ends of the names of classes whose fields are options."""


def test_every_option_of_every_package_is_on_the_page_of_options() -> None:
    page = (DOCS / "reference" / "configuration.md").read_text("utf-8")
    listed = set(re.findall(r"`(\w+)`", page))
    for package in (
        perdure.fastmcp,
        perdure.feeds,
        perdure.mcp,
        perdure.operating,
        perdure.runtime,
        perdure.tasks,
    ):
        for name in (name for name in package.__all__ if name.endswith(OPTIONS)):
            options = inspect.get_annotations(getattr(package, name)).keys()
            assert options - listed == set(), f"{package.__name__}.{name}"


def test_every_environment_variable_that_the_code_reads_is_listed() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "perdure").rglob("*.py"))
    assert set(re.findall(r"\b(?:PERDURE|XDG)_[A-Z_]+", code)) == set(reference_pages.VARIABLES)


# Length


MAX_WORDS = 25_000
"""Of all pages together, without fenced code and without what is generated from the code."""


def test_the_words_that_are_written_by_hand_are_limited() -> None:
    assert sum(count_prose(page.read_text("utf-8")) for page in every_page()) <= MAX_WORDS


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


def test_the_reference_contains_the_docstrings(site: Path) -> None:
    page = (site / "reference" / "mcp" / "index.html").read_text("utf-8")
    assert 'id="perdure.mcp.Tasks.durable"' in page
    assert "Turn the calls of a tool into tasks, which survive a restart of the server." in page


def test_every_public_name_is_on_a_page_of_the_reference(site: Path) -> None:
    pages = "".join(page.read_text("utf-8") for page in (site / "reference").rglob("*.html"))
    described = {
        name
        for module, name in re.findall(r'id="(perdure(?:\.[a-z_]+)*)\.(\w+)"', pages)
        if name in dir(perdure) and getattr(perdure, name) is getattr(importlib.import_module(module), name)
    }
    assert described == {*dir(perdure)} - {"__version__"}


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r'<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+rel="stylesheet"[^>]+href="https?:'
    )
    for page in site.rglob("*.html"):
        assert loading.search(page.read_text("utf-8")) is None, page
