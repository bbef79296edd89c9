"""Who may open a storage, and the errors for those who may not."""

from __future__ import annotations

import logging
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest

from perdure.storage import migrate_storage, open_storage
from perdure.storage.errors import CannotOpen, StorageReadOnly, StorageUnavailable, UnsafeServer
from perdure.storage.kit.sample_records import NOW, insert_each, make_record
from perdure.storage.kit.servers import Postgres
from perdure.storage.postgres.location import parse_url

from .. import servers
from ..markers import row
from .helpers import inserting
from .postgres_helpers import session

pytestmark = pytest.mark.anyio

ANY_CHARACTERS = "p@ss:w/o?r#d %&='\"é"


@pytest.fixture(scope="module")
def guarded() -> Generator[Postgres]:
    """A server that asks every user but us for a password."""
    with Postgres() as server:
        rules = Path(server.folder / "data" / "pg_hba.conf")
        ours = "host all perdure 127.0.0.1/32 trust\n"
        rules.write_text(f"{ours}host all all 127.0.0.1/32 scram-sha-256\n", encoding="utf-8")
        server.restart()
        yield server


async def new_user(server: Postgres, rights: str = "") -> str:
    name = f"User {uuid4().hex[:6]}"
    async with session(server.url) as db:
        password = ANY_CHARACTERS.replace("'", "''")
        await db.execute(f"""CREATE ROLE "{name}" LOGIN PASSWORD '{password}' {rights}""")
        await db.execute(f'GRANT CREATE ON DATABASE postgres TO "{name}"')
    return name


def as_user(server: Postgres, name: str, password: str = ANY_CHARACTERS, database: str = "postgres") -> str:
    return (
        f"postgresql://{quote(name, safe='')}:{quote(password, safe='')}@127.0.0.1:{server.port}/{database}"
        f"?schema=perdure_{uuid4().hex}"
    )


async def test_a_password_may_contain_any_character(guarded: Postgres) -> None:
    async with await open_storage(as_user(guarded, await new_user(guarded))) as storage:
        await insert_each(storage, make_record("k"))
        assert (await storage.maintain(repair=True)).findings == ()


async def test_failed_authentication_says_what_to_check(guarded: Postgres) -> None:
    user = await new_user(guarded)
    with pytest.raises(CannotOpen, match="check the user, the password") as caught:
        await open_storage(as_user(guarded, user, "wrong-secret"))
    assert "wrong-secret" not in str(caught.value)
    with pytest.raises(CannotOpen, match="the database does not exist"):
        await open_storage(as_user(guarded, user, database="missing"))


async def test_a_full_server_is_unavailable(guarded: Postgres) -> None:
    url = as_user(guarded, await new_user(guarded, "CONNECTION LIMIT 1"))
    async with await open_storage(url):
        with pytest.raises(StorageUnavailable):
            await open_storage(url)
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record("k"))


async def test_who_may_only_read_reads(guarded: Postgres) -> None:
    url = as_user(guarded, await new_user(guarded))
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record("k"))
    reader = await new_user(guarded)
    schema = parse_url(url).quoted_schema
    async with session(url) as db:
        await db.execute(f'GRANT USAGE ON SCHEMA {schema} TO "{reader}"')
        await db.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO "{reader}"')
    url = as_user(guarded, reader).partition("?")[0] + "?" + url.partition("?")[2]
    async with await open_storage(url) as storage:
        assert await storage.get(make_record("k").address, now=NOW) is not None
        with pytest.raises(StorageReadOnly):
            await storage.commit(inserting(make_record("l")), now=NOW)


async def test_a_server_that_only_reads_is_read() -> None:
    url = servers.postgres().new_url()
    await migrate_storage(url)
    async with await open_storage(f"{url}&default_transaction_read_only=on") as storage:
        assert await storage.get(make_record("k").address, now=NOW) is None
        with pytest.raises(StorageReadOnly):
            await storage.commit(inserting(make_record("k")), now=NOW)


async def test_what_cannot_be_reached_may_be_there_later() -> None:
    with pytest.raises(StorageUnavailable) as caught:
        await open_storage("postgresql://user:secret@127.0.0.1:1/db")
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, OSError)
    assert "secret" not in str(caught.value)


async def test_a_database_in_another_encoding_is_refused() -> None:
    name = f"latin_{uuid4().hex}"
    async with session(servers.postgres().url) as db:
        await db.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(CannotOpen, match="is LATIN1; use a database whose encoding is UTF8"):
        await open_storage(servers.postgres().url.replace("/postgres", f"/{name}"))


# Servers that may lose what they acknowledged


@row(108)
async def test_a_server_that_does_not_flush_its_writes_is_refused_unless_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Postgres(settings={"fsync": "off"}) as server:
        url = server.new_url()
        with pytest.raises(UnsafeServer, match="set fsync = on, or add persistence=any"):
            await open_storage(url)
        with caplog.at_level(logging.WARNING):
            async with await open_storage(f"{url}&persistence=any") as storage:
                await insert_each(storage, make_record("k"))
        assert "acknowledged writes can be lost" in caplog.text


async def test_a_server_that_a_power_cut_may_damage_is_refused_on_demand() -> None:
    with Postgres(settings={"full_page_writes": "off"}) as server:
        url = server.new_url()
        with pytest.raises(UnsafeServer, match="full_page_writes"):
            await open_storage(f"{url}&persistence=always")
        async with await open_storage(url) as storage:
            await insert_each(storage, make_record("k"))
