"""A process that contends with the kit; started by the kit itself."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

import msgspec

from ..registry import open_storage
from .child_process import ChildJob, contend, insert_until_killed, report_ready


async def _main() -> None:
    contest = msgspec.json.decode(sys.stdin.readline(), type=ChildJob)
    if contest.plugin is not None:
        import_module(contest.plugin)
    async with await open_storage(contest.url) as storage:
        if not contest.rounds:
            await insert_until_killed(storage)
        await asyncio.to_thread(report_ready)
        won = await contend(storage, contest.rounds)
    sys.stdout.buffer.write(msgspec.json.encode(won))


asyncio.run(_main())
