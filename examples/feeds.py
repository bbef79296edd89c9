"""What the people you follow share today, for a model to ask.

    python examples/feeds.py

`ingest` polls Bluesky accounts as a durable task: kill the server while it reads, start it again, and it goes
on with those that are left. What was read once is never stored twice. `posts` and `shared_links`, and the
resource `feeds://links/today`, tell what was found. Where Bluesky is, and how it is read, may stand in a
`feeds.toml` (see docs/feeds.md); `perdure feeds run` polls the same accounts for ever.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from mcp.server import MCPServer

from perdure import Task, Tasks
from perdure.feeds import FeedStore, LinkIndex, Poller, Settings, Status, read_settings, transitions
from perdure.feeds.bluesky import open_bluesky
from perdure.storage import open_storage
from perdure.storage.clock import HOUR

STORAGE = "sqlite:///perdure.db"
SETTINGS = Path("feeds.toml")

tasks = Tasks(STORAGE)
server: MCPServer[object] = MCPServer("feeds", **tasks.attach())


@asynccontextmanager
async def opened() -> AsyncGenerator[FeedStore]:
    """What is known of feeds: in the storage of the tasks."""
    async with await open_storage(STORAGE) as storage:
        yield FeedStore(storage)


@server.tool()
@tasks.durable
async def ingest(accounts: list[str], task: Task) -> dict[str, int]:
    """Read everything new of these Bluesky accounts, and of all that were added before."""
    settings = read_settings(SETTINGS) if SETTINGS.exists() else Settings()
    async with opened() as store, open_bluesky(settings) as source:
        began = task.checkpoint.get_int("began", store.clock())
        await task.save_checkpoint({"began": began})
        for profile in await source.profiles(accounts):
            await store.add(transitions.new_account(profile, now=store.clock(), polling=settings.polling))
        poller = Poller(store, source, settings.polling, hold=10_000_000)  # ten seconds after a kill
        everybody = [stored async for stored in store.accounts(Status.ACTIVE)]
        for number, stored in enumerate(everybody):
            await task.report(stored.account.handle, done=number, total=len(everybody))
            was_read = (stored.account.last_polled_at or 0) >= began and not stored.account.gaps
            if not was_read:  # else that was before the server was killed
                await poller.poll(stored)
        return {"accounts": len(everybody), "items": await store.count_items()}


@server.tool()
async def posts(hours: float = 24, limit: int = 50) -> list[dict[str, Any]]:
    """What was posted of late, the newest first."""
    async with opened() as store:
        since = store.clock() - round(hours * HOUR)
        found: list[dict[str, Any]] = []
        async for _, item in store.newest(since=since):
            found.append(msgspec.to_builtins(item))
            if len(found) == limit:
                break
        return found


@server.tool()
async def shared_links(hours: float = 24, limit: int = 10) -> list[dict[str, Any]]:
    """List the links that most people share, and who they are, the first to share it first."""
    async with opened() as store:
        ranking = await LinkIndex(store).ranking(store.clock() - round(hours * HOUR), limit=limit)
        handles = await store.handles(who for each in ranking.links for who in each.sharers)
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


@server.resource("feeds://links/today")
async def links_of_today() -> str:
    """The links of the last day, the most shared first, a line each."""
    found = await shared_links()
    return "\n".join(f"{len(each['sharers'])}  {each['url']}" for each in found)


if __name__ == "__main__":
    server.run("streamable-http", port=8005)
