"""What is looked at before a storage is opened: whether the servers keep what they acknowledge, and whether
what stands there is ours.

A server with a bound on its memory may be set up to drop keys when it is full, and one without a log forgets
its newest writes when its process is killed. Both are refused unless the options say otherwise, and so is a
server that does not say how it is set up.
"""

from __future__ import annotations

import logging
from typing import cast

from redis.exceptions import AuthenticationError, AuthorizationError

from ..errors import (
    CannotOpen,
    ForeignStorage,
    NewerSchema,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageUnavailable,
    UnsafeServer,
)
from .location import Location
from .node import Node
from .router import Router
from .schema import Keys
from .topology import Layout

FORMAT = 1
"""The version of how records are stored."""
_SECTIONS = ("memory", "persistence", "cluster")

log = logging.getLogger(__name__)


async def check_servers(location: Location, layout: Layout, router: Router, keys: Keys) -> None:
    """Return if the storage may be opened."""
    try:
        for node in dict.fromkeys(await layout.places()):
            await _check_node(location, node)
        await _check_format(location, router, keys)
    except StorageUnavailable as error:
        if isinstance(error.__cause__, (AuthenticationError, AuthorizationError)):
            reason = "the server does not let this user in"
            raise CannotOpen(location.name, reason, "check user and password in the URL") from error.__cause__
        raise
    except StorageFailed as error:
        remedy = "check that the URL says what kind of server it is, and what its user may do"
        raise CannotOpen(location.name, str(error.__cause__), remedy) from error.__cause__


async def _check_node(location: Location, node: Node) -> None:
    facts: dict[str, str] = {}
    for reply in await node.ask(*(("INFO", section) for section in _SECTIONS)):
        if isinstance(reply, StorageError):
            raise reply
        if isinstance(reply, bytes):
            facts |= _facts(reply)
    if not facts:
        _refuse_unless_accepted(location, f"{node.name} does not allow INFO", "allow the command INFO")
        return
    if facts.get("cluster_enabled") == "1" and location.kind != "cluster":
        raise CannotOpen(
            location.name, "it is a node of a cluster", "write redis+cluster:// before its address"
        )
    _check_eviction(location, node, facts)
    await _check_persistence(location, node, facts)


def _check_eviction(location: Location, node: Node, facts: dict[str, str]) -> None:
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") == "0" or policy == "noeviction":
        return
    if location.options.eviction == "refuse":
        reason = f"{node.name} drops records when its memory is full (maxmemory-policy {policy})"
        raise UnsafeServer(location.name, reason, "set maxmemory-policy noeviction, or write eviction=accept")
    log.warning("%s drops records when its memory is full: maxmemory-policy is %s", node.name, policy)


async def _check_persistence(location: Location, node: Node, facts: dict[str, str]) -> None:
    if facts.get("aof_enabled") != "1":
        _refuse_unless_accepted(location, f"{node.name} keeps no log of its writes", "set appendonly yes")
    elif location.options.persistence == "always":
        [reply] = await node.ask(("CONFIG", "GET", "appendfsync"))
        if reply not in ([b"appendfsync", b"always"], {b"appendfsync": b"always"}):
            reason = f"{node.name} does not flush its log with each write, or does not say so"
            raise UnsafeServer(
                location.name, reason, "set appendfsync always, or leave out persistence=always"
            )


def _refuse_unless_accepted(location: Location, reason: str, remedy: str) -> None:
    """Refuse a server that may lose acknowledged writes, or warn if the URL accepts it."""
    if location.options.persistence != "any":
        raise UnsafeServer(location.name, reason, f"{remedy}, or write persistence=any to accept the loss")
    log.warning("%s: acknowledged writes may be lost when the server ends", reason)


async def _check_format(location: Location, router: Router, keys: Keys) -> None:
    """Leave our mark, or see who has left theirs. Twice is as good as once, so it may be repeated."""
    try:
        (mark,) = await router.read([(0, ("SET", keys.format, FORMAT, "NX", "GET"))])
        version = FORMAT if mark is None else int(cast("bytes", mark))
    except (ValueError, StorageCorrupt) as error:
        reason = f"its key {keys.format.decode()} is not perdure's"
        raise ForeignStorage(location.name, reason, "choose another prefix") from error
    if version > FORMAT:
        reason = f"it is of format {version}, and this perdure knows {FORMAT}"
        raise NewerSchema(location.name, reason, "upgrade perdure")


def _facts(text: bytes) -> dict[str, str]:
    """`INFO` as it comes: a name, a colon and a value in each line, but for headings."""
    lines = (line.partition(":") for line in text.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}
