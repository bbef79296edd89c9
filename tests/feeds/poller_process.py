"""A poller in a process of its own, for tests that kill it. It polls in cycles, until its input ends.

    python -m tests.feeds.poller_process STORAGE BLUESKY SECONDS

SECONDS is how long an account stays with it when it has died.
"""

from __future__ import annotations

import asyncio
import sys

from perdure.feeds import FeedSettings, FeedStore, Poller, PollSettings
from perdure.feeds.bluesky import open_bluesky
from perdure.feeds.settings import BlueskySettings
from perdure.storage import open_storage


async def main(url: str, bluesky: str, seconds: float) -> None:
    settings = FeedSettings(
        polling=PollSettings(posts_per_page=10, retry_backoff_ms=50),
        bluesky=BlueskySettings(service=bluesky, pds=bluesky),
    )
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with await open_storage(url) as storage, open_bluesky(settings) as source:
        poller = Poller(FeedStore(storage), source, settings.polling, lease_duration=round(seconds * 1e6))
        print("ready", flush=True)
        while not ended.done():
            await poller.run_once()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
