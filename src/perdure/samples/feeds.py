"""Feeds: reading them as a task that goes on after a restart, and telling what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from mcp.server import MCPServer
from pydantic import Field

from ..feeds import Account, FeedSource, FeedStore, Item, LinkIndex, Poller, Status, transitions
from ..feeds.account import Stored
from ..feeds.errors import AccountHeld
from ..mcp import Tasks
from ..runtime import Again, Task
from ..storage import Micros
from ..storage.clock import HOUR
from .reading import Reader

HOLD: Micros = 5 * 1_000_000
"""How long an account stays with a server that was killed."""

Hours = Annotated[float, Field(gt=0, le=24 * 366)]
Limit = Annotated[int, Field(ge=1, le=200)]


def add_feeds(server: MCPServer[object], tasks: Tasks, reader: Reader) -> None:
    def store() -> FeedStore:
        return FeedStore(tasks.runtime.store.storage)

    @server.tool()
    @tasks.durable(retries=5, backoff=1.0)
    async def read_feeds(task: Task, accounts: list[str] | None = None) -> dict[str, int]:
        """Read all that is new of these accounts, and of those that were read before. Survives a restart."""
        async with reader.opened() as source:
            return await _read(task, store(), source, reader, accounts or reader.usual)

    @server.tool()
    async def recent_posts(hours: Hours = 24, limit: Limit = 20) -> list[dict[str, Any]]:
        """What was posted of late by those whose feeds were read, the newest first."""
        kept = store()
        found: list[Item] = []
        async for _, item in kept.newest(since=_ago(kept, hours)):
            found.append(item)
            if len(found) == limit:
                break
        return [msgspec.to_builtins(item) for item in found]

    @server.tool()
    async def shared_links(hours: Hours = 24, limit: Limit = 10) -> list[dict[str, Any]]:
        """List the links that most of them share, and who they are, the first to share it first."""
        kept = store()
        ranking = await LinkIndex(kept).ranking(_ago(kept, hours), limit=limit)
        handles = await kept.handles(who for each in ranking.links for who in each.sharers)
        return [
            {
                "url": each.address,
                "title": each.title,
                "sharers": [handles.get(who, who) for who in each.sharers],
                "today": each.today,
                "day_before": each.day_before,
            }
            for each in ranking.links
        ]


def _ago(store: FeedStore, hours: float) -> Micros:
    return store.clock() - round(hours * HOUR)


async def _read(
    task: Task, store: FeedStore, source: FeedSource, reader: Reader, names: Sequence[str]
) -> dict[str, int]:
    """Poll each account once, unless it is suspended. Those that were polled since the task began were polled
    before the server was killed.
    """
    began = task.checkpoint.get_int("began", store.clock())
    await task.save_checkpoint({"began": began})
    for profile in await source.profiles(names):
        await store.add(transitions.new_account(profile, now=store.clock(), polling=reader.polling))
    poller = Poller(store, source, reader.polling, hold=HOLD)
    everybody = [each async for each in store.accounts() if _is_read(each.account, reader)]
    for number, stored in enumerate(everybody):
        await task.report(f"reading {stored.account.handle}", number, len(everybody))
        if (stored.account.last_polled_at or 0) < began:
            await _poll(poller, stored)
    await task.report(f"{len(everybody)} account(s) read", len(everybody), len(everybody))
    return {"accounts": len(everybody), "items": await store.count_items()}


def _is_read(account: Account, reader: Reader) -> bool:
    return account.status is not Status.SUSPENDED and reader.reads(account.account_id)


async def _poll(poller: Poller, stored: Stored) -> None:
    try:
        await poller.poll(stored)
    except AccountHeld as error:
        raise Again(str(error), after=HOLD / 1e6) from error
