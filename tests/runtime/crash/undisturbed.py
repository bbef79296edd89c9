"""A run without a storm, in one process: evidence that is in order, for tests to tamper with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from perdure.storage import open_storage
from perdure.tasks.task_snapshot import TASKS

from . import recording_engine
from .clients import OWNERS, Client
from .functions import KINDS, app_on
from .journal import Journal
from .recording_engine import SCHEME
from .scenario import Evidence, by_key, collect_evidence, drained, everything

ME = OWNERS[0]
WORK = [name for name, kind in KINDS.items() if kind.often]
HEARTBEAT = 3.0
"""Seconds. No lease runs out here, however slow the machine is."""


async def calm(url: str, folder: Path) -> Evidence:
    """Each function once, one key twice, and a task that was cancelled before anybody took it."""
    journal = Journal(folder, "calm")
    recording_engine.install(journal, None)
    app = app_on(f"{SCHEME}:{url}", journal, HEARTBEAT)
    async with app.open(work=False, name="nobody") as runtime:
        client = Client(runtime, journal, Random(1))
        await client.cancel_one(ME, await client.submit(ME, "steps", 1))
    async with app.open(name="calm") as runtime, await open_storage(url) as storage:
        client = Client(runtime, journal, Random(2))
        for name in [*WORK, WORK[0]]:
            await client.submit(ME, name, 2, f"key of {name}")
        answering = asyncio.create_task(client.answer())
        await drained(storage, journal)
        answering.cancel()
        return await collect_evidence(storage, folder, by_key(await everything(storage, TASKS)))
