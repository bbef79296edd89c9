from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx2
import pytest

from perdure.web import Dashboard, keeping, live

from .desk import Desk, at_a_desk, visiting


@pytest.fixture
async def desk(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Desk]:
    async with at_a_desk(tmp_path) as desk:
        yield desk


@pytest.fixture
def drawn_often() -> Generator[None]:
    """Pages are drawn as often as ever, though a look may take long on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping, "SHARE", 1)
        patch.setattr(live, "SHARE", 1)
        yield


@pytest.fixture
async def client(desk: Desk) -> AsyncGenerator[httpx2.AsyncClient]:
    """Of a dashboard without a token."""
    async with visiting(Dashboard(desk.storage)) as client:
        yield client
