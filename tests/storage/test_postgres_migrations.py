"""Making the tables: once, by who may, in a schema of any name, and never over what is not ours."""

from __future__ import annotations

import asyncio
from urllib.parse import quote
from uuid import uuid4

import pytest

from perdure.storage import migrate_storage, open_storage
from perdure.storage.errors import ForeignStorage, MissingSchema, NewerSchema
from perdure.storage.kit.sample_records import NOW, insert_each, make_record
from perdure.storage.postgres.location import parse_url
from perdure.storage.postgres.pool import ConnectionPool
from perdure.storage.postgres.schema import migrations, prepare_schema, statement

from .. import servers
from .postgres_helpers import session

pytestmark = pytest.mark.anyio

ODD_NAMES = [
    "with space",
    'quo"te',
    '"',
    "'; DROP SCHEMA public; --",
    "$body$",
    "$1",
    "{schema}",
    "comma, pg_catalog",
    "Älter 日本",
    "CamelCase",
    "select",
    "back\\slash",
    "x" * 63,
]


def url_of(schema: str, options: str = "") -> str:
    return f"{servers.postgres().url}?schema={quote(schema, safe='')}{options}"


async def test_several_clients_may_open_what_is_not_there_yet() -> None:
    url = servers.postgres().new_url()
    storages = await asyncio.gather(*[open_storage(url) for _ in range(8)])
    await asyncio.gather(*[insert_each(each, make_record(f"k{n}")) for n, each in enumerate(storages)])
    assert [await storages[0].get(make_record(f"k{n}").address, now=NOW) for n in range(8)].count(None) == 0
    for storage in storages:
        await storage.close()


async def test_migrate_never_creates_no_tables() -> None:
    url = servers.postgres().new_url()
    with pytest.raises(MissingSchema, match="run: perdure migrate --url postgresql://127") as caught:
        await open_storage(f"{url}&migrate=never")
    assert "perdure@" not in str(caught.value)
    await migrate_storage(f"{url}&migrate=never")
    async with await open_storage(f"{url}&migrate=never") as storage:
        await insert_each(storage, make_record("k"))


async def test_an_older_schema_is_migrated_once_and_only_by_who_may() -> None:
    url = servers.postgres().new_url()
    await migrate_storage(url)
    newest = len(migrations())
    steps = (*migrations(), "CREATE TABLE added (); UPDATE perdure_schema SET version = version + 1")
    connections = await ConnectionPool.open(parse_url(url))
    try:
        with pytest.raises(
            MissingSchema,
            match=f"have schema version {newest}, but this version of perdure needs {newest + 1}",
        ):
            await prepare_schema(connections, may_migrate=False, steps=steps)
        await asyncio.gather(*[prepare_schema(connections, may_migrate=True, steps=steps) for _ in range(4)])
    finally:
        await connections.close()
    with pytest.raises(NewerSchema, match="upgrade perdure"):
        await open_storage(url)


async def test_a_schema_whose_commits_do_not_say_whether_they_were_written_is_migrated() -> None:
    """As an earlier development version made it."""
    url = servers.postgres().new_url()
    function = "CREATE FUNCTION commit_group(OUT overs bigint[]) LANGUAGE sql AS 'SELECT NULL::bigint[]'"
    connections = await ConnectionPool.open(parse_url(url))
    try:
        await prepare_schema(
            connections, may_migrate=True, steps=(migrations()[0], f"{migrations()[1]};{function}")
        )
    finally:
        await connections.close()
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record("k"))


async def test_a_migration_that_fails_leaves_nothing_behind() -> None:
    url = servers.postgres().new_url()
    connections = await ConnectionPool.open(parse_url(url))
    try:
        with pytest.raises(Exception, match="no_such_thing"):
            await prepare_schema(connections, may_migrate=True, steps=(*migrations(), "SELECT no_such_thing"))
    finally:
        await connections.close()
    with pytest.raises(MissingSchema):
        await open_storage(f"{url}&migrate=never")


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE {}.records (id int)",
        "CREATE TABLE {}.perdure_schema (id int)",
        "CREATE VIEW {}.news AS SELECT 1",
    ],
)
async def test_tables_of_others_are_not_touched(table: str) -> None:
    url = servers.postgres().new_url()
    schema = parse_url(url).quoted_schema
    async with session(url) as db:
        await db.execute(f"CREATE SCHEMA {schema}; {table.format(schema)}")
    for _ in range(2):
        with pytest.raises(ForeignStorage, match="use another schema"):
            await open_storage(url)
    async with session(url) as db:
        found = (
            "SELECT count(*) FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'v')"
        )
        assert await db.fetchval(found, schema) == 1


async def test_a_schema_may_contain_other_tables() -> None:
    url = servers.postgres().new_url()
    schema = parse_url(url).quoted_schema
    async with session(url) as db:
        await db.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.customers (id int)")
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record("k"))


async def test_a_table_of_the_session_does_not_hide_ours() -> None:
    url = servers.postgres().new_url()
    await migrate_storage(url)
    async with session(url) as db:
        await db.execute(
            "CREATE TEMPORARY TABLE news (stripe int); CREATE TEMPORARY TABLE records (key text)"
        )
        await db.execute("SELECT end_writing('channel', '', ARRAY[('a', 'b', 'c', 1)::delta])")
        assert await db.fetchval(statement("change_counter", parse_url(url).quoted_schema)) == 1


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_any_name_is_a_schema(name: str) -> None:
    schema = name if len(name) == 63 else f"{name}{uuid4().hex[:6]}"
    async with await open_storage(url_of(schema)) as storage, await open_storage(url_of(schema)) as other:
        await insert_each(storage, make_record("k", tag="t", expires_at=NOW + 1))
        assert await other.get(make_record("k").address, now=NOW) is not None
        assert (await other.maintain(repair=True)).findings == ()
        assert len(await other.purge(until=NOW + 1, limit=9)) == 1
    async with session(servers.postgres().url) as db:
        await db.execute(f"DROP SCHEMA {parse_url(url_of(schema)).quoted_schema} CASCADE")
        assert await db.fetchval("SELECT to_regclass('public.records')") is None
