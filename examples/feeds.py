"""Tools that show a model what the accounts you follow share.

    python examples/feeds.py

`ingest` polls Bluesky accounts as a durable task: kill the server while it polls, start it again, and it
resumes with the accounts that are left. No post is stored twice. `posts` and `shared_links`, and the resource
`feeds://links/today`, return what was found. Settings can be in a `feeds.toml` (see docs/guides/feeds.md);
`perdure feeds run` polls the same accounts until it is stopped.
"""

from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from mcp.server import MCPServer

from perdure import Task, Tasks
from perdure.feeds import AccountStatus, Feeds, FeedSettings, load_settings

STORAGE = "sqlite:///perdure.db"
SETTINGS = Path("feeds.toml")

tasks = Tasks(STORAGE)
server: MCPServer[object] = MCPServer("feeds", **tasks.attach())


def open_feeds() -> AbstractAsyncContextManager[Feeds]:
    """Open the feeds in the storage of the tasks. A killed server keeps its accounts for ten seconds."""
    settings = load_settings(SETTINGS) if SETTINGS.exists() else FeedSettings()
    return Feeds.open(STORAGE, settings, lease_seconds=10)


@server.tool()
@tasks.durable
async def ingest(accounts: list[str], task: Task) -> dict[str, int]:
    """Poll these Bluesky accounts, and all that were added before, for new posts."""
    async with open_feeds() as feeds:
        started = task.checkpoint.get_int("started", feeds.store.clock())
        await task.save_checkpoint({"started": started})
        if unknown := (await feeds.add(accounts)).unknown:
            raise ValueError(f"unknown accounts: {', '.join(unknown)}")
        found = sorted(await feeds.accounts(status=AccountStatus.ACTIVE), key=lambda account: account.handle)
        for number, account in enumerate(found):
            await task.report_progress(number, len(found), account.handle)
            if (account.last_polled_at or 0) < started or account.gaps:  # else it was polled before a restart
                await feeds.poll(account.account)
        return {"accounts": len(found), "items": await feeds.store.count_items()}


@server.tool()
async def posts(hours: float = 24, limit: int = 50) -> list[dict[str, Any]]:
    """Return recent posts, newest first."""
    async with open_feeds() as feeds:
        page = await feeds.items(since=timedelta(hours=hours), limit=limit)
    return [msgspec.to_builtins(each.item) for each in page.items]


@server.tool()
async def shared_links(hours: float = 24, limit: int = 10) -> list[dict[str, Any]]:
    """Return the links that the most accounts shared."""
    async with open_feeds() as feeds:
        ranking = await feeds.links(timedelta(hours=hours), limit=limit)
    return [msgspec.to_builtins(link) for link in ranking.links]


@server.resource("feeds://links/today")
async def todays_links() -> str:
    """The links of the last day, a line each."""
    return "\n".join(f"{link['sharers']}  {link['shared_url']}" for link in await shared_links())


if __name__ == "__main__":
    server.run("streamable-http", port=8005)
