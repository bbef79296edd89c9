"""What a server of 2026-07-28 sends, judged by the schemas that the official package of tasks brings.

A `Recorded` client keeps what came; when a module's tests are done, all of it is judged in one go.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from .conformance.suite import HERE, NODE, check_installed
from .raw_clients import Answer, Client2026, Json

VALIDATE = HERE / "validate.mjs"


class Published:
    """Messages to be judged."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def answer(self, method: str, params: Mapping[str, Any], answer: Answer) -> None:
        self._lines.append(json.dumps({"method": method, "params": params, "message": answer.message}))

    def frame(self, message: Json) -> None:
        self._lines.append(json.dumps({"message": message}))

    def wrongs(self) -> list[str]:
        """What is wrong with any of them."""
        check_installed()
        told = subprocess.run(
            [NODE, VALIDATE],
            input="\n".join(self._lines),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=HERE,
        )
        *wrongs, summary = [json.loads(line) for line in told.stdout.splitlines()]
        assert summary == {"judged": len(self._lines)}, summary
        return [wrong["wrong"] for wrong in wrongs]


@contextmanager
def judged() -> Generator[Published]:
    """Collect within this block; leaving it fails where anything collected is not as published."""
    published = Published()
    yield published
    wrongs = published.wrongs()
    assert not wrongs, "\n".join(wrongs)


class Recorded(Client2026):
    """A client that keeps what came, to be judged."""

    def __init__(self, url: str, published: Published, *, token: str | None = None) -> None:
        super().__init__(url, token=token)
        self._published = published
        self.last_id: object = None
        """Of the request that was sent last."""

    async def __aenter__(self) -> Recorded:
        return self

    def body(self, method: str, params: Mapping[str, Any], capabilities: Json) -> Json:
        body = super().body(method, params, capabilities)
        self.last_id = body["id"]
        return body

    async def send(self, method: str, params: Mapping[str, Any] = {}, **options: Any) -> Answer:
        answer = await super().send(method, params, **options)
        self._published.answer(method, params, answer)
        return answer

    async def notify(self, method: str, params: Json) -> int:
        """Send a notification; the status of the response."""
        body = {key: value for key, value in self.body(method, params, {}).items() if key != "id"}
        return (await self._http.post(self._url, json=body, headers=self.headers(method, None))).status_code

    @asynccontextmanager
    async def listen(
        self, notifications: Json, *, declared: bool = True
    ) -> AsyncGenerator[AsyncIterator[Json]]:
        async with super().listen(notifications, declared=declared) as frames:
            yield self._kept(frames)

    async def _kept(self, frames: AsyncIterator[Json]) -> AsyncIterator[Json]:
        async for frame in frames:
            if "method" in frame:
                self._published.frame(frame)
            yield frame
