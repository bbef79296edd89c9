"""`python -m benchmarks.wire.profile`: profile a server during `comparison`.

A profile slows everything down, and small functions the most. It covers only the thread of the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from .apps import docket, durable, plain
from .client import Run, call, collect
from .server_process import Server

SERVERS = ("plain", "sqlite", "memory", "docket")


class Arguments(argparse.Namespace):
    server: str
    concurrency: int
    tasks: int


def arguments() -> Arguments:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire.profile", description=__doc__)
    parser.add_argument("server", nargs="?", choices=SERVERS, default="sqlite")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=500)
    return parser.parse_args(namespace=Arguments())


def make(name: str, folder: Path) -> Server:
    match name:
        case "plain":
            return Server(plain)
        case "docket":
            return Server(docket, "memory://")
        case "memory":
            return Server(durable, "memory:")
        case _:
            return Server(durable, f"sqlite:///{folder / 'wire.db'}")


async def profile(given: Arguments, folder: Path) -> str:
    drive = call if given.server == "plain" else collect
    with make(given.server, folder) as server:
        await drive(server, given.tasks // 4, given.concurrency)
        text = _described(await drive(server, given.tasks, given.concurrency))
        server.profile()
        profiled = _described(await drive(server, given.tasks, given.concurrency))
        return f"without a profile: {text}\nwith it: {profiled}\n\n{server.profiled()}"


def _described(run: Run) -> str:
    return (
        f"{run.number} in {run.wall:.2f} s, {run.requests} requests, "
        f"CPU of the server {run.server:.2f} s, of the driver {run.driver:.2f} s"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(asyncio.run(profile(arguments(), Path(folder))))


if __name__ == "__main__":
    main()
