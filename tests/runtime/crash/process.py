"""A process of the storm: `python -m tests.runtime.crash.process ORDERS`, until its input is closed."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

import msgspec

from . import broken_runtimes, recording_engine
from .clients import Client
from .functions import app_on
from .journal import Complained, Dropped, Journal
from .recording_engine import SCHEME, Doom

Role: TypeAlias = Literal["worker", "server", "client", "drainer"]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told on its command line."""

    role: Role
    name: str
    """No two processes of a storm have the same."""
    url: str
    folder: str
    """Where the journals are."""
    seed: int
    heartbeat: float
    doom: Doom | None = None
    broken: str | None = None
    """What is to be wrong with the runtime, to see that it is noticed."""


async def obey(orders: Orders) -> None:
    journal = Journal(Path(orders.folder), orders.name)
    logging.getLogger("perdure").addHandler(Listener(journal))
    recording_engine.install(journal, orders.doom)
    broken_runtimes.install(orders.broken)
    app = app_on(f"{SCHEME}:{orders.url}", journal, orders.heartbeat)
    async with app.open(work=orders.role != "client", name=orders.name) as runtime:
        client = Client(runtime, journal, Random(orders.seed))
        acts = [asyncio.create_task(act) for act in acts_of(orders.role, client)]
        await asyncio.wait([*acts, asyncio.create_task(input_closed())], return_when="FIRST_COMPLETED")
        for act in acts:
            if act.done():
                act.result()  # raises: none of them ends by itself
            act.cancel()


def acts_of(role: Role, client: Client) -> list[Coroutine[None, None, None]]:
    """A server creates what it runs itself, if it can; a client runs nothing."""
    match role:
        case "worker":
            return []
        case "server":
            return [client.create(), client.cancel(), client.read()]
        case "client":
            return [client.create(), client.cancel(), client.read(), client.read(), client.answer()]
        case "drainer":
            return [client.answer()]


async def input_closed() -> None:
    """Nothing is ever sent: that there is something to read is the end. So no process outlives the storm."""
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), closed.set)
    await closed.wait()


class Listener(logging.Handler):
    """Notes what the runtime says of lost leases, and every error that it logs."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        if "no outcome was stored" in record.getMessage() and isinstance(record.args, tuple):
            task, attempt, *_ = record.args
            self._journal.add(Dropped(task=str(task), attempt=int(str(attempt))))
        elif record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            self._journal.add(Complained(text=f"{record.getMessage()} ({error!r})"))


if __name__ == "__main__":
    asyncio.run(obey(msgspec.json.decode(sys.argv[1], type=Orders)))
