"""Several hosts: one that does not answer is skipped, and so is a standby, since its data may be old."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest

from perdure.storage import open_storage
from perdure.storage.errors import StorageReadOnly, StorageUnavailable
from perdure.storage.kit.sample_records import NOW, insert_each, make_record
from perdure.storage.kit.servers import Postgres
from perdure.storage.postgres import pool
from perdure.storage.postgres.location import parse_url

from .. import servers
from .helpers import in_time, inserting, keys_of
from .postgres_helpers import Standby, at_last, session

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def primary() -> Generator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def standby(primary: Postgres) -> Generator[Standby]:
    with Standby(primary) as server:
        yield server


def at_hosts(url: str, *ports: int) -> str:
    """The same URL with these ports instead of its own."""
    head, _, tail = url.partition("@")
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"{head}@{hosts}/{tail.partition('/')[2]}"


@asynccontextmanager
async def silent_host() -> AsyncGenerator[int]:
    """The port of one who takes connections and says nothing."""
    over = asyncio.Event()

    async def be_silent(_: StreamReader, writer: StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(be_silent, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def test_a_standby_is_not_read(primary: Postgres, standby: Standby) -> None:
    url = primary.new_url()
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record("k"))
    for option in ("", "&target_session_attrs=any", "&target_session_attrs=standby"):
        with pytest.raises(StorageUnavailable, match="standbys") as caught:
            await open_storage(at_hosts(url, standby.port) + option)
        assert caught.value.retryable


@pytest.mark.parametrize("option", ["", "&target_session_attrs=read-write"])
async def test_the_primary_is_found_behind_a_standby(
    primary: Postgres, standby: Standby, option: str
) -> None:
    url = primary.new_url(option)
    async with await open_storage(at_hosts(url, standby.port, primary.port)) as storage:
        await insert_each(storage, make_record("k"))
        assert await keys_of(storage) == ["k"]


async def test_hosts_behind_a_silent_one_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CONNECT_TIMEOUT", 1.0)
    server = servers.postgres()
    async with silent_host() as silent:
        url = at_hosts(server.new_url(), silent, server.port)
        async with await at_last(lambda: open_storage(url)) as storage:
            await insert_each(storage, make_record("k"))
        with pytest.raises(StorageUnavailable):
            await in_time(open_storage(at_hosts(url, silent)))


async def test_sessions_that_may_only_read_are_not_kept() -> None:
    url = servers.postgres().new_url("&pool=1")
    role = parse_url(url).quoted_schema
    async with await open_storage(url), session(url) as db:
        await db.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
        await db.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
        async with await open_storage(
            url.replace("perdure@", f"{parse_url(url).options.schema}@")
        ) as storage:
            await db.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
            with pytest.raises(StorageReadOnly):
                await storage.commit(inserting(make_record("k")), now=NOW)
            await insert_each(storage, make_record("k"))
        await db.execute(f"DROP ROLE {role}")
