"""For tests: a client of the fake server, and perdure's own source on it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import httpx2

from perdure.feeds import FeedSettings, PollSettings
from perdure.feeds.bluesky import BlueskySource, open_bluesky
from perdure.feeds.settings import BlueskySettings
from perdure.storage import Micros

from ..simulation import Json, World
from .server import FEED, FakeBluesky

Asked: TypeAlias = str | int | list[str]

LOGIN = "com.atproto.server.createSession"


class Reader:
    """A client of the fake server."""

    def __init__(self, fake: FakeBluesky, http: httpx2.AsyncClient) -> None:
        self.fake = fake
        self.world = fake.world
        self._http = http

    async def get(
        self, method: str, *, headers: dict[str, str] | None = None, **asked: Asked
    ) -> httpx2.Response:
        return await self._http.get(f"{self.fake.url}/xrpc/{method}", params=asked, headers=headers)

    async def post(
        self, method: str, *, token: str | None = None, body: Json | None = None
    ) -> httpx2.Response:
        headers = {} if token is None else bearing(token)
        return await self._http.post(f"{self.fake.url}/xrpc/{method}", json=body, headers=headers)

    async def feed(self, actor: str, *, headers: dict[str, str] | None = None, **asked: Asked) -> Json:
        answer = await self.get(FEED, headers=headers, actor=actor, **asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refusal(
        self, method: str, *, headers: dict[str, str] | None = None, **asked: Asked
    ) -> tuple[int, str, str]:
        answer = await self.get(method, headers=headers, **asked)
        body = answer.json()
        assert body.keys() == {"error", "message"}
        return answer.status_code, body["error"], body["message"]

    async def login(self, did: str) -> Json:
        self.fake.sessions.passwords[did] = "secret"
        answer = await self.post(LOGIN, body={"identifier": did, "password": "secret"})
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def asking(
    world: World,
    *,
    requires_auth: bool = False,
    latency: float = 0.0,
    clock: Callable[[], Micros] = lambda: time.time_ns() // 1000,
) -> AsyncGenerator[Reader]:
    """A fake server over a world, and a client of it."""
    fake = FakeBluesky(world, requires_auth=requires_auth, latency=latency, clock=clock)
    async with fake, httpx2.AsyncClient(timeout=20) as http:
        yield Reader(fake, http)


@asynccontextmanager
async def reading(fake: FakeBluesky) -> AsyncGenerator[BlueskySource]:
    """The source that perdure has for Bluesky, on the fake."""
    bluesky = BlueskySettings(service=fake.url, pds=fake.url)
    polling = PollSettings(max_retries=0)
    async with open_bluesky(FeedSettings(bluesky=bluesky, polling=polling)) as source:
        yield source


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def texts(page: Json) -> list[str]:
    return [item["post"]["record"]["text"] for item in page["feed"]]


def identity(item: Json) -> str:
    return item.get("reason", {}).get("uri") or item["post"]["uri"]
