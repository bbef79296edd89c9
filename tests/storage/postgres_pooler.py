"""A transaction pooler, as PgBouncer is one: it lends a client a server connection for one transaction.

It is meaner than it need be: each transaction gets the connection that has rested longest, and whatever the
one before left there is discarded first. It speaks as much of the protocol as that takes.
"""

from __future__ import annotations

import asyncio
import struct
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import NamedTuple

SSL_REQUEST = 80877103
CANCEL_REQUEST = 80877102
KNOWN_SETTINGS = {"user", "database", "client_encoding", "application_name"}
"""What a client may say about itself at the beginning; a pooler refuses other settings."""


class Message(NamedTuple):
    kind: bytes
    body: bytes

    def __bytes__(self) -> bytes:
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body


async def read_message(reader: StreamReader) -> Message | None:
    """The next message, or None at the end."""
    try:
        kind = await reader.readexactly(1)
        (size,) = struct.unpack("!i", await reader.readexactly(4))
        return Message(kind, await reader.readexactly(size - 4))
    except (IncompleteReadError, ConnectionError):
        return None


class Backend:
    """A connection to the server."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.key = b""
        self.greeting: list[Message] = []

    async def until_ready(self) -> list[Message]:
        """All messages up to the one that says that the server waits for us."""
        messages: list[Message] = []
        while not messages or messages[-1].kind != b"Z":
            message = await read_message(self.reader)
            if message is None:
                raise ConnectionError("the server closed the connection")
            messages.append(message)
        return messages

    async def forget(self) -> None:
        """Drop whatever the last client left in the session."""
        self.writer.write(bytes(Message(b"Q", b"DISCARD ALL\0")))
        await self.until_ready()


class Pooler:
    """Serves clients on `port`. `statements` has what was prepared, by its name."""

    def __init__(self, server_port: int, user: str, connections: int) -> None:
        self.port = 0
        self.statements: list[tuple[bytes, bytes]] = []
        self.transactions = 0
        self._server_port = server_port
        self._user = user
        self._size = connections
        self._resting: asyncio.Queue[Backend] = asyncio.Queue()
        self._serving: dict[int, Backend] = {}
        self._clients = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One client, from its first byte to its last."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            client = await self._greet(reader, writer)
            if client is not None:
                await self._serve_transactions(client, reader, writer)
        except ConnectionError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def fill(self) -> None:
        for _ in range(self._size):
            self._resting.put_nowait(await self._connect())

    async def empty(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._resting.empty():
            self._resting.get_nowait().writer.close()

    async def _connect(self) -> Backend:
        backend = Backend(*await asyncio.open_connection("127.0.0.1", self._server_port))
        settings = f"user\0{self._user}\0database\0postgres\0client_encoding\0utf-8\0\0".encode()
        backend.writer.write(struct.pack("!ii", len(settings) + 8, 196608) + settings)
        backend.greeting = await backend.until_ready()
        backend.key = next(each.body for each in backend.greeting if each.kind == b"K")
        return backend

    async def _greet(self, reader: StreamReader, writer: StreamWriter) -> int | None:
        """The number of a new client; None, if it wanted only to cancel, or asked too much."""
        while True:
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            body = await reader.readexactly(size - 8)
            if code == CANCEL_REQUEST:
                await self._cancel(*struct.unpack("!ii", body))
                return None
            if code != SSL_REQUEST:
                break
            writer.write(b"N")
        asked = {name.decode() for name in body.split(b"\0")[:-2:2]}
        if not asked <= KNOWN_SETTINGS:
            fields = b"SFATAL\0C08P01\0Munsupported startup parameter\0\0"
            writer.write(bytes(Message(b"E", fields)))
            return None
        client = next(self._clients)
        backend = await self._resting.get()
        self._resting.put_nowait(backend)
        for message in backend.greeting:
            is_key = message.kind == b"K"
            writer.write(bytes(Message(b"K", struct.pack("!ii", client, client)) if is_key else message))
        return client

    async def _cancel(self, client: int, _: int) -> None:
        backend = self._serving.get(client)
        if backend is None:
            return
        _reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        writer.write(struct.pack("!ii", 16, CANCEL_REQUEST) + backend.key)
        await writer.drain()
        writer.close()

    async def _serve_transactions(self, client: int, reader: StreamReader, writer: StreamWriter) -> None:
        asked: asyncio.Queue[Message | None] = asyncio.Queue()
        reading = asyncio.ensure_future(_read_all(reader, asked))
        try:
            while (first := await asked.get()) is not None and first.kind != b"X":
                backend = await self._resting.get()
                self._serving[client] = backend
                self.transactions += 1
                try:
                    await self._transact(backend, first, asked, writer)
                    await backend.forget()
                except BaseException:
                    backend.writer.close()
                    backend = await self._connect()
                    raise
                finally:
                    del self._serving[client]
                    self._resting.put_nowait(backend)
        finally:
            reading.cancel()

    async def _transact(
        self, backend: Backend, first: Message, asked: asyncio.Queue[Message | None], writer: StreamWriter
    ) -> None:
        """Hand messages on in both directions until the server is idle again."""
        sending = asyncio.ensure_future(self._send(backend, first, asked))
        try:
            while True:
                message = await read_message(backend.reader)
                if message is None or sending.done():
                    raise ConnectionError("one of the two is gone")
                writer.write(bytes(message))
                if message == Message(b"Z", b"I"):
                    return
        finally:
            sending.cancel()

    async def _send(self, backend: Backend, first: Message, asked: asyncio.Queue[Message | None]) -> None:
        message: Message | None = first
        while message is not None and message.kind != b"X":
            if message.kind == b"P":
                name, text, *_ = message.body.split(b"\0")
                self.statements.append((name, text))
            backend.writer.write(bytes(message))
            message = await asked.get()
        backend.writer.close()  # the client has gone in the middle: so does its transaction


async def _read_all(reader: StreamReader, messages: asyncio.Queue[Message | None]) -> None:
    message: Message | None = Message(b"", b"")
    while message is not None:
        message = await read_message(reader)
        messages.put_nowait(message)


@asynccontextmanager
async def pooler(server_port: int, user: str, connections: int = 3) -> AsyncGenerator[Pooler]:
    one = Pooler(server_port, user, connections)
    await one.fill()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        await one.empty()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()
