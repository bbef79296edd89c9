"""A server in its own process: the side of the measuring process, and the side of the server."""

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

from ..processes import ChildProcess, Link
from .apps import PATH

HOST = "127.0.0.1"
SHOWN = 25
"""Functions in each list of a profile."""
OURS = "/perdure/(mcp|runtime|tasks|storage)/"
"""The modules for which a profile has a separate list."""


# In the measuring process


class Server:
    """A server as a context manager: listening on entry, stopped on exit."""

    def __init__(self, make: Callable[..., ASGIApp], *given: str) -> None:
        self._process = ChildProcess()
        self._process.start(_serve, make, given)
        self.port = cast("int", self._process.receive())
        self.url = f"http://{HOST}:{self.port}{PATH}"

    def cpu(self) -> float:
        """Return the CPU seconds that its whole process has used so far."""
        return cast("float", self._ask("cpu"))

    def profile(self) -> None:
        """Start to profile its event loop."""
        self._ask("profile")

    def profiled(self) -> str:
        """Stop profiling, and return the profile."""
        return cast("str", self._ask("profiled"))

    def _ask(self, word: str) -> object:
        self._process.send(word)
        return self._process.receive()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None:
            self._ask("stop")
        self._process.stop()


# In the process of the server


def _serve(link: Link, make: Callable[..., ASGIApp], given: tuple[str, ...]) -> None:
    asyncio.run(_Serving(link).serve(make, given))


class _Serving:
    """Serve, and follow the commands that arrive through the link."""

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
            asyncio.get_running_loop().add_reader(self._link.fileno(), self._receive)
            self._link.send(listener.getsockname()[1])
            await running

    def _receive(self) -> None:
        try:
            message = self._link.recv()
        except EOFError:  # the measuring process has ended
            self._stop()
            return
        match message:
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
        """Return what `_serve` returns."""
        asyncio.get_running_loop().remove_reader(self._link.fileno())
        self._server.should_exit = True


def _listed(profile: cProfile.Profile) -> str:
    text = io.StringIO()
    stats = pstats.Stats(profile, stream=text)
    for order in ("cumulative", "tottime"):
        stats.sort_stats(order).print_stats(SHOWN).print_stats(OURS, SHOWN)
    return text.getvalue()
