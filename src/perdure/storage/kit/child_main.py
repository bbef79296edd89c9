"""The program of the kit's child processes: `python -m perdure.storage.kit.child_main`.

No other module of the kit may import `child_main`. If the module were already imported when Python runs it as
a program, Python would print a warning.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from itertools import count

import msgspec

from ..records_and_changes import Insert
from ..registry import open_storage
from ..storage import Storage
from .child_processes import ChildJob, contend
from .sample_records import commit_changes, make_record


async def _main() -> None:
    job = msgspec.json.decode(sys.stdin.readline(), type=ChildJob)
    if job.plugin is not None:
        import_module(job.plugin)
    async with await open_storage(job.url) as storage:
        if not job.rounds:
            await _insert_until_killed(storage)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)  # the parent closes it when all children are ready
        won = await contend(storage, job.rounds)
    sys.stdout.buffer.write(msgspec.json.encode(won))


async def _insert_until_killed(storage: Storage) -> None:
    """Commit three records at a time. After each commit has returned, print the prefix of the three keys."""
    for number in count():
        name = f"{number}!"
        await commit_changes(
            storage, *[Insert(record=make_record(f"{name}{n}", order=number, tag=str(n))) for n in range(3)]
        )
        print(name, flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
