"""The fake in a process of its own, for tests in which several processes poll it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from ...fork_server import PIPE, spawn

ROOT = Path(__file__).parents[3]


class FakeProcess:
    """A fake that runs elsewhere."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url = url
        self.returncode: int | None = None
        self._http = http

    async def order(self, what: str, **arguments: object) -> Any:  # noqa: ANN401 - any JSON
        """Turn one of its knobs; `control` lists them."""
        answer = await self._http.post(f"{self.url}/_fake/{what}", json=arguments)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]


@asynccontextmanager
async def fake_process(*arguments: str) -> AsyncGenerator[FakeProcess]:
    """Runs until the end of the block. It also ends when this process does."""
    process = await spawn("-m", "tests.feeds.fake_server", *arguments, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    try:
        async with httpx2.AsyncClient(timeout=60) as http:
            fake = FakeProcess(url, http)
            yield fake
    finally:
        process.stdin.close()
        returncode = await process.wait()
    fake.returncode = returncode
