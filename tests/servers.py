"""The servers of a test run: one of each kind, started when a test first needs it, closed at the end.

The process that runs pytest starts and closes them. Its test processes, and other runs with its environment,
ask it for their ports.

`PERDURE_WITHOUT` names engines that a run leaves out on purpose; any other missing server fails the run.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from perdure.storage.kit.servers import (
    CREDENTIALS,
    DynamoDbLocal,
    Dynoxide,
    ExtendDb,
    Postgres,
    Valkey,
    ValkeyCluster,
)

Shared: TypeAlias = Postgres | Valkey | ValkeyCluster | Dynoxide | ExtendDb | DynamoDbLocal
S = TypeVar("S", bound=Shared)

LEFT_OUT = frozenset(filter(None, os.environ.get("PERDURE_WITHOUT", "").split(",")))
LOCAL_JAR = os.environ.get("PERDURE_DYNAMODB_LOCAL")
"""The path of Amazon's DynamoDB Local, to test it too; see docs/reference/dynamodb.md."""

ADDRESS = "PERDURE_TEST_SERVERS"
"""The environment variable with the path of the host's socket."""


class Answer(msgspec.Struct):
    """The host's reply: the ports of a server, or why it could not be started."""

    ports: list[int] = []
    error: str = ""


class Host:
    """Starts servers on request, each once, for all processes of a run."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-test-servers-"))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._folder / "socket"))
        self._socket.listen(64)
        self._servers: dict[str, Shared] = {}
        self._locks = {name: threading.Lock() for name in _KINDS}
        threading.Thread(target=self._serve, daemon=True).start()
        os.environ[ADDRESS] = str(self._folder / "socket")

    def close(self) -> None:
        """Close every server, and delete its files."""
        os.environ.pop(ADDRESS, None)
        self._socket.close()
        for server in self._servers.values():
            server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self) -> None:
        with suppress(OSError):  # the socket was closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            name = connection.recv(1024).decode()
            try:
                answer = Answer(ports=_ports_of(self._started(name)))
            except Exception as error:  # the test that asked fails with it
                answer = Answer(error=f"{type(error).__name__}: {error}")
            connection.sendall(msgspec.json.encode(answer))

    def _started(self, name: str) -> Shared:
        with self._locks[name]:
            if name not in self._servers:
                server = _KINDS[name]()
                try:
                    server.start()
                except BaseException:
                    server.close()
                    raise
                self._servers[name] = server
            return self._servers[name]


def postgres() -> Postgres:
    return _attached("postgres", Postgres)


def system_postgres() -> Postgres:
    """Return the system's PostgreSQL, which is an older version."""
    return _attached("system_postgres", Postgres)


def system_binaries() -> Path | None:
    """Return the directory of Debian's newest PostgreSQL, or None if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def valkey() -> Valkey:
    return _attached("valkey", Valkey)


def valkey_cluster() -> ValkeyCluster:
    return _attached("valkey_cluster", ValkeyCluster)


def dynoxide() -> Dynoxide:
    os.environ.update(CREDENTIALS)
    return _attached("dynoxide", Dynoxide)


def extenddb() -> ExtendDb:
    os.environ.update(CREDENTIALS)
    return _attached("extenddb", ExtendDb)


def dynamodb_local() -> DynamoDbLocal:
    os.environ.update(CREDENTIALS)
    return _attached("dynamodb_local", DynamoDbLocal)


_KINDS: dict[str, Callable[[], Shared]] = {
    "postgres": Postgres,
    "system_postgres": lambda: Postgres(system_binaries()),
    "valkey": Valkey,
    "valkey_cluster": ValkeyCluster,
    "dynoxide": Dynoxide,
    "extenddb": ExtendDb,
    "dynamodb_local": lambda: DynamoDbLocal(Path(LOCAL_JAR or "")),
}


@cache
def host() -> Host:
    """Return the host of this process. Call this before starting processes that share its servers."""
    return Host()


def close_all() -> None:
    """Close the servers that this process has started, at the end of the run."""
    if host.cache_info().currsize:
        host().close()
        host.cache_clear()
        _attached.cache_clear()


atexit.register(close_all)


@cache
def _attached(name: str, kind: type[S]) -> S:
    """Return a server that the host has started. It can be used, but not stopped or paused from here."""
    if ADDRESS not in os.environ:
        host()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(name.encode())
        answer = msgspec.json.decode(b"".join(iter(lambda: connection.recv(65536), b"")), type=Answer)
    if answer.error:
        raise RuntimeError(f"the server {name} did not start: {answer.error}")
    server = _KINDS[name]()
    assert isinstance(server, kind)
    nodes = server.nodes if isinstance(server, ValkeyCluster) else [server]
    for node, port in zip(nodes, answer.ports, strict=True):
        node.port = port
    return server


def _ports_of(server: Shared) -> list[int]:
    nodes = server.nodes if isinstance(server, ValkeyCluster) else [server]
    return [node.port for node in nodes]
