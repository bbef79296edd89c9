"""The engines under test, in each of their modes, as subjects of the contract kit.

`ENGINES` is what the kit runs over. Tests of the layers above take `layer_subject` or `layer_url` of the
engine that `tests.engines` chooses for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from perdure.storage import Micros, Storage, migrate_storage, open_storage
from perdure.storage.dynamodb.location import parse_url
from perdure.storage.kit import Factory, Subject
from perdure.storage.memory import MemoryEngine

from .. import engines, servers
from ..forwarding_engine import ForwardingEngine
from .damage import damage
from .dynamodb_helpers import client_of, settle, table_of
from .pool import pooled
from .postgres_pooler import pooler
from .weak import MayLose, WeakMemoryEngine, loses_nothing


async def no_clock_to_advance(_: Micros) -> None:
    """These engines have no clock of their own, or never act on it within a test."""


@asynccontextmanager
async def memory() -> AsyncGenerator[Subject]:
    """Its second client is another `Storage` of the same engine. It cannot be reopened or shared."""
    engine = MemoryEngine()

    async def second_client() -> Storage:
        return Storage(engine)

    yield Subject(Storage(engine), second_client=second_client, advance_time=no_clock_to_advance)


@asynccontextmanager
async def on_memory(engine: WeakMemoryEngine) -> AsyncGenerator[Subject]:
    async def second_client() -> Storage:
        return Storage(engine)

    yield Subject(
        Storage(engine),
        second_client=second_client,
        advance_time=no_clock_to_advance,
        catch_up=engine.settle,
    )


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
        damage=partial(damage, url),
    )
    try:
        yield subject
    finally:
        await subject.storage.close()


def on_server(new_url: Callable[[], str]) -> Factory:
    """A storage of its own on a server that needs no preparation."""
    return lambda: at(new_url())


def from_pool(kind: str, options: str = "") -> Factory:
    """A storage of the pool, opened with these options."""

    @asynccontextmanager
    async def factory() -> AsyncGenerator[Subject]:
        async with pooled(kind) as url, at(f"{url}{options}") as subject:
            yield subject

    return factory


@asynccontextmanager
async def postgres_pooled() -> AsyncGenerator[Subject]:
    """Behind a pooler that gives each transaction another session."""
    port = servers.postgres().port
    async with (
        pooled("postgres") as url,
        pooler(port, "perdure") as one,
        at(f"{url}&pooler=transaction".replace(f":{port}/", f":{one.port}/")) as subject,
    ):
        subject.damage = partial(damage, url)
        yield subject


def dynamodb(kind: str) -> Factory:
    """A table of the pool, and a way to wait for its indexes."""

    @asynccontextmanager
    async def factory() -> AsyncGenerator[Subject]:
        async with (
            pooled(kind) as url,
            client_of(parse_url(url).options.endpoint_url or "") as db,
            at(url) as subject,
        ):
            subject.catch_up = lambda: settle(db, table_of(url))
            yield subject

    return factory


class _Flushed(ForwardingEngine):
    """The server forgets its scripts before every verb."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def line(self, verb: str) -> Storage:
        servers.valkey().send_command("SCRIPT", "FLUSH")
        return self.storage


@asynccontextmanager
async def redis_flushed() -> AsyncGenerator[Subject]:
    async with at(servers.valkey().new_url()) as subject:
        subject.storage = Storage(_Flushed(subject.storage))
        yield subject


_MODES: dict[str, Factory] = {
    "memory": memory,
    "memory-weak": lambda: on_memory(WeakMemoryEngine(engines.seed(), lag=0.01, missed_wake_ups=0)),
    "sqlite": sqlite,
    "sqlite-normal": sqlite_normal,
    "postgres": from_pool("postgres"),
    "postgres-one": from_pool("postgres", "&pool=1"),
    "postgres-pooled": postgres_pooled,
    "redis": on_server(lambda: servers.valkey().new_url()),
    "redis-flushed": redis_flushed,
    "redis-cluster": on_server(lambda: servers.valkey_cluster().new_url()),
    "dynamodb": dynamodb("dynamodb"),
    "dynamodb-strict": dynamodb("dynamodb-strict"),
}
if servers.system_binaries() is not None:
    _MODES["postgres-system"] = from_pool("postgres-system")
if servers.LOCAL_JAR is not None:
    _MODES["dynamodb-local"] = dynamodb("dynamodb-local")


def engine_of(mode: str) -> str:
    return mode.partition("-")[0]


ENGINES: dict[str, Factory] = {
    mode: factory for mode, factory in _MODES.items() if engine_of(mode) not in servers.LEFT_OUT
}


# For the layers above


def layer_subject(
    engine: str, test: pytest.Item, may_lose: MayLose = loses_nothing
) -> AbstractAsyncContextManager[Subject]:
    """A storage for a test of a layer above. Memory is as weak as the contract allows, by the test's name."""
    if engine == "memory" and test.get_closest_marker("strong_memory") is None:
        return on_memory(WeakMemoryEngine(engines.number_of(test.nodeid), may_lose=may_lose))
    return ENGINES[engine]()


@asynccontextmanager
async def layer_url(engine: str, test: pytest.Item, folder: Path) -> AsyncGenerator[str]:
    """The same as a URL, for a test that opens it in this process only."""
    if engine == "memory" and test.get_closest_marker("strong_memory") is None:
        yield f"weak:{engines.number_of(test.nodeid)}"
    elif engine in ("postgres", "dynamodb"):
        async with pooled(engine) as url:
            yield url
    else:
        yield await new_url(engine, folder)


async def new_url(engine: str, folder: Path) -> str:
    """A storage that no other test uses before or after, for a test with processes of its own."""
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
