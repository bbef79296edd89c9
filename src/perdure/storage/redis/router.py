"""Calls find their way: to the node that has the shard, after it when it moves, and again where that is safe.

Repeated is what was certainly not done: what could not be sent, what a server refused because it is not (or
no longer) the one, and what it did not know the script of. A read is repeated also when its answer was lost;
a write never.
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

from ..errors import OutcomeUnknown, StorageClosed, StorageUnavailable
from .errors import refused, unread
from .node import Host, Node, Reply
from .scripts import Command, in_full
from .topology import Layout

Call: TypeAlias = tuple[int, Command]
"""A command, and the shard that it is about."""

PAUSES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.4)
"""Seconds before each repetition; the last is that of all further ones."""
_ELSEWHERE = (BusyLoadingError, ClusterDownError, ReadOnlyError, StorageUnavailable)
"""What was not done, by a node that may no longer be the one to ask."""
_NOT_DONE = (AskError, NoScriptError, TryAgainError, *_ELSEWHERE)


class Router:
    """Asks the nodes of a layout. `name` is for people, `timeout` bounds the repetitions."""

    def __init__(self, layout: Layout, name: str, timeout: float) -> None:
        self._layout = layout
        self._name = name
        self._timeout = timeout
        self._closed = False
        self._under_way = 0
        self._is_idle = asyncio.Event()

    @property
    def is_one(self) -> bool:
        """Whether a call may be about several shards."""
        return self._layout.is_one

    async def read(self, calls: Sequence[Call]) -> list[Reply]:
        """The answers to calls that change nothing. Raises where one has none."""
        replies = await self._ask(calls, writes=False)
        for reply in replies:
            if isinstance(reply, OutcomeUnknown):
                raise unread(reply)
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def write(self, calls: Sequence[Call]) -> list[Reply]:
        """The answer or the error of each call of the script that writes."""
        return await self._ask(calls, writes=True)

    async def close(self) -> None:
        """Finish what was asked, repetitions included, then refuse."""
        self._closed = True
        while self._under_way:
            self._is_idle.clear()
            await self._is_idle.wait()

    async def _ask(self, calls: Sequence[Call], *, writes: bool) -> list[Reply]:
        if self._closed:
            raise StorageClosed("this storage was closed")
        self._under_way += 1
        try:
            return await self._repeat(calls, writes=writes)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._is_idle.set()

    async def _repeat(self, calls: Sequence[Call], *, writes: bool) -> list[Reply]:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout
        calls = list(calls)
        replies = await self._round(calls, writes=writes)
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            again = [at for at, reply in enumerate(replies) if _may_be_repeated(reply, writes=writes)]
            if not again or clock() + pause > deadline:
                break
            for at in again:
                calls[at] = _heeding(calls[at], replies[at])
            await asyncio.sleep(pause)
            repeated = await self._round([calls[at] for at in again], writes=writes)
            for at, reply in zip(again, repeated, strict=True):
                replies[at] = reply
        return [
            refused(reply, self._name, writes=writes) if isinstance(reply, RedisError) else reply
            for reply in replies
        ]

    async def _round(self, calls: Sequence[Call], *, writes: bool) -> list[Reply]:
        """Ask every call once, and doubt what is known of the nodes if one of them did not do its part."""
        replies = await self._ask_nodes(calls, writes=writes)
        if any(isinstance(reply, (*_ELSEWHERE, OutcomeUnknown)) for reply in replies):
            self._layout.doubt()
        return replies

    async def _ask_nodes(self, calls: Sequence[Call], *, writes: bool) -> list[Reply]:
        """Each node in one go."""
        try:
            places = await self._layout.places()
        except StorageUnavailable as error:
            return [error] * len(calls)
        of_node: defaultdict[Node, list[int]] = defaultdict(list)
        for at, (shard, _) in enumerate(calls):
            of_node[places[shard]].append(at)
        replies: list[Reply] = [None] * len(calls)

        async def ask(node: Node, group: Sequence[int]) -> None:
            commands = [calls[at][1] for at in group]
            told = await (node.write(commands) if writes else node.read(commands))
            for at, reply in zip(group, told, strict=True):
                replies[at] = await self._follow(calls[at], reply, node, writes=writes)

        if len(of_node) == 1:
            await ask(*of_node.popitem())
        else:
            await asyncio.gather(*(ask(node, group) for node, group in of_node.items()))
        return replies

    async def _follow(self, call: Call, reply: Reply, node: Node, *, writes: bool) -> Reply:
        """Where a node names another: of a slot that has moved, remember it; of one that is just being moved,
        ask this once there, and go on asking here.
        """
        if not isinstance(reply, AskError):
            return reply
        shard, command = call
        name, port = cast("Host", reply.node_addr)  # pyright: ignore[reportUnknownMemberType]
        host = name or node.host[0], port
        if isinstance(reply, MovedError):
            self._layout.learn(shard, host)
            return reply
        there = self._layout.node(host)
        commands: list[Command] = [("ASKING",), command]
        return (await (there.write(commands) if writes else there.read(commands)))[1]


def _heeding(call: Call, reply: Reply) -> Call:
    """The call as it should be repeated, after what was said to it."""
    shard, command = call
    return (shard, in_full(command)) if isinstance(reply, NoScriptError) else call


def _may_be_repeated(reply: Reply, *, writes: bool) -> bool:
    return isinstance(reply, _NOT_DONE) or (isinstance(reply, OutcomeUnknown) and not writes)
