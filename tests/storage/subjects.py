"""The engines under test, in each of their modes, as subjects of the contract kit.

`ENGINES` is what the kit runs over; `FIVE` has one mode of each engine, for suites of the layers above.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.storage import Micros, Storage, migrate_storage, open_storage
from perdure.storage.kit import Factory, Subject
from perdure.storage.kit.servers.postgres import of_system
from perdure.storage.memory import MemoryEngine

from .. import servers
from ..forwarding import Forwarding
from .dynamodb_helpers import subject_on
from .postgres_pooler import pooler


async def no_clock_to_advance(_: Micros) -> None:
    """These engines have no clock of their own, or never act on it within a test."""


@asynccontextmanager
async def memory() -> AsyncGenerator[Subject]:
    """Its second client is another port on the same engine; it cannot be reopened or shared by processes."""
    engine = MemoryEngine()

    async def second_client() -> Storage:
        return Storage(engine)

    yield Subject(Storage(engine), second_client=second_client, advance_time=no_clock_to_advance)


@asynccontextmanager
async def sqlite(options: str = "") -> AsyncGenerator[Subject]:
    with tempfile.TemporaryDirectory() as folder:
        async with at(f"sqlite:///{Path(folder) / 'records.db'}{options}") as subject:
            yield subject


@asynccontextmanager
async def sqlite_normal() -> AsyncGenerator[Subject]:
    async with sqlite("?synchronous=normal") as subject:
        yield subject


@asynccontextmanager
async def at(url: str) -> AsyncGenerator[Subject]:
    """A storage that a URL names, and that is not there yet."""
    subject = Subject(
        await open_storage(url),
        reopen=lambda: open_storage(url),
        second_client=lambda: open_storage(url),
        advance_time=no_clock_to_advance,
        url=url,
    )
    try:
        yield subject
    finally:
        await subject.storage.close()


def served(new_url: Callable[[], str]) -> Factory:
    """A storage of its own on a server."""
    return lambda: at(new_url())


@asynccontextmanager
async def postgres_pooled() -> AsyncGenerator[Subject]:
    """Behind a pooler that gives each transaction another session."""
    server = servers.postgres()
    async with pooler(server.port, "perdure") as one:
        url = server.new_url("&pooler=transaction").replace(f":{server.port}/", f":{one.port}/")
        async with at(url) as subject:
            yield subject


class _Flushed(Forwarding):
    """The server forgets its scripts before every verb."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def line(self, verb: str) -> Storage:
        servers.valkey().ask("SCRIPT", "FLUSH")
        return self.storage


@asynccontextmanager
async def redis_flushed() -> AsyncGenerator[Subject]:
    async with at(servers.valkey().new_url()) as subject:
        subject.storage = Storage(_Flushed(subject.storage))
        yield subject


_MODES: dict[str, Factory] = {
    "memory": memory,
    "sqlite": sqlite,
    "sqlite-normal": sqlite_normal,
    "postgres": served(lambda: servers.postgres().new_url()),
    "postgres-one": served(lambda: servers.postgres().new_url("&pool=1")),
    "postgres-pooled": postgres_pooled,
    "redis": served(lambda: servers.valkey().new_url()),
    "redis-flushed": redis_flushed,
    "redis-cluster": served(lambda: servers.valkey_cluster().new_url()),
    "dynamodb": lambda: subject_on(servers.dynoxide()),
    "dynamodb-strict": lambda: subject_on(servers.extenddb()),
}
if of_system() is not None:
    _MODES["postgres-system"] = served(lambda: servers.system_postgres().new_url())
if servers.LOCAL_JAR is not None:
    _MODES["dynamodb-local"] = lambda: subject_on(servers.dynamodb_local())


async def new_url(engine: str, folder: Path) -> str:
    """A storage of one of the five that is empty, and ready to be opened."""
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory:",
        "sqlite": lambda: f"sqlite:///{folder / 'tasks.db'}",
        "postgres": lambda: servers.postgres().new_url(),
        "redis": lambda: servers.valkey().new_url(),
        "dynamodb": lambda: servers.dynoxide().new_url(),
    }
    url = urls[engine]()
    if engine == "dynamodb":
        await migrate_storage(url)
    return url


def engine_of(mode: str) -> str:
    return mode.partition("-")[0]


ENGINES: dict[str, Factory] = {
    mode: factory for mode, factory in _MODES.items() if engine_of(mode) not in servers.LEFT_OUT
}
FIVE = [mode for mode in ENGINES if mode == engine_of(mode)]
