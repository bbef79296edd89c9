"""A storage of each engine, a store that clients write through, and an operator beside it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from perdure.operating import Operator
from perdure.storage import Storage
from perdure.storage.kit import Subject
from perdure.tasks import StoreConfig, TaskStore

from ..storage.subjects import ENGINES
from ..tasks.samples import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def subject(on_engine: str, anyio_backend: str) -> AsyncGenerator[Subject]:
    async with ENGINES[on_engine]() as opened:
        yield opened


@pytest.fixture
async def store(subject: Subject, clock: Clock) -> TaskStore:
    return TaskStore(subject.storage, StoreConfig(allow_anonymous=True), clock=clock)


@pytest.fixture
async def operator(subject: Subject, clock: Clock) -> Operator:
    return Operator(subject.storage, clock)


async def close(subject: Subject, other: Storage) -> None:
    """Another client of the subject; the memory engine is one for all of its clients."""
    if subject.url is not None:
        await other.close()
