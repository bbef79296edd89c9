"""A task store on each engine, with a clock that only a test advances."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from perdure.storage.kit import Subject
from perdure.tasks import StoreConfig, TaskStore

from ..storage.engines import layer_subject
from .samples import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def subject(
    on_engine: str, request: pytest.FixtureRequest, anyio_backend: str
) -> AsyncGenerator[Subject]:
    async with layer_subject(on_engine, request.node) as opened:
        yield opened


@pytest.fixture
async def store(subject: Subject, clock: Clock) -> TaskStore:
    return TaskStore(subject.storage, StoreConfig(allow_anonymous=True), clock=clock, application="tests")
