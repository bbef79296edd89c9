"""Checks, before a storage is opened, that its servers keep acknowledged writes.

A server with a memory limit may be configured to evict keys when its memory is full. A server without an
append-only file loses its newest writes when its process is killed. Such servers, and servers whose
configuration cannot be read, are refused unless the options in the URL accept them. The format of the stored
data is checked, too.
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
from .node import Node, parse_info
from .router import Router
from .stored_layout import Keys
from .topology import Topology

FORMAT_VERSION = 1
"""The version of the stored format. A storage with a newer version is refused."""
_INFO_SECTIONS = ("memory", "persistence", "cluster")

log = logging.getLogger(__name__)


async def check_servers(location: Location, topology: Topology, router: Router, keys: Keys) -> None:
    """Raise an error if a server may lose acknowledged writes, or if the stored format is not supported."""
    try:
        for node in dict.fromkeys(await topology.nodes_by_shard()):
            await _check_node(location, node)
        await _check_format(location, router, keys)
    except StorageUnavailable as error:
        if isinstance(error.__cause__, (AuthenticationError, AuthorizationError)):
            remedy = "check the user and password in the URL"
            raise CannotOpen(location.display_name, "authentication failed", remedy) from error.__cause__
        raise
    except StorageFailed as error:
        remedy = (
            "check that the URL scheme matches the server (redis, redis+sentinel, redis+cluster), and check "
            "the user's permissions"
        )
        raise CannotOpen(location.display_name, str(error.__cause__), remedy) from error.__cause__


async def _check_node(location: Location, node: Node) -> None:
    info: dict[str, str] = {}
    for reply in await node.send_now(*(("INFO", section) for section in _INFO_SECTIONS)):
        if isinstance(reply, StorageError):
            raise reply
        if isinstance(reply, bytes):
            info |= parse_info(reply)
    if not info:
        _refuse_unless_accepted(location, f"{node.name} does not allow INFO", "allow the command INFO")
        return
    if info.get("cluster_enabled") == "1" and location.kind != "cluster":
        raise CannotOpen(location.display_name, "the server is a cluster node", "use redis+cluster://")
    _check_eviction(location, node, info)
    await _check_persistence(location, node, info)


def _check_eviction(location: Location, node: Node, info: dict[str, str]) -> None:
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") == "0" or policy == "noeviction":
        return
    if location.options.eviction == "refuse":
        reason = f"{node.name} evicts records when its memory is full (maxmemory-policy {policy})"
        remedy = "set maxmemory-policy noeviction, or add eviction=accept to the URL"
        raise UnsafeServer(location.display_name, reason, remedy)
    log.warning("%s evicts records when its memory is full (maxmemory-policy %s)", node.name, policy)


async def _check_persistence(location: Location, node: Node, info: dict[str, str]) -> None:
    if info.get("aof_enabled") != "1":
        _refuse_unless_accepted(location, f"{node.name} has no append-only file", "set appendonly yes")
    elif location.options.persistence == "always":
        [reply] = await node.send_now(("CONFIG", "GET", "appendfsync"))
        if reply not in ([b"appendfsync", b"always"], {b"appendfsync": b"always"}):
            reason = f"the setting appendfsync of {node.name} is not 'always', or cannot be read"
            remedy = "set appendfsync always, or remove persistence=always from the URL"
            raise UnsafeServer(location.display_name, reason, remedy)


def _refuse_unless_accepted(location: Location, reason: str, remedy: str) -> None:
    """Raise UnsafeServer or, if the URL contains `persistence=any`, log a warning."""
    if location.options.persistence != "any":
        remedy += ", or add persistence=any to the URL to accept that writes can be lost"
        raise UnsafeServer(location.display_name, reason, remedy)
    log.warning("%s: acknowledged writes may be lost when the server stops", reason)


async def _check_format(location: Location, router: Router, keys: Keys) -> None:
    """Check the stored format version. If no version is stored, store FORMAT_VERSION.

    The command is sent as a read, because a read is repeated if its reply is lost. Repeating this command is
    safe.
    """
    try:
        (stored,) = await router.read([(0, ("SET", keys.format_key, FORMAT_VERSION, "NX", "GET"))])
        version = FORMAT_VERSION if stored is None else int(cast("bytes", stored))
    except (ValueError, StorageCorrupt) as error:
        reason = f"the key {keys.format_key.decode()} was not written by perdure"
        raise ForeignStorage(location.display_name, reason, "set an unused prefix in the URL") from error
    if version > FORMAT_VERSION:
        reason = f"its format is {version}, but this version of perdure supports up to {FORMAT_VERSION}"
        raise NewerSchema(location.display_name, reason, "upgrade perdure")
