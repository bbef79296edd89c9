"""Opening a storage by its URL: errors name their remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.storage import Engine, is_shared_storage, open_storage, register_engine, storage_exists
from perdure.storage.errors import CannotOpen, MissingExtra, UnknownScheme
from perdure.storage.registry import redact_url

from ..engines import FIVE
from .engines import new_url
from .reference_engine import ReferenceEngine

pytestmark = pytest.mark.anyio

SECRET = "hunter2"  # noqa: S105 - the point is that it is not shown


async def open_reference(url: str) -> Engine:
    return ReferenceEngine()


async def test_a_storage_knows_its_name() -> None:
    async with await open_storage("memory:") as storage:
        assert (storage.name, storage.lag) == ("memory", 0)


@pytest.mark.parametrize("url", ["", "memory", "oracle://host/db", ":", "SQLITE:///x"])
async def test_an_unknown_scheme_lists_the_known_ones(url: str) -> None:
    with pytest.raises(UnknownScheme, match=r"use one of .*memory, .*sqlite") as caught:
        await open_storage(url)
    assert caught.value.location == url


@pytest.mark.parametrize("file", ["tasks.db", "data/tasks", "/var/lib/tasks.db"])
async def test_the_name_of_a_file_is_answered_with_its_url(file: str) -> None:
    with pytest.raises(UnknownScheme, match="unknown URL scheme") as caught:
        await open_storage(file)
    assert caught.value.remedy == f"for a SQLite file, use sqlite:///{file}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///some/tasks.db?synchronous=full", "sqlite:///some/tasks.db"),
        (f"postgresql://user:{SECRET}@host:5432/db", "postgresql://host:5432/db"),
        (f"postgresql://one:1,two:2/db?password={SECRET}", "postgresql://one:1,two:2/db"),
        (f"redis+cluster://:{SECRET}@one:1,two:2", "redis+cluster://one:1,two:2"),
        # in which it is not plain where the password ends
        (f"postgresql://user:pass/{SECRET}@host/db", "postgresql:..."),
        (f"postgresql://user:{SECRET}?pass@host/db", "postgresql:..."),
        (f"postgresql://user:pass@{SECRET}@host/db", "postgresql:..."),
        (f"redis://host/0?password=pass@{SECRET}", "redis:..."),
        (f"redis:{SECRET}@host", "redis:..."),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize("url", ["memory:name", "memory://", "memory:?x=1"])
async def test_a_memory_storage_has_no_options(url: str) -> None:
    with pytest.raises(CannotOpen, match='use "memory:"'):
        await open_storage(url)


async def test_an_engine_of_ones_own_opens_by_its_scheme() -> None:
    register_engine("reference", f"{__name__}:open_reference", package="reference-engine")
    async with await open_storage("reference:anything") as storage:
        assert storage.name == "reference"


# What is known of a storage before it is opened, and what it reports afterwards


@pytest.mark.parametrize("engine", FIVE)
async def test_a_storage_says_whether_other_processes_see_its_records_and_where_they_stand(
    engine: str, tmp_path: Path
) -> None:
    url = await new_url(engine, tmp_path)
    assert is_shared_storage(url) == (engine != "memory")
    async with await open_storage(url) as storage:
        info = await storage.info()
    assert info.is_shared == is_shared_storage(url)
    assert info.path == (str(tmp_path / "tasks.db") if engine == "sqlite" else None)


@pytest.mark.parametrize("engine", FIVE)
async def test_only_a_file_that_opening_would_make_does_not_exist(engine: str, tmp_path: Path) -> None:
    url = await new_url(engine, tmp_path)
    assert storage_exists(url) == (engine != "sqlite")
    assert not is_anything_in(tmp_path)  # asking makes nothing
    async with await open_storage(url):
        assert storage_exists(url)


def is_anything_in(folder: Path) -> bool:
    return any(folder.iterdir())


async def test_a_relative_file_is_shown_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with await open_storage("sqlite:///here.db?synchronous=normal") as storage:
        assert (await storage.info()).path == str(tmp_path / "here.db")
    assert storage_exists("sqlite:///here.db")
    assert not storage_exists("sqlite:///there.db")


@pytest.mark.parametrize("ask", [is_shared_storage, storage_exists])
def test_nothing_is_said_of_a_scheme_that_names_no_engine(ask: Callable[[str], bool]) -> None:
    with pytest.raises(UnknownScheme):
        ask("oracle://host/db")


async def test_an_engine_of_ones_own_is_shared_and_there_unless_it_says_otherwise() -> None:
    register_engine("reference", f"{__name__}:open_reference", package="reference-engine")
    assert (is_shared_storage("reference:anything"), storage_exists("reference:anything")) == (True, True)
    async with await open_storage("reference:anything") as storage:
        info = await storage.info()
    assert (info.is_shared, info.path) == (True, None)
    register_engine(
        "shy", f"{__name__}:open_reference", package="x", exists="is_reference_there", is_shared=False
    )
    assert (is_shared_storage("shy:here"), storage_exists("shy:here"), storage_exists("shy:there")) == (
        False,
        True,
        False,
    )


def is_reference_there(url: str) -> bool:
    return url == "shy:here"


async def test_a_missing_driver_says_what_to_install() -> None:
    register_engine("absent", "no_such_driver.engine:open_engine", package="perdure[absent]")
    with pytest.raises(
        MissingExtra, match=r"install the absent extra with: pip install .*\[absent\]"
    ) as caught:
        await open_storage("absent://host")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
