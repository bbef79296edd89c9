"""A process of the future version, beside processes of today's on one storage.

    python -c "import tests.future, runpy; runpy.run_module('tests.runtime.upgrade', run_name='__main__')" \
        start|queue|finish URL [TASK_ID ...]

It prints the ids of the tasks that it made, or the results of those that it finished, and ends without
releasing anything.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from perdure.feeds import FeedStore, PollSettings, transitions
from perdure.feeds.item import Item
from perdure.feeds.source import Profile
from perdure.runtime import Runtime
from perdure.storage import open_storage
from perdure.storage.time_types import system_clock
from perdure.tasks import Json, Status, TaskStore

from ..conditions import wait_until
from .faulty_storage import ME
from .replicas import QUICK, leave_with_a_dead_worker, value_of
from .upgrade_app import NEWEST_KIND, app

FEED = "did:plc:future"
MORTAL = replace(QUICK, clock_skew=0.7)


async def start(runtime: Runtime) -> list[str]:
    """Tasks that this process has started: one has finished, one asks in place, one has paused."""
    assert NEWEST_KIND == "elicitation/url"
    async with runtime.running():
        finished = await runtime.submit("quick")
        await runtime.wait(ME, finished.task.task_id, 120)
        made = [(await runtime.submit(name)).task.task_id for name in ("asks", "pauses")]
        for task_id, is_held in zip(made, (True, False), strict=True):

            async def is_asking(task_id: str = task_id, *, is_held: bool = is_held) -> bool:
                task = (await runtime.get(ME, task_id)).task
                return bool(task.outstanding) and task.is_claimed == is_held

            await wait_until(is_asking)
        await tell([finished.task.task_id, *made])
    raise AssertionError("the process has ended before")


async def queue(runtime: Runtime) -> list[str]:
    """Tasks that wait for a worker, a task that a dead worker had, and a feed that is due."""
    waiting = [await runtime.submit("quick") for _ in range(3)]
    keyed = await runtime.submit("quick", idempotency_key="future")
    held = await leave_with_a_dead_worker(runtime, ME, "quick")
    feeds = FeedStore(runtime.store.storage)
    now = system_clock()
    await feeds.add(
        transitions.new_account(
            Profile(account_id=FEED, handle="future.test"), now=now, settings=PollSettings()
        )
    )
    kind: str = "video"
    uri = f"at://{FEED}/app.bsky.feed.post/1"
    fields = {"uri": uri, "time": now, "kind": kind, "post_uri": uri, "author_id": FEED}
    await feeds.add_items(FEED, [msgspec.convert({"format": 3, **fields}, Item)])
    return [*(each.task.task_id for each in (*waiting, keyed)), held]


async def finish(runtime: Runtime) -> dict[str, Json]:
    """Answer what asks, and run everything to its end."""
    results: dict[str, Json] = {}
    async with runtime.running():
        for task_id in sys.argv[3:]:
            task = (await runtime.get(ME, task_id)).task
            if task.outstanding:
                assert task.status is Status.INPUT_REQUIRED
                assert task.status == "awaiting_input"
                await runtime.answer(ME, task_id, {"where": {"action": "accept"}})
            results[task_id] = value_of(await runtime.wait(ME, task_id, 60))
        feeds = FeedStore(runtime.store.storage)
        results[FEED] = [item.kind async for _, item in feeds.newest_items(FEED)]
        await tell(results)
    raise AssertionError("the process has ended before")


async def tell(answer: list[str] | dict[str, Json]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.flush()
    os._exit(0)


COMMANDS: dict[str, Callable[[Runtime], Awaitable[list[str] | dict[str, Json]]]] = {
    "start": start,
    "queue": queue,
    "finish": finish,
}


async def main(command: str, url: str) -> None:
    async with await open_storage(url) as storage:
        runtime = Runtime(
            TaskStore(storage, application="tests"), app.functions, QUICK if command == "start" else MORTAL
        )
        await tell(await COMMANDS[command](runtime))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
