"""What the commands do to whole storages."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from urllib.parse import urlsplit

import msgspec

from ..feeds.account import ACCOUNTS
from ..feeds.item import ITEMS
from ..storage import Space, open_storage
from ..storage.copying import Told, copy
from ..tasks.idempotency import KEYS
from ..tasks.listing import SETTINGS
from ..tasks.snapshot import LEASES, TASKS

SPACES = (SETTINGS, KEYS, TASKS, LEASES, ACCOUNTS, ITEMS)
"""Everything that perdure stores."""


async def copy_all(source: str, target: str, *, merge: bool, tell: Told) -> Mapping[Space, int]:
    """How many records there are of each space, in both."""
    async with await open_storage(source) as read, await open_storage(target) as written:
        return await copy(read, written, SPACES, name=_name(read.name, source), merge=merge, tell=tell)


def _name(engine: str, url: str) -> str:
    """What tells one source from another, and does not tell a password."""
    parts = urlsplit(url)
    where = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return f"{engine} {blake2b(where.encode(), digest_size=6).hexdigest()}"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    findings: tuple[str, ...]
    """What was wrong with the storage, one sentence each."""
    remaining: tuple[str, ...]
    """What still is."""
    records: int


async def examine(url: str, *, repair: bool) -> Health:
    """Look at a storage, set counters right if asked to, and then look again."""
    async with await open_storage(url) as storage:
        found = (await storage.maintain(repair=repair)).findings
        remaining = (await storage.maintain()).findings if repair and found else found
        counts = [await storage.counts(space, now=0) for space in SPACES]
    return Health(findings=found, remaining=remaining, records=sum(sum(each.values()) for each in counts))
