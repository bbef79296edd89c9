"""A bad network: a TCP proxy on loopback that forwards bytes, and by a seeded plan does worse.

What becomes of a piece of a conversation is drawn from the seed, the number of the connection, the direction
and the number of the piece. When a piece comes, and how long it is, no seed decides.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Coroutine, Sequence
from random import Random
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeAlias, get_args

Kind: TypeAlias = Literal["cut", "tear", "reset", "half-close", "swallow", "delay", "refuse"]
"""What is done to a piece:

cut         it is lost, and both sides find the connection closed
tear        half of it arrives, then the same
reset       it is lost, and both sides find the connection reset
half-close  it is lost, and its receiver sees the end of the stream; the other direction continues
swallow     a request arrives and is answered, but in the place of the answer comes the end of the connection
delay       it is late
refuse      it arrives, but new connections are refused for a while
"""
KINDS: tuple[Kind, ...] = get_args(Kind)

HOST = "127.0.0.1"
PIECE = 65536
MAX_DELAY_SECONDS = 0.3
MAX_REFUSAL_SECONDS = 0.5
_AT_ONCE = struct.pack("ii", 1, 0)
"""A socket that lingers for no time is closed by a reset."""


class Fault(NamedTuple):
    kind: Kind
    strength: float
    """From 0 to 1, for those that last."""


class _Plan(NamedTuple):
    seed: int
    kinds: Sequence[Kind]
    often: float

    def draw(self, piece: str, *, is_request: bool) -> Fault | None:
        chance = Random(f"{self.seed} {piece}")
        if chance.random() >= self.often:
            return None
        fault = Fault(chance.choice(self.kinds), chance.random())
        return None if fault.kind == "swallow" and not is_request else fault


class Proxy:
    """Stands before the server at `target`, on a port of its own, while its block lasts. It begins calm."""

    def __init__(self, target: int) -> None:
        self.met: Counter[Kind] = Counter()
        """How often each kind was done."""
        self.accepted = 0
        self._target = target
        self._place = _bound(0)  # which keeps the port while there is no listener
        self.port: int = self._place.getsockname()[1]
        self._listener: socket.socket | None = None
        self._unattended: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._plan: _Plan | None = None

    async def __aenter__(self) -> Self:
        self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        self._ignore()
        for line in (self._place, *self._unattended):
            line.close()

    def start_faults(self, seed: int, kinds: Sequence[Kind] = KINDS, often: float = 0.05) -> None:
        """From now on strike this part of all pieces."""
        self._plan = _Plan(seed, kinds, often)

    def stop_faults(self) -> None:
        """Forward everything from now on. A delay, or a time of refused connections, still ends."""
        self._plan = None

    def draw(self, piece: str, *, is_request: bool) -> Fault | None:
        return None if self._plan is None else self._plan.draw(piece, is_request=is_request)

    def refuse(self, seconds: float) -> None:
        """Refuse new connections for so long."""
        if self._listener is not None:
            self._ignore()
            self._attend(self._listen_in(seconds))

    def _listen(self) -> None:
        """Without the loop's own server, which stumbles over who comes while it is being closed."""
        self._listener = _bound(self.port)
        self._listener.listen()
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def _listen_in(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._listen()

    def _ignore(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except OSError:
            return  # who came has left
        line.settimeout(0)
        self._unattended.add(line)
        self.accepted += 1
        self._attend(self._link(f"{self.accepted}", line))

    async def _link(self, name: str, line: socket.socket) -> None:
        self._unattended.discard(line)
        client = _Side(*await asyncio.open_connection(sock=line))
        try:
            server = _Side(*await asyncio.open_connection(HOST, self._target))
        except OSError:
            client.reset()  # as a server does that is not there
            return
        except BaseException:
            client.close()
            raise
        await _Link(self, name, client, server).run()

    def _attend(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _bound(port: int) -> socket.socket:
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    line.settimeout(0)
    line.bind((HOST, port))
    return line


class _Side:
    """One end of a conversation."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def send_no_more(self) -> None:
        if not self._writer.is_closing():
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        if not self._writer.is_closing():
            line: socket.socket = self._writer.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._writer.transport.abort()


class _Link:
    """A connection of a client, and ours to the server in its name."""

    def __init__(self, proxy: Proxy, name: str, client: _Side, server: _Side) -> None:
        self._proxy = proxy
        self._name = name
        self._sides = client, server
        self._is_swallowed = False

    async def run(self) -> None:
        client, server = self._sides
        pumps = [
            asyncio.create_task(self._pump(client, server, is_request=True)),
            asyncio.create_task(self._pump(server, client, is_request=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for pump in pumps:
                pump.cancel()
            client.close()
            server.close()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: _Side, target: _Side, *, is_request: bool) -> None:
        """Forward until there is no more, or raise to end the conversation."""
        number = 0
        while data := await source.reader.read(PIECE):
            number += 1
            if self._is_swallowed and not is_request:
                raise EOFError
            piece = f"{self._name} {'request' if is_request else 'answer'} {number}"
            fault = self._proxy.draw(piece, is_request=is_request)
            if fault is not None:
                self._proxy.met[fault.kind] += 1
                data = await self._strike(fault, data, target)
                if data is None:
                    break
            await target.send(data)
        target.send_no_more()

    async def _strike(self, fault: Fault, data: bytes, target: _Side) -> bytes | None:
        """What is left to be sent; None: nothing, ever."""
        match fault.kind:
            case "delay":
                await asyncio.sleep(fault.strength * MAX_DELAY_SECONDS)
            case "refuse":
                self._proxy.refuse(fault.strength * MAX_REFUSAL_SECONDS)
            case "swallow":
                self._is_swallowed = True
            case "half-close":
                return None
            case _:
                await self._end(fault.kind, data, target)
        return data

    async def _end(self, kind: Kind, data: bytes, target: _Side) -> None:
        if kind == "tear":
            await target.send(data[: len(data) // 2])
        elif kind == "reset":
            for side in self._sides:
                side.reset()
        raise EOFError
