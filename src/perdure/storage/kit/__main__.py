"""The entry point of a child process that the kit starts."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

import msgspec

from ..registry import open_storage
from .child_process import ChildJob, contend, insert_until_killed, report_ready


async def _main() -> None:
    job = msgspec.json.decode(sys.stdin.readline(), type=ChildJob)
    if job.plugin is not None:
        import_module(job.plugin)
    async with await open_storage(job.url) as storage:
        if not job.rounds:
            await insert_until_killed(storage)
        await asyncio.to_thread(report_ready)
        won = await contend(storage, job.rounds)
    sys.stdout.buffer.write(msgspec.json.encode(won))


asyncio.run(_main())
