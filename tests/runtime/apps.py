"""Apps of one function, which hangs or goes on when it may, and running many tasks of an app at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from perdure.runtime import App, Runtime, Task
from perdure.tasks import Snapshot

from .faulty_storage import ME
from .replicas import new_app


def hanging() -> App:
    app = new_app()

    @app.function(restart=False)
    async def hang() -> None:
        await asyncio.Event().wait()

    return app


def counted() -> tuple[App, asyncio.Event, list[int]]:
    """A function that returns its attempt once it may, and which attempts there were."""
    app, go_on, runs = new_app(), asyncio.Event(), list[int]()

    @app.function(retries=4, backoff=0.0)
    async def work(task: Task) -> int:
        runs.append(task.attempt)
        await go_on.wait()
        return task.attempt

    return app, go_on, runs


async def run_all(runtime: Runtime, names: Sequence[str]) -> list[Snapshot]:
    made = await asyncio.gather(*(runtime.submit(name) for name in names))
    return [await runtime.wait(ME, each.task.task_id, 20) for each in made]
