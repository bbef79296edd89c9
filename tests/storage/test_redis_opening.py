"""URLs, and the checks before a storage is opened."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Generator
from typing import Any

import pytest
from redis.asyncio.connection import Connection, SSLConnection

from perdure.storage import open_storage
from perdure.storage.errors import (
    CannotOpen,
    ForeignStorage,
    NewerSchema,
    StorageUnavailable,
    UnsafeServer,
)
from perdure.storage.kit.sample_records import NOW, SPACE, insert_each, make_record
from perdure.storage.kit.servers import Valkey
from perdure.storage.redis.location import parse_url

from ..markers import row
from .redis_helpers import client_of, storage_on

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Generator[Valkey]:
    with Valkey() as server:
        yield server


URLS: dict[str, dict[str, Any]] = {
    "redis://localhost": {"kind": "single", "hosts": (("localhost", 6379),)},
    "redis://h:1/3": {"hosts": (("h", 1),), "db": 3},
    "rediss://h": {"connection_class": SSLConnection},
    "redis://u:p%40ss@[::1]:7": {"hosts": (("::1", 7),), "username": "u", "password": "p@ss"},
    "redis://:only@h": {"password": "only"},
    "redis+cluster://a:1,b:2/": {"kind": "cluster", "hosts": (("a", 1), ("b", 2)), "db": 0},
    "rediss+cluster://a": {"kind": "cluster", "connection_class": SSLConnection},
    "redis+sentinel://a,b:5/main/2": {
        "kind": "sentinel",
        "hosts": (("a", 26379), ("b", 5)),
        "service": "main",
        "db": 2,
        "connection_class": Connection,
    },
    "redis+sentinel://a/main?sentinel_password=s": {"sentinel": {"ssl": False, "password": "s"}},
    "redis://h?prefix=other&timeout=0.5&replicas=2&replica_timeout=3": {
        "prefix": "other",
        "timeout": 0.5,
        "replicas": 2,
        "replica_timeout": 3.0,
        "socket_connect_timeout": 0.5,
    },
    "redis://h?client_name=me&health_check_interval=9": {"client_name": "me", "health_check_interval": 9},
}


@pytest.mark.parametrize("url", URLS)
def test_what_a_url_says(url: str) -> None:
    location = parse_url(url)
    for name, value in URLS[url].items():
        found = getattr(location, name, None) or getattr(location.options, name, location.driver.get(name))
        assert found == value, name


WRONG = [
    "redis://",
    "redis://h:port",
    "redis://h/db",
    "redis://h/0/1",
    "redis://a,b",
    "redis://h#fragment",
    "redis+other://h",
    "redis+sentinel://h",
    "redis+cluster://h/1",
    "redis://h?prefix=",
    "redis://h?prefix={a}",
    "redis://h?timeout=0",
    "redis://h?timeout=nan",
    "redis://h?replicas=-1",
    "redis://h?eviction=maybe",
    "redis://h?decode_responses=true",
    "redis://h?socket_timeout=1",
    "redis://h?no_such_option=1",
    "redis://h?health_check_interval=often",
]


@pytest.mark.parametrize("url", WRONG)
async def test_a_url_that_is_wrong_is_refused(url: str) -> None:
    with pytest.raises(CannotOpen):
        await open_storage(url)


TELLING = [
    "redis://u:secret@127.0.0.1:1",
    "redis://u:secret@h/db",
    "redis://u:secret@h?timeout=0",
    "redis://h/db?password=secret",
    "redis://h/db?password=x@secret",
    *(
        f"redis{kind}://u:{password}@h/0"
        for kind in ("", "+cluster", "+sentinel")
        for mark in "/?#@"
        for password in (f"secret{mark}x", f"x{mark}secret", f"1{mark}secret", f"1{mark}secret=1")
        if mark != "@" or kind == "+cluster"
    ),
]


async def test_no_error_shows_the_password() -> None:
    for url in TELLING:
        with pytest.raises((CannotOpen, StorageUnavailable)) as caught:
            await open_storage(url)
        outcome = "".join(traceback.format_exception(caught.value))
        assert "secret" not in outcome, url


async def test_a_server_that_evicts_is_refused_unless_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with Valkey({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as server:
        with pytest.raises(UnsafeServer):
            await open_storage(server.new_url())
        with caplog.at_level(logging.WARNING):
            async with storage_on(server, "&eviction=accept") as storage:
                await insert_each(storage, make_record())
        assert "allkeys-lru" in caplog.text
        server.send_command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        async with storage_on(server) as storage:
            await insert_each(storage, make_record())


@row(108)
async def test_a_server_without_a_log_is_refused_unless_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with Valkey({"appendonly": "no"}) as server:
        with pytest.raises(UnsafeServer, match="set appendonly yes, or add persistence=any"):
            await open_storage(server.new_url())
        with caplog.at_level(logging.WARNING):
            async with storage_on(server, "&persistence=any") as storage:
                await insert_each(storage, make_record())
        assert "acknowledged writes may be lost" in caplog.text


async def test_a_server_that_flushes_its_log_later_is_refused_on_demand() -> None:
    with Valkey({"appendfsync": "everysec"}) as server:
        async with storage_on(server) as storage:
            await insert_each(storage, make_record())
        with pytest.raises(UnsafeServer, match="set appendfsync always"):
            await open_storage(server.new_url("&persistence=always"))
        server.send_command("CONFIG", "SET", "appendfsync", "always")
        async with storage_on(server, "&persistence=always") as storage:
            await insert_each(storage, make_record())


async def test_a_server_that_does_not_say_when_it_flushes_is_refused_on_demand(server: Valkey) -> None:
    server.send_command("ACL", "SETUSER", "half", "on", ">secret", "~*", "&*", "+@all", "-config")
    url = server.new_url().replace("redis://", "redis://half:secret@")
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record())
    with pytest.raises(UnsafeServer, match="is not 'always', or cannot be read"):
        await open_storage(f"{url}&persistence=always")


async def test_a_good_server_is_opened_in_silence(server: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with storage_on(server, "&persistence=always"):
            assert caplog.text == ""


@row(108)
async def test_a_server_that_does_not_say_how_it_is_set_up_is_refused_unless_accepted(
    server: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    server.send_command("ACL", "SETUSER", "blind", "on", ">secret", "~*", "&*", "+@all", "-info")
    url = server.new_url().replace("redis://", "redis://blind:secret@")
    with pytest.raises(UnsafeServer, match="allow the command INFO, or add persistence=any"):
        await open_storage(url)
    with caplog.at_level(logging.WARNING):
        async with await open_storage(f"{url}&persistence=any") as storage:
            await insert_each(storage, make_record())
    assert "does not allow INFO: acknowledged writes may be lost" in caplog.text


async def test_a_wrong_password_is_no_reason_to_try_again(server: Valkey) -> None:
    server.send_command("ACL", "SETUSER", "known", "on", ">secret", "~*", "&*", "+@all")
    with pytest.raises(CannotOpen, match="user and password"):
        await open_storage(server.new_url().replace("redis://", "redis://known:wrong@"))


async def test_missing_permissions_are_reported(server: Valkey) -> None:
    server.send_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@all", "-@write")
    with pytest.raises(CannotOpen, match="the user's permissions"):
        await open_storage(server.new_url().replace("redis://", "redis://reader:secret@"))


async def test_a_server_that_is_no_cluster_is_not_opened_as_one(server: Valkey) -> None:
    with pytest.raises(CannotOpen):
        await open_storage(f"redis+cluster://127.0.0.1:{server.port}/")


@pytest.mark.parametrize("options", ["", "&protocol=2", "&protocol=3"])
@pytest.mark.parametrize("right", ["+hello", "-hello"])
async def test_a_replica_is_not_taken_for_a_master(server: Valkey, right: str, options: str) -> None:
    if right == "-hello" and options != "&protocol=2":
        right = "-role"  # without HELLO the driver supports only the older protocol
    server.send_command("ACL", "SETUSER", "some", "reset", "on", ">secret", "~*", "&*", "+@all", right)
    url = server.new_url(options).replace("redis://", "redis://some:secret@")
    async with await open_storage(url) as storage:
        await insert_each(storage, make_record())
    server.send_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StorageUnavailable, match="not a master"):
            await open_storage(url)
    finally:
        server.send_command("REPLICAOF", "NO", "ONE")


async def test_a_user_with_no_more_than_is_written_in_the_docs(server: Valkey) -> None:
    rights = ("+@read", "+@write", "+@scripting", "+@connection", "+@pubsub", "+info")
    server.send_command(
        "ACL", "SETUSER", "modest", "on", ">secret", "~{modest:*", "&modest:changes", "-@all", *rights
    )
    url = f"redis://modest:secret@127.0.0.1:{server.port}/0?prefix=modest&replicas=0"
    async with await open_storage(url) as storage, storage.watch(SPACE) as watch:
        await watch.changed()
        await insert_each(storage, make_record(tag="t", expires_at=NOW + 1))
        assert (await storage.maintain()).findings == ()
        assert len(await storage.page(SPACE, limit=9, now=NOW)) == 1
        assert len(await storage.purge(until=NOW + 1, limit=9)) == 1


async def test_a_server_that_is_not_there_may_come(server: Valkey) -> None:
    with pytest.raises(StorageUnavailable):
        await open_storage("redis://127.0.0.1:1")


async def test_what_is_not_ours_is_left_alone(server: Valkey) -> None:
    async with client_of(server) as client:
        await client.set("{foreign:00}format", "theirs")
        await client.set("{later:00}format", "99")
        await client.rpush("{list:00}format", "theirs")
    for prefix, error in (("foreign", ForeignStorage), ("later", NewerSchema), ("list", ForeignStorage)):
        with pytest.raises(error):
            await open_storage(f"{server.url}?prefix={prefix}")


async def test_prefixes_and_databases_separate_storages(server: Valkey) -> None:
    urls = (f"{server.url}?prefix=a", f"{server.url}?prefix=b", f"redis://127.0.0.1:{server.port}/1?prefix=a")
    for url in urls:
        async with await open_storage(url) as storage:
            await insert_each(storage, make_record(body=f'"{url}"'))
    for url in urls:
        async with await open_storage(url) as storage:
            (found,) = await storage.page(SPACE, limit=9, now=NOW)
            assert found.body == f'"{url}"'
