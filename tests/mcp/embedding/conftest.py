"""Where the servers keep their tasks."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path: Path, anyio_backend: str) -> str:
    return f"sqlite:///{tmp_path / 'tasks.db'}"
