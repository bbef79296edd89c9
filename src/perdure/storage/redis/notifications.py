"""Hearing of what other clients change: a subscription, held as long as somebody watches.

A message is a hint, and may be lost with its connection. So everybody is woken once a subscription stands,
the first time as well as after each break.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from ..errors import StorageError
from ..record import Address, Space
from ..signals import Signals
from .topology import Layout

QUIET = 10.0
"""Seconds of silence after which the server is asked whether it is still there."""
PAUSE = 0.5
"""Seconds before a broken subscription is tried again."""


class Listener:
    """Wakes the signals of this client for the changes of all others. Belongs to one event loop."""

    def __init__(self, layout: Layout, channel: bytes, client: bytes, signals: Signals) -> None:
        self._layout = layout
        self._channel = channel
        self._client = client
        self._signals = signals
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def attend(self) -> None:
        """Begin, or end, as there is somebody to wake or not."""
        if self._signals.is_watched and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif not self._signals.is_watched:
            self._end()

    async def close(self) -> None:
        self._end()
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    async def _run(self) -> None:
        while True:
            with suppress(RedisError, StorageError, OSError):
                await self._listen()
            self._layout.doubt()
            await asyncio.sleep(PAUSE)

    async def _listen(self) -> None:
        """Until the connection breaks, or its node is no longer the one to ask."""
        node = (await self._layout.places())[0]
        async with PubSub(node.pool) as subscription:
            async with asyncio.timeout(QUIET):
                await subscription.subscribe(self._channel)
            is_asked = False
            while not (is_asked and (await self._layout.places())[0] is not node):
                async with asyncio.timeout(2 * QUIET):  # the driver may begin to connect here, without end
                    message = cast("dict[str, Any] | None", await subscription.get_message(timeout=QUIET))
                if message is not None:
                    is_asked = False
                    self._hear(message["type"], message["data"])
                elif is_asked:
                    return
                else:
                    is_asked = True
                    await cast("Any", subscription).ping()

    def _hear(self, kind: str, data: bytes | int) -> None:
        if kind == "subscribe":
            self._signals.wake_all()
        if kind != "message" or not isinstance(data, bytes):
            return
        client, _, names = data.partition(b"\0")
        if client == self._client:
            return
        try:
            self._signals.wake(_addresses(names))
        except ValueError:  # too much was changed to be told, or somebody else speaks here
            self._signals.wake_all()


def _addresses(names: bytes) -> list[Address]:
    parts = names.decode().split("\0")
    places = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return [Address(Space(space), partition, key) for space, partition, key in places]
