"""Receives notifications from other clients, and wakes the watches (readers that wait for a change).

The client is subscribed only while there are watches. Messages are lost while the connection is broken.
Therefore every successful subscription, including the first, wakes all watches.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from ..errors import StorageError
from ..records_and_changes import Address, Space
from ..watch import WatchRegistry
from .topology import Topology

KEEPALIVE_SECONDS = 10.0
"""Number of seconds without a message after which a ping is sent to the server."""
RESUBSCRIBE_DELAY = 0.5
"""Number of seconds between the loss of a connection and the next attempt to subscribe."""


class Listener:
    """Wakes watches when another client changes a record. Use a listener in only one event loop."""

    def __init__(self, topology: Topology, channel: bytes, client: bytes) -> None:
        self.watches = WatchRegistry(on_watched_changed=self._update)
        self._topology = topology
        self._channel = channel
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        self._stop()
        if self._stopping:
            await asyncio.wait(self._stopping)

    def _update(self) -> None:
        """Start listening if there are watches, and stop if there are none."""
        if self.watches.is_watched and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif not self.watches.is_watched:
            self._stop()

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
            task.cancel()

    async def _run(self) -> None:
        while True:
            with suppress(RedisError, StorageError, OSError):
                await self._listen()
            self._topology.invalidate()
            await asyncio.sleep(RESUBSCRIBE_DELAY)

    async def _listen(self) -> None:
        """Listen on the node that has shard 0, until the connection breaks or the node loses the shard."""
        node = (await self._topology.nodes_by_shard())[0]
        async with PubSub(node.pool) as subscription:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                await subscription.subscribe(self._channel)
            is_pinged = False
            while not (is_pinged and (await self._topology.nodes_by_shard())[0] is not node):
                # The driver may reconnect in get_message, which has no time limit of its own.
                async with asyncio.timeout(2 * KEEPALIVE_SECONDS):
                    message = cast(
                        "dict[str, Any] | None", await subscription.get_message(timeout=KEEPALIVE_SECONDS)
                    )
                if message is not None:
                    is_pinged = False
                    self._on_message(message["type"], message["data"])
                elif is_pinged:
                    return
                else:
                    is_pinged = True
                    await cast("Any", subscription).ping()

    def _on_message(self, kind: str, data: bytes | int) -> None:
        if kind == "subscribe":
            self.watches.wake_all()
        if kind != "message" or not isinstance(data, bytes):
            return
        client, _, names = data.partition(b"\0")
        if client == self._client:
            return
        try:
            parts = names.decode().split("\0")
            addresses = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
            self.watches.wake([Address(Space(space), partition, key) for space, partition, key in addresses])
        except ValueError:  # a message without addresses, or from another application
            self.watches.wake_all()
