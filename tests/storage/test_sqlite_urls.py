"""URLs of SQLite files: every file can be named, and what names none, or asks for nonsense, says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage import open_storage
from perdure.storage.errors import CannotOpen
from perdure.storage.kit.sample_records import insert_each, make_record

from .helpers import keys_of
from .sqlite_helpers import names_in, url_of

pytestmark = pytest.mark.anyio

NO_FILE = ["sqlite:", "sqlite:records.db", "sqlite:///", "sqlite:///:memory:", "sqlite://host/records.db"]
BAD_OPTIONS = [
    "synchronous=off",
    "synchronous=",
    "synchronous",
    "synchronise=full",
    "busy_timeout=soon",
    "busy_timeout=-1",
    "busy_timeout=nan",
    "max_bytes=1GB",
    "max_bytes=0",
    "max_bytes=-1",
    "max_bytes=1.5",
    "=",
]


@pytest.mark.parametrize("url", [*NO_FILE, "sqlite://[host/records.db", "sqlite:///records%00.db"])
async def test_a_url_without_a_file_names_the_remedy(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CannotOpen) as refused:
        await open_storage(url)
    assert "sqlite:////absolute.db" in refused.value.remedy
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("option", BAD_OPTIONS)
async def test_a_bad_option_names_the_options(tmp_path: Path, option: str) -> None:
    with pytest.raises(CannotOpen) as refused:
        await open_storage(f"{url_of(tmp_path / 'records.db')}?{option}")
    assert "synchronous=full|normal" in refused.value.remedy
    assert names_in(tmp_path) == []


async def test_a_hash_that_is_not_encoded_is_refused_rather_than_cut_off(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen):
        await open_storage(f"sqlite:///{tmp_path}/records#1.db")
    assert names_in(tmp_path) == []


NAMES = [
    "two words.db",
    "what?.db",
    "no#1.db",
    "100%.db",
    "a%20b.db",
    "日本 😀.db",
    "a+b&c=d;e.db",
    "récords",
    "'\".db",
]


@pytest.mark.parametrize("name", NAMES)
async def test_any_file_name_can_be_written_as_a_url(tmp_path: Path, name: str) -> None:
    url = url_of(tmp_path / name, synchronous="normal")
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record())
        assert len(await keys_of(storage)) == 1  # by a connection of its own
        assert (await storage.maintain()).findings == ()
    assert names_in(tmp_path) == [name]


async def test_a_path_that_starts_with_two_slashes_is_that_path(tmp_path: Path) -> None:
    async with await open_storage(f"sqlite:////{tmp_path}/records.db") as storage:
        await insert_each(storage, make_record())
    assert names_in(tmp_path) == ["records.db"]


async def test_a_relative_path_stays_the_same_file_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with await open_storage("sqlite:///records.db") as storage:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await insert_each(storage, make_record())
        assert await keys_of(storage) == ["k"]
        assert (await storage.maintain()).findings == ()
    assert names_in(tmp_path / "elsewhere") == []
