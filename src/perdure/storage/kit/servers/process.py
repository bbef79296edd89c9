"""A server process: a folder, a port, and what tests do to it. Subclasses know what differs."""

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
from types import TracebackType
from typing import IO, Self, cast

SUPERVISOR = Path(__file__).with_name("supervisor.py")
START_TIMEOUT = 60.0
"""Seconds until a server that does not answer is given up. Not a measure of speed."""
NOBODY_UID = 65534
"""The user that servers run as which refuse to run as root."""


class MissingServer(Exception):
    """The package that holds this server is not installed; the message says how to get it."""


class ServerFailed(Exception):
    """The server did not start; the message has the end of its log."""


class ManagedServer(ABC):
    """What is started and closed, by hand or for a block of `with`."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Server(ManagedServer):
    """One server process, made ready by `start` and ended by `stop`."""

    run_as: int | None = None

    def __init__(self) -> None:
        self.port = free_port()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self.pid = 0

    @cached_property
    def folder(self) -> Path:
        """Where everything of this server is; made when it is first asked for."""
        return Path(tempfile.mkdtemp(prefix="perdure-server-"))

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def command(self) -> list[str]:
        """What to run."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers."""

    def environment(self) -> Mapping[str, str]:
        return {}

    def prepare(self) -> None:
        """What is done once, before the first start."""

    def start(self) -> None:
        """Start, or start again on what is in the folder; return when it answers."""
        if not any(self.folder.iterdir()):
            self.prepare()
        user = "-" if self.run_as is None else str(self.run_as)
        with self._log().open("ab") as log:
            self._supervisor = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-I", "-S", str(SUPERVISOR), user, *self.command()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **self.environment()}, start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        self.pid = int(cast("IO[bytes]", self._supervisor.stdout).readline() or 0)
        deadline = time.monotonic() + START_TIMEOUT
        while not self.is_ready():
            if self._supervisor.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} did not start:\n{self._log_tail()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """An orderly end. Calling it again does nothing."""
        if self._supervisor is None:
            return
        self._supervisor.communicate()  # closes its input, and waits
        self._supervisor = None

    def kill(self) -> None:
        """The hard way, as a crash would be."""
        self._send(signal.SIGKILL)
        self.stop()

    def restart(self, *, crash: bool = False) -> None:
        if crash:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process, as a stall would."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def close(self) -> None:
        """Stop, and leave nothing behind."""
        self.stop()
        if "folder" in vars(self):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _send(self, number: signal.Signals) -> None:
        if self._supervisor is None or not self.pid:  # 0 would be everybody in our process group
            raise ServerFailed(f"{self.name} is not running")
        os.kill(self.pid, number)

    def _log(self) -> Path:
        return self.folder / "server.log"

    def _log_tail(self) -> str:
        return self._log().read_text(encoding="utf-8", errors="replace")[-2000:]


def package_folder(name: str) -> Path:
    """Where an installed package is. It is not imported: it may have a mind of its own."""
    found = find_spec(name)
    if found is None or found.origin is None:
        raise MissingServer(f"{name} is not installed; run: pip install 'perdure[servers]'")
    return Path(found.origin).parent


PORTS = range(10_000, 32_000)
"""Below the ports of outgoing connections, one of which could take the port before its server listens."""


def free_port() -> int:
    """Return a random port that was free a moment ago."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def port_responds(port: int, question: bytes = b"", answer: bytes = b"") -> bool:
    """Whether something listens there, and answers so."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
            line.sendall(question)
            return not answer or line.recv(len(answer)) == answer
    except OSError:
        return False


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """Return when it is so; else fail with what is not."""
    deadline = time.monotonic() + START_TIMEOUT
    while not is_so():
        if time.monotonic() > deadline:
            raise ServerFailed(what)
        time.sleep(0.05)
