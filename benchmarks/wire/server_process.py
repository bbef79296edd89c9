"""A server in a process of its own, as the measuring process sees it and as it is there.

What it serves is in a module beside this one, so that no server carries the libraries of another.
"""

from __future__ import annotations

import asyncio
import cProfile
import io
import logging
import pstats
import socket
from collections.abc import Callable
from time import process_time
from types import TracebackType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from ..processes import Link, Mate
from .apps import PATH

HOST = "127.0.0.1"
SHOWN = 25
"""Functions in each list of a profile."""
OURS = "/perdure/(mcp|runtime|tasks|storage)/"
"""The modules of which a profile has lists of their own."""


# In the measuring process


class Server:
    """One of them, as a context manager. It listens from the start, and is stopped in the end."""

    def __init__(self, make: Callable[..., ASGIApp], *given: str) -> None:
        self._mate = Mate()
        self._mate.begin(_serve, make, given)
        self.port = cast("int", self._mate.hear())
        self.url = f"http://{HOST}:{self.port}{PATH}"

    def cpu(self) -> float:
        """Seconds of the processor that its whole process has used so far."""
        return cast("float", self._ask("cpu"))

    def profile(self) -> None:
        """Write down from now on where the time of its event loop goes."""
        self._ask("profile")

    def profiled(self) -> str:
        """Where it went, and an end of writing it down."""
        return cast("str", self._ask("profiled"))

    def _ask(self, word: str) -> object:
        self._mate.tell(word)
        return self._mate.hear()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None:
            self._ask("stop")
        self._mate.dismiss()


# In the process of the server


def _serve(link: Link, make: Callable[..., ASGIApp], given: tuple[str, ...]) -> None:
    asyncio.run(_Serving(link).serve(make, given))


class _Serving:
    """A server that does as it is told through the link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._profile = cProfile.Profile()

    async def serve(self, make: Callable[..., ASGIApp], given: tuple[str, ...]) -> None:
        # With the protocol named, as uvicorn's own sockets have it: asyncio turns off Nagle's algorithm only
        # then, and with it each answer waits 40 ms for an acknowledgement.
        with socket.socket(proto=socket.IPPROTO_TCP) as listener:
            listener.bind((HOST, 0))
            app = make(*given)
            logging.disable(logging.WARNING)  # after the frameworks have set up theirs
            self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
            running = asyncio.create_task(self._server.serve([listener]))
            while not self._server.started:
                assert not running.done(), "the server did not start"
                await asyncio.sleep(0.01)
            asyncio.get_running_loop().add_reader(self._link.fileno(), self._hear)
            self._link.send(listener.getsockname()[1])
            await running

    def _hear(self) -> None:
        try:
            word = self._link.recv()
        except EOFError:  # the measuring process is gone
            self._stop()
            return
        match word:
            case "cpu":
                self._link.send(process_time())
            case "profile":
                self._profile.enable()
                self._link.send(None)
            case "profiled":
                self._profile.disable()
                self._link.send(_listed(self._profile))
            case _:
                self._stop()

    def _stop(self) -> None:
        """What `_serve` returns is the answer."""
        asyncio.get_running_loop().remove_reader(self._link.fileno())
        self._server.should_exit = True


def _listed(profile: cProfile.Profile) -> str:
    text = io.StringIO()
    stats = pstats.Stats(profile, stream=text)
    for order in ("cumulative", "tottime"):
        stats.sort_stats(order).print_stats(SHOWN).print_stats(OURS, SHOWN)
    return text.getvalue()
