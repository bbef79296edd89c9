"""Defines sample tools that poll feeds and return posts and links. Polling is a durable task."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from mcp.server import MCPServer
from pydantic import Field

from ..feeds import AccountStatus, Feeds, FeedSettings, FeedStore
from ..feeds.errors import PollInProgress
from ..mcp import Tasks
from ..runtime import Retry, Task
from .source import DID_PREFIX, SimulatedSource

LEASE_SECONDS = 5.0
"""If a server is killed while it polls an account, the account can be polled again after this number of
seconds."""

Hours = Annotated[float, Field(gt=0, le=24 * 366)]
Limit = Annotated[int, Field(ge=1, le=200)]


@dataclass(frozen=True, kw_only=True)
class SampleFeeds:
    """The feeds that the sample tools poll: simulated feeds or Bluesky. A storage can contain both."""

    settings: FeedSettings = field(default_factory=FeedSettings)
    source: SimulatedSource | None = None
    """The source of the simulated feeds, or None to poll Bluesky."""

    @property
    def default_handles(self) -> tuple[str, ...]:
        """The handles of the accounts that `read_feeds` adds if it is called without accounts."""
        return () if self.source is None else self.source.handles

    def owns(self, account_id: str) -> bool:
        """Return whether the account belongs to these feeds. Simulated accounts have the `DID_PREFIX`."""
        return account_id.startswith(DID_PREFIX) == (self.source is not None)


def simulated_feeds(*, latency: float = 0.3) -> SampleFeeds:
    """Return simulated feeds. Each request takes `latency` seconds, like a request over a network."""
    return SampleFeeds(source=SimulatedSource(latency=latency))


def add_feed_tools(server: MCPServer[object], tasks: Tasks, sample: SampleFeeds) -> None:
    def open_feeds() -> Feeds:
        store = FeedStore(tasks.runtime.store.storage)
        return Feeds(store, sample.settings, source=sample.source, lease_seconds=LEASE_SECONDS)

    @server.tool()
    @tasks.durable(retries=5, backoff=1.0)
    async def read_feeds(task: Task, accounts: list[str] | None = None) -> dict[str, int]:
        """Add the given accounts, then poll all stored accounts for new posts.

        The task survives a restart of the server.
        """
        async with open_feeds() as feeds:
            return await _poll_accounts(task, feeds, sample, accounts or [*sample.default_handles])

    @server.tool()
    async def recent_posts(hours: Hours = 24, limit: Limit = 20) -> list[dict[str, Any]]:
        """Return the posts of the last `hours` hours, newest first."""
        page = await open_feeds().items(since=timedelta(hours=hours), limit=limit)
        return [msgspec.to_builtins(each.item) for each in page.items]

    @server.tool()
    async def shared_links(hours: Hours = 24, limit: Limit = 10) -> list[dict[str, Any]]:
        """Return the most widely shared links of the last `hours` hours."""
        ranking = await open_feeds().links(timedelta(hours=hours), limit=limit)
        return [msgspec.to_builtins(link) for link in ranking.links]


async def _poll_accounts(task: Task, feeds: Feeds, sample: SampleFeeds, names: list[str]) -> dict[str, int]:
    """Poll each account that is not suspended. After a restart, skip accounts that were already polled."""
    started = task.checkpoint.get_int("started", feeds.store.clock())
    await task.save_checkpoint({"started": started})
    await _add_new(feeds, names)
    accounts = sorted(
        (each for each in await feeds.accounts() if each.status is not AccountStatus.SUSPENDED),
        key=lambda account: account.handle,
    )
    accounts = [each for each in accounts if sample.owns(each.account)]
    for number, account in enumerate(accounts):
        await task.report_progress(number, len(accounts), f"reading {account.handle}")
        if (account.last_polled_at or 0) < started:
            try:
                await feeds.poll(account.account)
            except PollInProgress as error:
                raise Retry(str(error), after=LEASE_SECONDS) from error
    await task.report_progress(len(accounts), len(accounts), f"{len(accounts)} account(s) read")
    return {"accounts": len(accounts), "items": await feeds.store.count_items()}


async def _add_new(feeds: Feeds, names: list[str]) -> None:
    """Add those of the accounts that are not stored yet.

    Stored accounts are not added again, because this would record them as accounts that a user added.
    """
    found = await feeds.add(names, dry_run=True)
    if found.unknown:
        raise ValueError(f"unknown accounts: {', '.join(found.unknown)}; check the spelling")
    await feeds.add([change.account for change in found.changes if change.action == "added"])
