"""One storage, one option: every command finds it by `--url`, `PERDURE_URL` or the default, and no command
that only reads creates one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import msgspec
import pytest

from perdure.storage import open_storage

from ..fork_server import run_in_fork
from ..storage.sqlite_helpers import url_of
from .feeds_folder import FeedsFolder, feeds_folder
from .test_commands import CommandResult

pytestmark = pytest.mark.anyio

ID = "0" * 32
READERS = (
    ["tasks", "list"],
    ["tasks", "show", ID],
    ["tasks", "watch"],
    ["tasks", "stats"],
    ["tasks", "cancel", ID],
    ["tasks", "answer", ID, "name=Ada"],
    ["tasks", "purge"],
    ["doctor"],
    ["copy", "sqlite:///target.db"],
    ["feeds", "status"],
    ["feeds", "show", "alice.test"],
    ["feeds", "items"],
    ["feeds", "links"],
    ["feeds", "audit", "--all"],
    ["feeds", "poll", "alice.test"],
    ["feeds", "once"],
    ["feeds", "run"],
    ["feeds", "run", "--dry-run"],
    ["feeds", "backfill", "alice.test", "--since", "7d"],
    ["feeds", "remove", "alice.test"],
    ["feeds", "suspend", "alice.test"],
    ["feeds", "resume", "alice.test"],
    ["feeds", "reset", "alice.test"],
)


@pytest.fixture
async def place(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[FeedsFolder]:
    """A folder whose settings name a Bluesky, and no storage."""
    async with feeds_folder(tmp_path) as made:
        made.write_settings(url=None)
        yield made


def perdure(folder: Path, *arguments: str, variables: Mapping[str, str] = {}) -> CommandResult:
    plain = {name: value for name, value in os.environ.items() if name != "PERDURE_URL"}
    return run_in_fork(
        "-m", "perdure.cli", *arguments, cwd=folder, env={**plain, "COLUMNS": "200", **variables}
    )


def files_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def accounts_in(folder: Path, url: str) -> int:
    ended = perdure(folder, "feeds", "status", "--json", "--url", url)
    assert ended.returncode == 0, ended
    return msgspec.json.decode(ended.stdout)["summary"]["accounts"]


async def test_every_command_has_the_same_default(place: FeedsFolder) -> None:
    place.person("alice.test")
    await place.feeds("add", "alice.test")
    assert files_in(place.folder) == ["feeds.toml", "perdure.db"]
    assert (await place.json("status"))["summary"]["accounts"] == 1
    for arguments in (["tasks", "list"], ["doctor"], ["migrate"], ["copy", "sqlite:///target.db"]):
        ended = perdure(place.folder, *arguments)
        assert ended.returncode == 0, ended
    assert files_in(place.folder) == ["feeds.toml", "perdure.db", "target.db"]
    assert accounts_in(place.folder, "sqlite:///target.db") == 1


async def test_an_option_precedes_the_variable_the_settings_file_and_the_default(
    place: FeedsFolder,
) -> None:
    place.person("alice.test")
    variable = {"PERDURE_URL": "sqlite:///variable.db"}
    place.write_settings(url="sqlite:///settings.db")

    async def add(*options: str, variables: dict[str, str] | None = None) -> list[str]:
        before = files_in(place.folder)
        place.variables = variables or {}
        await place.feeds("add", "alice.test", *options)
        return [name for name in files_in(place.folder) if name not in before]

    assert await add("--url", "sqlite:///option.db", variables=variable) == ["option.db"]
    assert await add(variables=variable) == ["variable.db"]
    assert await add(variables={"PERDURE_URL": ""}) == ["settings.db"]
    place.write_settings(url=None)
    assert await add() == ["perdure.db"]


@pytest.mark.parametrize(
    ("arguments", "requests"),
    [
        (["add", "alice.test"], ["app.bsky.actor.getProfiles"]),
        (["follow-list", "me.test"], ["app.bsky.actor.getProfiles", "app.bsky.graph.getFollows"]),
    ],
)
async def test_a_new_storage_gets_its_accounts_without_a_second_request(
    place: FeedsFolder, arguments: list[str], requests: list[str]
) -> None:
    alice = place.person("alice.test")
    place.world.follow(place.person("me.test"), alice)
    await place.feeds(*arguments)
    assert [each.path for each in place.fake.log] == requests
    place.url = url_of(place.folder / "perdure.db")
    assert [each.account_id for each in await place.accounts()] == [alice]


@pytest.mark.parametrize("arguments", [["doctor"], ["migrate"], ["tasks", "list"]], ids=" ".join)
async def test_the_variable_names_the_storage_of_every_command(tmp_path: Path, arguments: list[str]) -> None:
    async with await open_storage(url_of(tmp_path / "mine.db")):
        pass
    ended = perdure(tmp_path, *arguments, variables={"PERDURE_URL": "sqlite:///mine.db"})
    assert ended.returncode == 0, ended
    assert files_in(tmp_path) == ["mine.db"]


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
async def test_a_storage_that_does_not_exist_is_refused_and_not_created(
    tmp_path: Path, arguments: list[str]
) -> None:
    ended = perdure(tmp_path, *arguments, "--url", "sqlite:///typo.db?busy_timeout=5")
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    assert ended.stderr.startswith("perdure: storage not found: sqlite:///typo.db; ")
    assert "--url or PERDURE_URL" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ("`perdure feeds add HANDLE`" in ended.stderr) == (arguments[0] == "feeds")
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
async def test_a_misspelt_option_is_refused_before_anything_is_opened(
    tmp_path: Path, arguments: list[str]
) -> None:
    ended = perdure(tmp_path, *arguments, "--url", "sqlite:///typo.db?busy_timout=5")
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    assert "busy_timout" in ended.stderr
    assert files_in(tmp_path) == []


async def test_an_empty_option_is_not_the_default(tmp_path: Path) -> None:
    async with await open_storage(url_of(tmp_path / "perdure.db")):
        pass
    ended = perdure(tmp_path, "feeds", "status", "--url", "")
    assert (ended.returncode, ended.stdout) == (2, ""), ended


async def test_a_worker_uses_the_storage_of_its_app_alone(tmp_path: Path) -> None:
    app = "from perdure.runtime import App\napp = App('sqlite:///mine.db', application='tests')\n"
    (tmp_path / "mine.py").write_text(app)
    ended = perdure(tmp_path, "worker", "mine:app", "--url", "sqlite:///other.db")
    assert ended.returncode == 2
    assert ended.stderr == "perdure: --url cannot be used with mine:app; set it in the code of mine:app\n"
    ended = perdure(tmp_path, "worker", "mine:app", variables={"PERDURE_URL": "sqlite:///other.db"})
    assert "the app has no functions" in ended.stderr  # the variable is for other commands


# A command that fails leaves no file


async def test_adding_unknown_accounts_creates_no_storage(place: FeedsFolder) -> None:
    await place.feeds("add", "unknown.test", code=1)
    await place.feeds("add", "not a name", code=1)
    await place.feeds("add", "unknown.test", "--dry-run", code=1)
    assert files_in(place.folder) == ["feeds.toml"]


async def test_an_unknown_follow_list_creates_no_storage(place: FeedsFolder) -> None:
    place.person("lonely.test")
    await place.feeds("follow-list", "lonely.test")
    await place.feeds("follow-list", "lonely.test", "--prune", code=2)
    await place.feeds("follow-list", "unknown.test", code=2)
    place.world.follow(place.person("me.test"), place.person("alice.test"))
    await place.feeds("follow-list", "me.test", "--dry-run")
    assert files_in(place.folder) == ["feeds.toml"]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("sqlite:///notes.txt", "sqlite:///target.db"),
        ("sqlite:///missing.db", "sqlite:///target.db"),
        ("sqlite:///source.db", "sqlite:///target.db?busy_timout=5"),
        ("sqlite:///source.db", "memory:"),
        ("redis://127.0.0.1:1/0", "sqlite:///target.db"),
    ],
)
async def test_a_copy_that_is_refused_creates_no_target(tmp_path: Path, source: str, target: str) -> None:
    (tmp_path / "notes.txt").write_text("not a database")
    async with await open_storage(url_of(tmp_path / "source.db")):
        pass
    ended = perdure(tmp_path, "copy", target, "--url", source)
    assert ended.returncode in (1, 2), ended
    assert files_in(tmp_path) == ["notes.txt", "source.db"]
