"""Replicas on each engine: every one has a client of its own, as if it were another process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest

from perdure.storage.kit import Subject

from ..storage.engines import layer_subject
from .replicas import Replicas
from .weak import is_repeated


@pytest.fixture
async def subject(
    on_engine: str, request: pytest.FixtureRequest, anyio_backend: str
) -> AsyncGenerator[Subject]:
    async with layer_subject(on_engine, request.node, is_repeated) as opened:
        yield opened


@pytest.fixture
async def replicas(subject: Subject) -> AsyncGenerator[Replicas]:
    async with AsyncExitStack() as stack:
        yield Replicas(subject, stack)
