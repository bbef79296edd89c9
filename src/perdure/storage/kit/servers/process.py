"""Runs a server as a process with its own directory and port. A test can stop, kill, pause or restart it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self, cast

from ...install_advice import install_extra

SUPERVISOR = Path(__file__).with_name("supervisor.py")
START_TIMEOUT = 60.0
"""Maximum number of seconds to wait for a server to respond. It is high enough for slow machines."""
NOBODY_UID = 65534
"""The user id under which PostgreSQL runs if the tests run as root. PostgreSQL refuses to run as root."""


class MissingServer(Exception):
    """Raised when the program of a server is not installed. The message explains how to install it."""


class ServerFailed(Exception):
    """Raised when a server fails, cannot be installed, or is not running when it should be."""


class ManagedServer(ABC):
    """A server, or a group of servers. Use it as a context manager, or call `start` and `close`."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(ManagedServer):
    """A server that runs as a child process."""

    run_as: int | None = None

    def __init__(self) -> None:
        self.port = free_port()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.pid = 0

    @cached_property
    def folder(self) -> Path:
        """The temporary directory for the files of this server. It is created when it is first used."""
        return Path(tempfile.mkdtemp(prefix="perdure-server-"))

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return whether the server responds."""

    def environment(self) -> Mapping[str, str]:
        return {}

    def prepare(self) -> None:
        """Create the files that the server needs in its directory.

        `start` calls this before the first start.
        """

    def start(self) -> None:
        """Start the server and return when it responds. After a restart, the server still has its data."""
        if not any(self.folder.iterdir()):
            self.prepare()
        user = "-" if self.run_as is None else str(self.run_as)
        with self._log().open("ab") as log:
            self._supervisor = subprocess.Popen(  # noqa: S603 - a command of this module
                [sys.executable, "-I", "-S", str(SUPERVISOR), user, *self.command()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **self.environment()}, start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        self.pid = int(cast("IO[bytes]", self._supervisor.stdout).readline() or 0)
        deadline = time.monotonic() + START_TIMEOUT
        while not self.is_ready():
            if self._supervisor.poll() is not None or time.monotonic() > deadline:
                text = self._log().read_text(encoding="utf-8", errors="replace")
                raise ServerFailed(f"{self.name} did not start:\n{text[-2000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Shut the server down if it is running."""
        if self._supervisor is None:
            return
        self._supervisor.communicate()  # closes its standard input and waits until it ends
        self._supervisor = None

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash."""
        self._send(signal.SIGKILL)
        self.stop()

    def restart(self, *, crash: bool = False) -> None:
        if crash:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Suspend the server process until `resume` is called."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and delete its directory."""
        self.stop()
        if "folder" in vars(self):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _send(self, number: signal.Signals) -> None:
        if self._supervisor is None or not self.pid:  # a signal to process 0 would reach this process group
            raise ServerFailed(f"{self.name} is not running; call start() first")
        os.kill(self.pid, number)

    def _log(self) -> Path:
        return self.folder / "server.log"


def package_folder(name: str) -> Path:
    """Return the directory of an installed package, without importing the package."""
    found = find_spec(name)
    if found is None or found.origin is None:
        raise MissingServer(f"the server needs {name}; {install_extra('servers')}")
    return Path(found.origin).parent


PORTS = range(10_000, 32_000)
"""The ports that servers may use. The operating system uses higher ports for outgoing connections."""


def free_port() -> int:
    """Return a random port that is free now. Another process may take the port before the caller uses it."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def port_responds(port: int, request: bytes = b"", response: bytes = b"") -> bool:
    """Return whether a server listens on `port`.

    If `response` is not empty, also require that the server answers `request` with it.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            line.sendall(request)
            return not response or line.recv(len(response)) == response
    except OSError:
        return False


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Wait until `condition` returns true. After START_TIMEOUT seconds, raise ServerFailed(what)."""
    deadline = time.monotonic() + START_TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailed(what)
        time.sleep(0.05)
