"""What users install works: the wheel, in fresh environments, without the checkout."""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from . import wheels
from .doc_pages.pages import DOCS, blocks_of, every_page, name_of
from .doc_pages.reader import Reader
from .doc_pages.shell import terminal
from .markers import in_test_all
from .wheels import CORE_EXTRAS, PROMISED, Environment

USES = {
    "cli": ("perdure --version", "pip install 'perdure[cli] @ file:"),
    "dynamodb": ("python open.py dynamodb://table", "pip install 'perdure[dynamodb] @ file:"),
    "fastmcp": ("python -c 'import perdure.fastmcp'", "pip install 'perdure[fastmcp] @ file:"),
    "feeds": ("python settings.py", "pip install 'perdure[feeds] @ file:"),
    "kit": ("python -c 'import perdure.storage.kit.state_machine'", "pip install 'perdure[kit] @ file:"),
    "postgres": ("python open.py postgresql://host/name", "pip install 'perdure[postgres] @ file:"),
    "redis": ("python open.py redis://host", "pip install 'perdure[redis] @ file:"),
    "servers": ("python start.py", "pip install 'perdure[servers] @ file:"),
    "web": ("python -c 'import perdure.web'", "pip install 'perdure[web] @ file:"),
}
"""For each extra, a command that needs it, and what the command prints without it."""

START = """
from perdure.storage.kit.servers import Valkey
with Valkey():
    pass
"""

NEEDS = {
    "cli": "import perdure.cli.commands",
    "dynamodb": "import perdure.storage.dynamodb.engine",
    "fastmcp": "import perdure.fastmcp",
    "feeds": "import perdure.feeds.bluesky, yaml",
    "kit": "import perdure.storage.kit.state_machine, pytest",
    "postgres": "import perdure.storage.postgres.engine",
    "redis": "import perdure.storage.redis.engine",
    "servers": START,
    "web": "import perdure.web",
}
"""For each extra, code that needs it."""

OPEN = """
import sys, anyio
from perdure.storage import open_storage
anyio.run(open_storage, sys.argv[1])
"""


SETTINGS = """
from pathlib import Path
from perdure.feeds import load_settings
Path("feeds.yaml").write_text("url: 'sqlite:///feeds.db'")
load_settings(Path("feeds.yaml"))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build(tmp_path_factory)


@pytest.fixture(scope="module")
def base(dist: Path) -> Environment:
    """What the tutorial installs."""
    (requirement,) = re.findall(r"pip install '(.+)'", install_block(DOCS / "tutorial.md"))
    return wheels.install_as_written(dist, requirement)


INSTALLING = ("README.md", "docs/guides/install.md", "docs/tutorial.md", "docs/tutorial-fastmcp.md")
"""The pages that say how to install perdure."""


def install_block(page: Path) -> str:
    """Return the commands of a page that install perdure, which are indented."""
    blocks = re.findall(r"(?:^    .+\n)+", page.read_text("utf-8"), re.MULTILINE)
    (block,) = [textwrap.dedent(each) for each in blocks if "pip install" in each]
    return block


def test_every_page_says_in_the_same_words_how_to_install_perdure() -> None:
    advice = re.compile(rf"pip install 'perdure(\[[a-z,]+\])? @ {wheels.PLACE}'")
    for page in [wheels.ROOT / "README.md", wheels.ROOT / "CONTRIBUTING.md", *every_page()]:
        text = page.read_text("utf-8").replace("Do not run `pip install perdure`", "")
        lines = [line for line in re.findall(r"pip install [^`\n]+", text) if line != "pip install pytest"]
        assert [line for line in lines if advice.fullmatch(line) is None] == [], page
        assert bool(lines) == (page.relative_to(wheels.ROOT).as_posix() in INSTALLING), page
        if lines:
            before = " ".join(text.partition("    pip install ")[0].split())
            assert "(replace `/path/to/perdure` with its path)" in before, page


@pytest.mark.parametrize("page", [DOCS / "tutorial.md", DOCS / "tutorial-fastmcp.md"], ids=name_of)
def test_a_tutorial_names_the_programs_that_it_needs_before_its_first_step(page: Path) -> None:
    start = page.read_text("utf-8").partition("## Install")[0]
    typed = "".join(block.text for block in blocks_of(page) if block.language == "sh")
    programs = set(re.findall(r"^(?:until )?(\w+)", typed, re.MULTILINE)) - {"python", "kill", "wait"}
    assert programs == set(re.findall(r"`(\w+)`", start.partition(" needs ")[2].partition(". ")[0]))


@in_test_all
@pytest.mark.anyio
@pytest.mark.parametrize("page", INSTALLING)
async def test_the_commands_of_a_page_install_perdure(dist: Path, tmp_path: Path, page: str) -> None:
    """In `make test`, only the requirement of the tutorial is installed."""
    commands = install_block(wheels.ROOT / page)
    assert wheels.PLACE in commands
    async with terminal(tmp_path, variables_for_pip()) as shell:
        if "-m venv" not in commands:
            await shell.run("python3 -m venv .venv; . .venv/bin/activate")
        installed = await shell.run(commands.replace(wheels.PLACE, wheels.uri(dist)), seconds=500)
        assert installed == 0, shell.shown
        shell.look()
        await shell.run("python -c 'import perdure; print(perdure.__file__)'")
        assert shell.look().startswith(str(tmp_path))


def variables_for_pip() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**inherited, "PATH": path, "PIP_CONSTRAINT": str(wheels.CONSTRAINTS)}


@pytest.mark.anyio
async def test_the_tutorial_runs_with_the_wheel_and_no_extra(base: Environment, tmp_path: Path) -> None:
    """It has a server on SQLite, which is killed, and a client."""
    async with terminal(tmp_path, base.variables) as shell:
        await shell.run("python -c 'import perdure; print(perdure.__file__)'")
        assert shell.look().startswith(str(base.bin.parent))
        await Reader(DOCS / "tutorial.md", tmp_path, shell).follow()


@in_test_all
@pytest.mark.anyio
async def test_the_tutorial_of_fastmcp_runs_with_the_wheel_and_what_it_installs(
    dist: Path, tmp_path: Path
) -> None:
    """In `make test`, it runs in the environment of the tests (tests/test_docs.py)."""
    page = DOCS / "tutorial-fastmcp.md"
    (requirement,) = re.findall(r"pip install '(.+)'", install_block(page))
    environment = wheels.install_as_written(dist, requirement)
    async with terminal(tmp_path, environment.variables) as shell:
        await Reader(page, tmp_path, shell).follow()


def test_a_changed_wheel_is_installed_even_if_its_place_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "HOME", tmp_path / "environments")
    for version in ("first", "second"):
        write_wheel(tmp_path / "perdure-0-py3-none-any.whl", f"print({version!r})")
        environment = wheels.install(tmp_path)
        assert environment.run("python", "-c", "import perdure", folder=tmp_path).stdout.strip() == version


def write_wheel(path: Path, code: str) -> None:
    """Write a wheel that needs nothing."""
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("perdure/__init__.py", code)
        wheel.writestr("perdure-0.dist-info/METADATA", "Metadata-Version: 2.1\nName: perdure\nVersion: 0\n")
        wheel.writestr(
            "perdure-0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("perdure-0.dist-info/RECORD", "")


@pytest.mark.parametrize("extra", sorted(USES))
def test_without_an_extra_what_needs_it_says_so(base: Environment, tmp_path: Path, extra: str) -> None:
    command, message = USES[extra]
    (tmp_path / "open.py").write_text(OPEN, "utf-8")
    (tmp_path / "settings.py").write_text(SETTINGS, "utf-8")
    (tmp_path / "start.py").write_text(START, "utf-8")
    ended = base.run(*shlex.split(command), folder=tmp_path)
    assert ended.returncode == 1
    assert message in ended.stderr.splitlines()[-1]


def test_with_all_extras_everything_is_there(dist: Path, tmp_path: Path) -> None:
    everything = wheels.install(dist, *PROMISED)
    ended = everything.run("python", "-c", "\n".join(NEEDS.values()), folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert everything.run("perdure", "--version", folder=tmp_path).stdout.strip()


def test_every_extra_is_tested() -> None:
    assert set(NEEDS) == set(USES) == set(PROMISED) - set(CORE_EXTRAS)


@in_test_all
@pytest.mark.parametrize("extra", sorted(NEEDS))
def test_each_extra_alone_is_enough_for_what_needs_it(dist: Path, tmp_path: Path, extra: str) -> None:
    ended = wheels.install(dist, extra).run("python", "-c", NEEDS[extra], folder=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_the_sdist_has_the_files_of_the_project(dist: Path) -> None:
    files = {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml"}
    assert files <= {path.name for path in (dist / "source").iterdir()}
    (wheel,) = dist.glob("perdure-*.whl")
    assert "perdure/py.typed" in zipfile.ZipFile(wheel).namelist()
