"""Wakes the watches (waiting readers) of this client when other clients commit.

A listener uses LISTEN or, behind a connection pooler, polling. It stops soon after the last open watch is
closed. After a reconnect, all watches wake, because changes may have been missed.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from ..errors import StorageError
from ..records_and_changes import Address
from ..watch import WatchRegistry
from .errors import DRIVER_ERRORS
from .pool import CLOSE_TIMEOUT, CONNECT_TIMEOUT, ConnectionPool
from .schema import statement

if TYPE_CHECKING:
    from .pool import Connection

LINGER_SECONDS = 5.0
"""Number of seconds to listen after the last open watch is closed. A new watch is often opened soon."""
RECONNECT_DELAY = 1.0
"""Number of seconds to wait before a lost connection is replaced."""
KEEPALIVE_SECONDS = 30.0
"""Number of seconds between two checks that the connection for notifications still works."""
POLL_SECONDS = 0.2
MAX_PAYLOAD_BYTES = 7_999


class ChangeListener(ABC):
    """Wakes watches when other clients make changes. Its asyncio task runs while a watch is open."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.watches = WatchRegistry(on_watched_changed=self._on_watched_changed)
        self._pool = pool
        self._client = uuid4().hex
        self._task: asyncio.Task[None] | None = None
        self._stopped: set[asyncio.Task[None]] = set()
        self._end: asyncio.TimerHandle | None = None

    def message(self, addresses: Sequence[Address] | None) -> str:
        """Return the notification to send after changes at `addresses`.

        If `addresses` is None or too long for a notification, the notification wakes all watches.
        """
        message = msgspec.json.encode((self._client, addresses))
        if len(message) > MAX_PAYLOAD_BYTES:
            return self.message(None)
        return message.decode()

    async def close(self) -> None:
        self.watches.close()
        if self._end is not None:
            self._end.cancel()
        self._stop()
        if self._stopped:
            await asyncio.wait(self._stopped)

    @abstractmethod
    async def _listen_once(self) -> None:
        """Connect, and wake watches until the connection is lost."""

    async def _listen_forever(self) -> None:
        while True:
            with suppress(StorageError, *DRIVER_ERRORS):
                await self._listen_once()
            await asyncio.sleep(RECONNECT_DELAY)

    def _on_watched_changed(self) -> None:
        loop = asyncio.get_running_loop()
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not self.watches.is_watched:
            self._end = loop.call_later(LINGER_SECONDS, self._stop)
        elif self._task is None:
            self._task = loop.create_task(self._listen_forever())

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._stopped.add(self._task)
            self._task.add_done_callback(self._stopped.discard)
            self._task = None


class NotifyListener(ChangeListener):
    """Uses a separate connection to receive the notifications that other clients send."""

    async def _listen_once(self) -> None:
        connection = await self._pool.connect()
        try:
            await self._listen(connection)
        finally:
            try:
                await connection.close(timeout=CLOSE_TIMEOUT)
            except DRIVER_ERRORS:
                connection.terminate()

    async def _listen(self, connection: Connection) -> None:
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.execute(statement("announce_listener", self._pool.location.quoted_schema))
        await connection.add_listener(self._pool.location.channel, self._on_notification)
        self.watches.wake_all()
        while not lost.is_set():
            try:
                await asyncio.wait_for(lost.wait(), KEEPALIVE_SECONDS)
            except TimeoutError:
                await connection.execute("SELECT", timeout=CONNECT_TIMEOUT)

    def _on_notification(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        try:
            client, addresses = msgspec.json.decode(str(payload), type=tuple[str, list[Address] | None])
        except msgspec.DecodeError:  # another application sent this notification
            client, addresses = "", None
        if client == self._client:
            return  # this client made the change, and woke its own watches when the write returned
        if addresses is None:
            self.watches.wake_all()
        else:
            self.watches.wake(addresses)


class PollingListener(ChangeListener):
    """Polls a counter that increases with every change. It is used with poolers, as they lack LISTEN."""

    async def _listen_once(self) -> None:
        sql = statement("change_counter", self._pool.location.quoted_schema)
        last: object = None
        while True:
            [[number]] = await self._pool.read(sql)
            if number != last:
                self.watches.wake_all()
            last = number
            await asyncio.sleep(POLL_SECONDS)
