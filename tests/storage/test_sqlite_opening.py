"""Opening a SQLite file: what is created, what is refused, and that what is refused stays as it was."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from perdure.storage import open_storage
from perdure.storage.errors import CannotOpen, ForeignStorage, NewerSchema, StorageError
from perdure.storage.kit.sample_records import insert_each, make_record
from perdure.storage.sqlite.database import APPLICATION_ID

from ..markers import server
from .helpers import keys_of
from .sqlite_helpers import Child, child, contents, engine_threads, names_in, url_of, writing_connection

pytestmark = pytest.mark.anyio


def make_sqlite_file(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def make_file_of_a_crash(folder: Path, *statements: str) -> Path:
    """A file as its maker leaves it who dies before it could commit or tidy up."""
    making = folder / "making"
    making.mkdir()
    db = sqlite3.connect(making / "theirs.db", isolation_level=None)
    for statement in statements:
        db.execute(statement)
    shutil.copytree(making, folder / "left")
    db.close()
    return folder / "left" / "theirs.db"


async def refusal(path: Path) -> StorageError:
    """The error of opening a file, which must leave its folder as it is."""
    before = contents(path.parent), engine_threads()
    with pytest.raises(StorageError) as refused:
        await open_storage(url_of(path))
    assert (contents(path.parent), engine_threads()) == before
    return refused.value


FOREIGN = {
    "another application": ["PRAGMA application_id = 4242", "CREATE TABLE t (x)"],
    "another application without tables": ["PRAGMA application_id = 4242"],
    "no application": ["CREATE TABLE t (x)"],
    "no application in WAL mode": ["PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"],
    "no application with a version": ["CREATE TABLE t (x)", "PRAGMA user_version = 1"],
    "tables of our names": ["CREATE TABLE records (id)", "CREATE TABLE counts (n)"],
}


@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
async def test_a_foreign_sqlite_file_is_refused_and_untouched(tmp_path: Path, statements: list[str]) -> None:
    path = tmp_path / "theirs.db"
    make_sqlite_file(path, *statements)
    error = await refusal(path)
    assert isinstance(error, ForeignStorage)
    assert error.remedy == "use another path in the URL"
    assert str(path) in str(error)


HALF_WRITTEN = [
    "CREATE TABLE t (x)",
    "PRAGMA cache_size = 1",
    "BEGIN",
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n LIMIT 9999) INSERT INTO t SELECT x FROM n",
]
LEFT_OVER = {
    "a hot journal": ("-journal", ["PRAGMA journal_mode = DELETE", *HALF_WRITTEN]),
    "a log": ("-wal", ["PRAGMA journal_mode = WAL", *HALF_WRITTEN]),
}


@pytest.mark.parametrize(("ending", "statements"), LEFT_OVER.values(), ids=LEFT_OVER)
async def test_a_foreign_file_of_a_crash_is_refused_and_what_can_restore_it_untouched(
    tmp_path: Path, ending: str, statements: list[str]
) -> None:
    path = make_file_of_a_crash(tmp_path, *statements)
    assert len(contents(path.parent)[f"theirs.db{ending}"]) > 4096
    assert isinstance(await refusal(path), ForeignStorage)


@pytest.mark.parametrize("text", ["dear diary", "x", "x" * 5000, "SQLite format 3", "\n"])
async def test_a_text_file_is_refused_and_untouched(tmp_path: Path, text: str) -> None:
    path = tmp_path / "diary.txt"
    path.write_text(text)
    assert isinstance(await refusal(path), ForeignStorage)


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
async def test_a_file_of_a_newer_schema_is_refused_and_untouched(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "records.db"
    statements = [f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 99"]
    make_sqlite_file(path, f"PRAGMA journal_mode = {mode}", *statements, "CREATE TABLE later (x)")
    error = await refusal(path)
    assert isinstance(error, NewerSchema)
    assert (error.reason, error.remedy) == (
        "its schema version is 99, but this version of perdure supports up to 1",
        "upgrade perdure",
    )


async def test_a_missing_file_is_created(tmp_path: Path) -> None:
    async with await open_storage(url_of(tmp_path / "records.db")) as storage:
        await insert_each(storage, make_record())
    assert names_in(tmp_path) == ["records.db"]


async def test_an_empty_file_becomes_ours(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    path.touch()
    async with await open_storage(url_of(path)) as storage:
        await insert_each(storage, make_record())
        assert await keys_of(storage) == ["k"]


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    with pytest.raises(CannotOpen) as refused:
        await open_storage(url_of(folder / "records.db"))
    assert refused.value.remedy == f"create {folder}"
    assert names_in(tmp_path) == []


async def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="directory"):
        await open_storage(url_of(tmp_path))


async def test_a_folder_name_too_long_for_the_system_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen):
        await open_storage(url_of(tmp_path / ("x" * 300) / "records.db"))


@pytest.mark.parametrize(
    ("option", "level"), [({}, 2), ({"synchronous": "full"}, 2), ({"synchronous": "normal"}, 1)]
)
async def test_the_open_file_is_ours_in_wal_mode_and_as_durable_as_asked(
    tmp_path: Path, option: dict[str, str], level: int
) -> None:
    async with await open_storage(url_of(tmp_path / "records.db", **option)) as storage:
        db = writing_connection(storage)
        facts = {
            name: db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "application_id", "user_version", "auto_vacuum")
        }
    assert facts == {
        "journal_mode": "wal",
        "synchronous": level,
        "application_id": APPLICATION_ID,
        "user_version": 1,
        "auto_vacuum": 2,
    }


@server
async def test_eight_processes_open_a_new_file_concurrently(tmp_path: Path) -> None:
    names = [f"process-{n}" for n in range(8)]
    async with AsyncExitStack() as stack:
        children = [await stack.enter_async_context(child("open_at_once", name)) for name in names]
        for n in range(6):
            url = url_of(tmp_path / f"{n}.db")
            await send_to_all(children, url, "open")
            await send_to_all(children, "close", "closed")
            async with await open_storage(url) as storage:
                assert await keys_of(storage) == names
                assert (await storage.maintain()).findings == ()


async def send_to_all(children: list[Child], order: str, answer: str) -> None:
    for one in children:
        await one.send(order)
    assert await asyncio.gather(*[one.line() for one in children]) == [answer] * len(children)


@pytest.mark.parametrize("pages", [1, 2, 4, 6])
@server
async def test_a_process_that_died_while_creating_a_file_leaves_one_that_opens(
    tmp_path: Path, pages: int
) -> None:
    url = url_of(tmp_path / "records.db")
    async with child("die_making_the_file", url, pages * 4096) as one:
        assert await one.death() < 0
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record())
        assert (await storage.maintain()).findings == ()
