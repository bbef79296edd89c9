"""Processes that do what the measuring process asks for: replicas are not always neighbours in one loop."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TypeAlias, cast

Link: TypeAlias = "Connection[object, object]"
"""Between the measuring process and one of the crew."""
Job: TypeAlias = Callable[..., object]
"""A function of a module: it is called with the link and what was given, and its result is sent back."""

PATIENCE = 60.0
"""Seconds without a word after which something is wrong."""


class Mate:
    """One process. It does one job after the other; a job may talk through the link meanwhile."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, job: Job, *given: object) -> None:
        self._link.send((job, given))

    def tell(self, word: object) -> None:
        self._link.send(word)

    def hear(self) -> object:
        """What the job says next; in the end, what came of it."""
        if not self._link.poll(PATIENCE):
            raise TimeoutError("a process of the crew says nothing")
        return self._link.recv()

    def dismiss(self) -> None:
        self._link.close()
        self._process.join()


class Crew:
    """So many processes, as a context manager."""

    def __init__(self, number: int) -> None:
        self.mates = [Mate() for _ in range(number)]

    def __enter__(self) -> list[Mate]:
        return self.mates

    def __exit__(self, *_: object) -> None:
        for mate in self.mates:
            mate.dismiss()


def _serve(link: Link) -> None:
    with suppress(EOFError, BrokenPipeError):  # dismissed
        while True:
            job, given = cast("tuple[Job, tuple[object, ...]]", link.recv())
            link.send(job(link, *given))
