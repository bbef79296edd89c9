"""One server: commands go to it in groups; each gets its answer, its refusal, or the truth that none came.

The driver's own clients repeat what failed. A commit must not be repeated when its answer was lost, so only
the driver's connections are used here, and the three ways to fail are kept apart: nothing was sent, the
server refused, or the answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, RedisError, ResponseError

from ..errors import OutcomeUnknown
from ..grouping import Grouping
from .errors import lost, not_sent
from .scripts import Command

Host: TypeAlias = tuple[str, int]
Reply: TypeAlias = object
"""What a command came to: an answer, or the error to be raised."""

MOST_TOGETHER = 256
"""Calls that share a round trip."""
HEAVIEST = 4 * 1024 * 1024
"""Bytes of commands that do, unless one call alone has more."""
READS_AT_ONCE = 4
"""Round trips of reads under way. Writes have one: a second was not measured to be quicker."""


class Connection(Protocol):
    """As much of the driver's connection as is used."""

    async def on_connect(self) -> None: ...
    async def send_packed_command(self, command: Sequence[bytes], *, check_health: bool) -> None: ...
    async def read_response(self, *, disconnect_on_error: bool = True) -> object: ...
    async def disconnect(self, *, nowait: bool) -> None: ...


_pack = cast("Callable[[Command], bytes]", cast("Any", hiredis).pack_command)


async def greet(connection: Connection) -> None:
    """Begin a connection. A server that is not ready says so here, before anything is sent to it."""
    await connection.on_connect()
    await connection.send_packed_command([_pack(("PING",))], check_health=False)
    await connection.read_response()


async def greet_master(connection: Connection) -> None:
    """The same where a replica must not be asked: it may be one since a moment ago, and behind."""
    await greet(connection)
    answer = await _told(connection, ("HELLO",)) or await _told(connection, ("ROLE",))
    if answer is not None:
        _check_role(cast("list[object] | dict[object, object]", answer))


async def _told(connection: Connection, command: Command) -> object | None:
    """None where this user may not ask it."""
    await connection.send_packed_command([_pack(command)], check_health=False)
    try:
        return await connection.read_response()
    except ResponseError:
        return None


def _check_role(answer: list[object] | dict[object, object]) -> None:
    """`HELLO` tells it by name, as a map or as names and values in turn; `ROLE` tells it first."""
    if isinstance(answer, dict):
        role = answer.get(b"role")
    else:
        role = answer[answer.index(b"role") + 1] if b"role" in answer else answer[0]
    if role != b"master":
        raise ReadOnlyError("it is not a master")


class Node:
    """A server and the connections to it. Belongs to one event loop.

    With `replicas`, a write returns when so many replicas have it too, or after `replica_timeout` seconds.
    """

    def __init__(
        self, host: Host, pool: ConnectionPool, *, timeout: float, replicas: int, replica_timeout: float
    ) -> None:
        self.host = host
        self.pool = pool
        self._timeout = timeout
        self._replicas = replicas
        self._replica_timeout = replica_timeout
        group = partial(
            Grouping[Sequence[bytes], Sequence[Reply]],
            most=MOST_TOGETHER,
            weight=_weight,
            heaviest=HEAVIEST,
        )
        self._reads = group(self._read, at_once=READS_AT_ONCE)
        self._writes = group(self._write)

    @property
    def name(self) -> str:
        host, port = self.host
        return f"{host}:{port}"

    async def read(self, commands: Sequence[Command]) -> Sequence[Reply]:
        return await self._reads.ask([_pack(command) for command in commands])

    async def write(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Calls of the script that writes. What too few replicas have is not yet safe: OutcomeUnknown."""
        return await self._writes.ask([_pack(command) for command in commands])

    async def ask(self, *commands: Command) -> Sequence[Reply]:
        """Ask at once, without company."""
        return await self._exchange([_pack(command) for command in commands])

    async def rest(self) -> None:
        """Let go of the connections that nobody uses."""
        with suppress(RedisError):
            await self.pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Finish what is under way, then let go."""
        await self._writes.close()
        await self._reads.close()
        with suppress(RedisError):  # what cannot be closed in good order is closed all the same
            await self.pool.disconnect()

    async def _exchange(self, commands: Sequence[bytes], patience: float = 0) -> list[Reply]:
        """Send commands together and read what comes back."""
        try:
            async with asyncio.timeout(self._timeout):
                connection = cast("Connection", await self.pool.get_connection())
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            return [not_sent(error, self.name) for _ in commands]
        replies: list[Reply] = []
        try:
            async with asyncio.timeout(self._timeout + patience):
                await connection.send_packed_command(commands, check_health=False)
                for _ in commands:
                    replies.append(await _reply(connection))  # noqa: PERF401 - those that came must be kept
            if any(isinstance(reply, AuthenticationError) for reply in replies):
                await connection.disconnect(nowait=True)  # the next one says again who we are
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            replies += [lost(error, self.name) for _ in commands[len(replies) :]]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self.pool.release(cast("AbstractConnection", connection))
        return replies

    async def _read(self, questions: Sequence[Sequence[bytes]]) -> Sequence[Sequence[Reply]]:
        return _apart(await self._exchange(_together(questions)), questions)

    async def _write(self, questions: Sequence[Sequence[bytes]]) -> Sequence[Sequence[Reply]]:
        if not self._replicas:
            return await self._read(questions)
        wait = _pack(("WAIT", self._replicas, max(1, int(self._replica_timeout * 1000))))  # 0 has no end
        commands = [*_together(questions), wait]
        *replies, reached = await self._exchange(commands, self._replica_timeout)
        if not isinstance(reached, int) or reached < self._replicas:
            replies = [self._unsafe(reply, reached) for reply in replies]
        return _apart(replies, questions)

    def _unsafe(self, reply: Reply, reached: Reply) -> Reply:
        if not isinstance(reply, list) or not cast("list[object]", reply)[0]:
            return cast("Reply", reply)  # it has written nothing
        number = reached if isinstance(reached, int) else "an unknown number"
        return OutcomeUnknown(f"{self.name}: written, but {number} of {self._replicas} replicas have it")


async def _reply(connection: Connection) -> Reply:
    """An answer, or what the server has against the command. Other errors are the connection's, though the
    driver counts two of the server's among them.
    """
    try:
        return await connection.read_response(disconnect_on_error=False)
    except (ResponseError, BusyLoadingError, AuthenticationError) as error:
        return error


def _together(questions: Iterable[Sequence[bytes]]) -> list[bytes]:
    return [command for question in questions for command in question]


def _apart(replies: Sequence[Reply], questions: Iterable[Sequence[bytes]]) -> list[Sequence[Reply]]:
    """The replies of each question."""
    parts: list[Sequence[Reply]] = []
    start = 0
    for question in questions:
        parts.append(replies[start : start + len(question)])
        start += len(question)
    return parts


def _weight(question: Sequence[bytes]) -> int:
    return sum(map(len, question))
