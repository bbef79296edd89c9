"""The engines under test, as subjects of the contract kit. `ENGINES` is what every suite runs over."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.storage import Micros, Storage, open_storage
from perdure.storage.kit import Factory, Subject
from perdure.storage.memory import MemoryEngine


async def no_clock_to_advance(_: Micros) -> None:
    """These engines have no clock of their own."""


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
        url = f"sqlite:///{Path(folder) / 'records.db'}{options}"
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


@asynccontextmanager
async def sqlite_normal() -> AsyncGenerator[Subject]:
    async with sqlite("?synchronous=normal") as subject:
        yield subject


ENGINES: dict[str, Factory] = {"memory": memory, "sqlite": sqlite, "sqlite-normal": sqlite_normal}
