"""A bench for tools."""

from __future__ import annotations

import pytest

from .tool_server import ToolServer


@pytest.fixture
def bench(anyio_backend: str) -> ToolServer:
    return ToolServer()
