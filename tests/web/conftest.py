from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest

from perdure.web import Dashboard

from .desk import Desk, at_a_desk, visiting


@pytest.fixture
async def desk(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Desk]:
    async with at_a_desk(tmp_path) as desk:
        yield desk


@pytest.fixture
async def client(desk: Desk) -> AsyncGenerator[httpx2.AsyncClient]:
    """Of a dashboard without a token."""
    async with visiting(Dashboard(desk.storage)) as client:
        yield client
