"""Sends commands to one server, over several connections. Concurrent commands share a round trip.

The driver's own clients retry failed commands. A commit must not be retried if its reply was lost, so this
module uses only the driver's connections and distinguishes three failures: the command was not sent, the
server rejected the command, or the reply was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol, TypeAlias, cast

import hiredis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, RedisError, ResponseError

from ..errors import OutcomeUnknown
from ..request_batcher import Batcher
from .errors import unknown_outcome_error, unreachable_error
from .scripts import Command

Host: TypeAlias = tuple[str, int]
Reply: TypeAlias = object
"""The reply of the server to a command, or an exception object if the command failed."""

MAX_CALLS_PER_BATCH = 256
"""Maximum number of calls that are sent in one round trip."""
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Maximum total size in bytes of the commands in one round trip. A larger call is sent alone."""
MAX_CONCURRENT_READS = 4
"""Maximum number of concurrent round trips for reads. Writes use 1 at a time, because 2 were not faster."""


class Connection(Protocol):
    """The methods of a redis-py connection that this module uses."""

    async def on_connect(self) -> None: ...
    async def send_packed_command(self, command: Sequence[bytes], *, check_health: bool) -> None: ...
    async def read_response(self, *, disconnect_on_error: bool = True) -> object: ...
    async def disconnect(self, *, nowait: bool) -> None: ...


_pack = cast("Callable[[Command], bytes]", cast("Any", hiredis).pack_command)


async def ping_on_connect(connection: Connection) -> None:
    """Set up a connection and send PING, which fails if the server is not ready to accept other commands."""
    await connection.on_connect()
    await connection.send_packed_command([_pack(("PING",))], check_health=False)
    await connection.read_response()


async def require_master_on_connect(connection: Connection) -> None:
    """Set up a connection. Raise ReadOnlyError if the server is a replica, whose data may be out of date."""
    await ping_on_connect(connection)
    reply = await _try_command(connection, ("HELLO",)) or await _try_command(connection, ("ROLE",))
    if reply is not None:
        _check_role(cast("list[object] | dict[object, object]", reply))


async def _try_command(connection: Connection, command: Command) -> object | None:
    """Send a command and return the reply, or None if the server rejects the command."""
    await connection.send_packed_command([_pack(command)], check_health=False)
    try:
        return await connection.read_response()
    except ResponseError:
        return None


def _check_role(reply: list[object] | dict[object, object]) -> None:
    """Raise ReadOnlyError unless the reply to HELLO or ROLE contains the role `master`.

    A reply to HELLO is a map, or a flat list of names and values. A reply to ROLE starts with the role.
    """
    if isinstance(reply, dict):
        role = reply.get(b"role")
    else:
        role = reply[reply.index(b"role") + 1] if b"role" in reply else reply[0]
    if role != b"master":
        raise ReadOnlyError("the server is not a master; use the URL of its master")


class Node:
    """A server and its connections. Use a node in only one event loop.

    A write succeeds when at least `replicas` replicas have confirmed it. If they do not confirm it within
    `replica_timeout` seconds, the reply is an OutcomeUnknown error.
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
            Batcher[Sequence[bytes], Sequence[Reply]],
            max_items=MAX_CALLS_PER_BATCH,
            weight=lambda batch: sum(map(len, batch)),
            max_weight=MAX_BATCH_BYTES,
        )
        self._reads = group(self._read, max_concurrent=MAX_CONCURRENT_READS)
        self._writes = group(self._write)

    @property
    def name(self) -> str:
        host, port = self.host
        return f"{host}:{port}"

    async def send(self, commands: Sequence[Command], *, writes: bool = False) -> Sequence[Reply]:
        """Send commands, and return the reply to each. `writes` must be true for calls to the write script.

        If too few replicas confirm a write, the reply to that write is an OutcomeUnknown error.
        """
        batcher = self._writes if writes else self._reads
        return await batcher.submit([_pack(command) for command in commands])

    async def send_now(self, *commands: Command) -> Sequence[Reply]:
        """Send commands immediately, in a separate round trip, and return the reply to each."""
        return await self._send_and_receive([_pack(command) for command in commands])

    async def close_idle_connections(self) -> None:
        with suppress(RedisError):
            await self.pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        """Wait until all running commands have ended, then disconnect."""
        await self._writes.close()
        await self._reads.close()
        with suppress(RedisError):  # the connections are closed even if this fails
            await self.pool.disconnect()

    async def _send_and_receive(self, commands: Sequence[bytes], extra_seconds: float = 0) -> list[Reply]:
        """Send commands in one round trip. Return the reply or the error for each command."""
        try:
            async with asyncio.timeout(self._timeout):
                connection = cast("Connection", await self.pool.get_connection())
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            return [unreachable_error(error, self.name) for _ in commands]
        replies: list[Reply] = []
        try:
            async with asyncio.timeout(self._timeout + extra_seconds):
                await connection.send_packed_command(commands, check_health=False)
                for _ in commands:
                    replies.append(await _reply(connection))  # noqa: PERF401 - keep the replies before an error
            if any(isinstance(reply, AuthenticationError) for reply in replies):
                await connection.disconnect(nowait=True)  # the next connection authenticates again
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            replies += [unknown_outcome_error(error, self.name) for _ in commands[len(replies) :]]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await self.pool.release(cast("AbstractConnection", connection))
        return replies

    async def _read(self, batches: Sequence[Sequence[bytes]]) -> Sequence[Sequence[Reply]]:
        return _regroup(await self._send_and_receive(list(chain.from_iterable(batches))), batches)

    async def _write(self, batches: Sequence[Sequence[bytes]]) -> Sequence[Sequence[Reply]]:
        if not self._replicas:
            return await self._read(batches)
        milliseconds = max(1, int(self._replica_timeout * 1000))  # 0 would wait forever
        wait = _pack(("WAIT", self._replicas, milliseconds))
        commands = [*chain.from_iterable(batches), wait]
        *replies, confirmed = await self._send_and_receive(commands, self._replica_timeout)
        if not isinstance(confirmed, int) or confirmed < self._replicas:
            replies = [self._under_replicated(reply, confirmed) for reply in replies]
        return _regroup(replies, batches)

    def _under_replicated(self, reply: Reply, confirmed: Reply) -> Reply:
        if not isinstance(reply, list) or not cast("list[object]", reply)[0]:
            return cast("Reply", reply)  # the call wrote nothing
        number = confirmed if isinstance(confirmed, int) else "unknown"
        what = f"too few replicas confirmed it in time (confirmed: {number}, required: {self._replicas})"
        return OutcomeUnknown(f"{self.name}: written, but {what}")


async def _reply(connection: Connection) -> Reply:
    """Return the reply of the server. Return a server error as a value, but raise a connection error.

    BusyLoadingError and AuthenticationError are server errors, although they are subclasses of the
    ConnectionError of the driver.
    """
    try:
        return await connection.read_response(disconnect_on_error=False)
    except (ResponseError, BusyLoadingError, AuthenticationError) as error:
        return error


def _regroup(replies: Sequence[Reply], batches: Iterable[Sequence[bytes]]) -> list[Sequence[Reply]]:
    """Split the replies into one group for each batch."""
    remaining = iter(replies)
    return [list(islice(remaining, len(batch))) for batch in batches]


def parse_info(reply: bytes) -> dict[str, str]:
    """Parse the `name:value` lines of a reply to INFO or CLUSTER INFO. Ignore the headings."""
    lines = (line.partition(":") for line in reply.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}
