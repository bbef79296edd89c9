"""A process that contends for a record with others like it; started by the kit's own check."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module

import msgspec

from ..opening import open_storage
from .contending import Contest, contend


async def _main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Contest)
    if task.plugin is not None:
        import_module(task.plugin)
    async with await open_storage(task.url) as storage:
        won = await contend(storage, task.rounds)
    sys.stdout.buffer.write(msgspec.json.encode(won))


asyncio.run(_main())
