"""Child processes for benchmarks of several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TypeAlias, cast

Link: TypeAlias = "Connection[object, object]"
"""The connection between the measuring process and a child."""
Job: TypeAlias = Callable[..., object]
"""A function at module level. It is called with the link and the arguments, and its result is sent back."""

RECEIVE_TIMEOUT = 60.0
"""Seconds after which `receive` gives up."""


class ChildProcess:
    """One process. It runs one job after the other; a job can send and receive messages through its link."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, job: Job, *given: object) -> None:
        self._link.send((job, given))

    def send(self, message: object) -> None:
        self._link.send(message)

    def receive(self) -> object:
        """Return the next message of the job; the last one is its result."""
        if not self._link.poll(RECEIVE_TIMEOUT):
            raise TimeoutError("a child process does not respond")
        return self._link.recv()

    def stop(self) -> None:
        self._link.close()
        self._process.join()


class ProcessGroup:
    """Several processes, as a context manager."""

    def __init__(self, number: int) -> None:
        self.processes = [ChildProcess() for _ in range(number)]

    def __enter__(self) -> list[ChildProcess]:
        return self.processes

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.stop()


def _serve(link: Link) -> None:
    with suppress(EOFError, BrokenPipeError):  # stopped
        while True:
            job, given = cast("tuple[Job, tuple[object, ...]]", link.recv())
            link.send(job(link, *given))
