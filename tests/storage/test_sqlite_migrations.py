"""Migrating a SQLite file: in one transaction, forward only, and with every record kept."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from perdure.storage import open_storage
from perdure.storage.errors import NewerSchema
from perdure.storage.kit.sample_records import NOW, insert_each, make_record
from perdure.storage.sqlite.database import migrations, prepare_database
from perdure.storage.sqlite.location import parse_url

from .helpers import inserting, keys_of
from .sqlite_helpers import contents, url_of

pytestmark = pytest.mark.anyio

ADD_COLUMN = ("ALTER TABLE records ADD COLUMN note TEXT", "UPDATE records SET note = 'migrated ' || key")
ADD_TABLE = ("CREATE TABLE later (x TEXT) STRICT", "INSERT INTO later VALUES ('here')")
FAILING = ("DELETE FROM records", "CREATE TABLE records (x)")
KEYS = [f"k{n:03}" for n in range(50)]


def migrate(url: str, *steps: tuple[str, ...]) -> None:
    """What a later perdure with these additional steps does when it opens the file."""
    prepare_database(parse_url(url), (*migrations(), *steps))


async def make_file(path: Path) -> str:
    async with await open_storage(url_of(path)) as storage:
        await asyncio.gather(*[storage.commit(inserting(make_record(key)), now=NOW) for key in KEYS])
    return url_of(path)


def ask(path: Path, sql: str) -> list[object]:
    """The first column of an answer."""
    db = sqlite3.connect(path)
    try:
        return [row[0] for row in db.execute(sql).fetchall()]
    finally:
        db.close()


def columns(path: Path) -> list[object]:
    return ask(path, "SELECT name FROM pragma_table_info('records')")


async def test_a_step_brings_a_file_forward_and_keeps_its_records(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await make_file(path)
    migrate(url, ADD_COLUMN, ADD_TABLE)
    assert ask(path, "PRAGMA user_version") == [3]
    assert ask(path, "SELECT note FROM records ORDER BY key") == [f"migrated {key}" for key in KEYS]
    assert ask(path, "SELECT x FROM later") == ["here"]
    assert ask(path, "SELECT n FROM counts") == [len(KEYS)] * 2


async def test_a_step_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await make_file(path)
    migrate(url, ADD_TABLE)
    migrate(url, ADD_TABLE)
    migrate(url, ADD_TABLE, ADD_COLUMN)
    assert ask(path, "PRAGMA user_version") == [3]
    assert ask(path, "SELECT x FROM later") == ["here"]


async def test_a_step_that_fails_leaves_the_old_version_intact_and_usable(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await make_file(path)
    before = columns(path)
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(url, ADD_COLUMN, FAILING)
    assert ask(path, "PRAGMA user_version") == [1]
    assert columns(path) == before
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record("new"))
        assert await keys_of(storage) == [*KEYS, "new"]
        assert (await storage.maintain()).findings == ()


async def test_a_new_file_whose_step_fails_can_be_made_later(tmp_path: Path) -> None:
    url = url_of(tmp_path / "records.db")
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(url, FAILING)
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record())
        assert await keys_of(storage) == ["k"]


async def test_the_old_code_refuses_a_migrated_file_and_leaves_it_untouched(tmp_path: Path) -> None:
    url = await make_file(tmp_path / "records.db")
    migrate(url, ADD_COLUMN)
    before = contents(tmp_path)
    with pytest.raises(NewerSchema, match="upgrade perdure"):
        await open_storage(url)
    assert contents(tmp_path) == before


async def test_the_old_code_refuses_a_file_whose_migration_is_still_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    await make_file(path)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM records").fetchone()  # its snapshot keeps the log in use
    try:
        migrate(url_of(path, busy_timeout=0.1), ADD_COLUMN)
        with pytest.raises(NewerSchema):
            await open_storage(url_of(path))
    finally:
        reader.close()
    assert len(ask(path, "SELECT note FROM records")) == len(KEYS)


async def test_eight_concurrent_migrations_migrate_once(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await make_file(path)
    await asyncio.gather(*[asyncio.to_thread(migrate, url, ADD_TABLE, ADD_COLUMN) for _ in range(8)])
    assert ask(path, "SELECT x FROM later") == ["here"]
    assert ask(path, "PRAGMA user_version") == [3]
