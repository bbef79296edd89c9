"""Sends each call to the node that has its shard, follows redirects, and retries a call if that is safe.

A call is retried if it was certainly not executed: for example, it could not be sent, or the server does not
have the shard or the script. If the reply was lost, a read is retried, but a write is not.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, repeat
from typing import TypeAlias, cast

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)

from ..call_tracker import CallTracker
from ..errors import OutcomeUnknown, StorageUnavailable
from .errors import failed_read_error, server_error
from .node import Host, Node, Reply
from .scripts import Command, with_script_text
from .topology import Topology

Call: TypeAlias = tuple[int, Command]
"""A shard number, and a command for the node that has the shard."""

RETRY_DELAYS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.4)
"""Number of seconds to wait before each retry. The last value applies to all further retries, too."""
_WRONG_NODE_ERRORS = (BusyLoadingError, ClusterDownError, ReadOnlyError, StorageUnavailable)
"""Errors after which the topology is discovered again. The call was not executed, possibly because the node
no longer has the shard.
"""
_NOT_EXECUTED_ERRORS = (AskError, NoScriptError, TryAgainError, *_WRONG_NODE_ERRORS)


class Router:
    """Sends calls to the nodes of a topology.

    `name` appears in error messages. Retries stop after `timeout` seconds.
    """

    def __init__(self, topology: Topology, name: str, timeout: float) -> None:
        self._topology = topology
        self._name = name
        self._timeout = timeout
        self._calls = CallTracker()

    @property
    def is_single_server(self) -> bool:
        """Whether one server has all shards, so that one call can use keys of several shards."""
        return self._topology.is_single_server

    async def read(self, calls: Sequence[Call]) -> list[Reply]:
        """Send calls that are safe to repeat, and return the replies. Raise an error if any call fails."""
        with self._calls:
            replies = await self._call_with_retry(calls, writes=False)
        for reply in replies:
            if isinstance(reply, OutcomeUnknown):
                raise failed_read_error(reply)
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def write(self, calls: Sequence[Call]) -> list[Reply]:
        """Send calls to the write script. Return the reply of the server, or an error, for each call."""
        with self._calls:
            return await self._call_with_retry(calls, writes=True)

    async def close(self) -> None:
        """Refuse further calls, and wait until all running calls, including their retries, have ended."""
        await self._calls.drain()

    async def _call_with_retry(self, calls: Sequence[Call], *, writes: bool) -> list[Reply]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout
        retryable = _NOT_EXECUTED_ERRORS if writes else (*_NOT_EXECUTED_ERRORS, OutcomeUnknown)
        calls = list(calls)
        replies = await self._call_once(calls, writes=writes)
        for delay in chain(RETRY_DELAYS, repeat(RETRY_DELAYS[-1])):
            retried = [index for index, reply in enumerate(replies) if isinstance(reply, retryable)]
            if not retried or clock() + delay > deadline:
                break
            for index in retried:
                if isinstance(replies[index], NoScriptError):
                    shard, command = calls[index]
                    calls[index] = shard, with_script_text(command)
            await asyncio.sleep(delay)
            repeated = await self._call_once([calls[index] for index in retried], writes=writes)
            for index, reply in zip(retried, repeated, strict=True):
                replies[index] = reply
        return [
            server_error(reply, self._name, writes=writes) if isinstance(reply, RedisError) else reply
            for reply in replies
        ]

    async def _call_once(self, calls: Sequence[Call], *, writes: bool) -> list[Reply]:
        """Send each call once, in one batch for each node, and return all replies.

        If an error suggests that the known topology is out of date, invalidate the topology.
        """
        try:
            nodes_by_shard = await self._topology.nodes_by_shard()
        except StorageUnavailable as error:
            return [error] * len(calls)
        by_node: defaultdict[Node, list[int]] = defaultdict(list)
        for index, (shard, _) in enumerate(calls):
            by_node[nodes_by_shard[shard]].append(index)
        replies: list[Reply] = [None] * len(calls)

        async def send(node: Node, group: Sequence[int]) -> None:
            commands = [calls[index][1] for index in group]
            received = await node.send(commands, writes=writes)
            for index, reply in zip(group, received, strict=True):
                replies[index] = await self._follow_redirect(calls[index], reply, node, writes=writes)

        if len(by_node) == 1:
            await send(*by_node.popitem())
        else:
            await asyncio.gather(*(send(node, group) for node, group in by_node.items()))
        if any(isinstance(reply, (*_WRONG_NODE_ERRORS, OutcomeUnknown)) for reply in replies):
            self._topology.invalidate()
        return replies

    async def _follow_redirect(self, call: Call, reply: Reply, node: Node, *, writes: bool) -> Reply:
        """Follow the redirect if `reply` redirects `call` to another node. Return other replies unchanged.

        MOVED means that the shard has moved: remember the new node, and return `reply`, so that the call is
        retried. ASK means that the shard is being moved: send only this call to the other node, and return
        the reply of that node.
        """
        if not isinstance(reply, AskError):
            return reply
        shard, command = call
        name, port = cast("Host", reply.node_addr)  # pyright: ignore[reportUnknownMemberType]
        host = name or node.host[0], port
        if isinstance(reply, MovedError):
            self._topology.move_shard(shard, host)
            return reply
        other = self._topology.node(host)
        _, reply = await other.send([("ASKING",), command], writes=writes)
        return reply
