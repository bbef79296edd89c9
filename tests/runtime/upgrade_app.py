"""An app that runs in two versions of perdure at once, on the storage that the environment names."""

from __future__ import annotations

import os

import msgspec

from perdure.runtime import App, Pause, RuntimeConfig, Task
from perdure.tasks import InputKind, InputRequest

app = App(
    os.environ.get("PERDURE_URL", "memory:"),
    runtime=msgspec.json.decode(os.environ.get("PERDURE_RUNTIME", "{}"), type=RuntimeConfig),
    application="tests",
)

NEWEST_KIND = list(InputKind)[-1]
"""Of the future version one that today's does not know."""


@app.function(retries=8, backoff=0.0)
async def quick() -> str:
    return "quick"


if NEWEST_KIND == "roots/list":

    @app.function(retries=8, backoff=0.0)
    async def todays() -> str:
        """A function that only today's version runs: the future one would rewrite its tasks."""
        return "today's"


@app.function(retries=8, backoff=0.0)
async def asks(task: Task) -> str:
    """Asks, and waits in place."""
    answer = (await task.ask({"where": InputRequest(kind=NEWEST_KIND)}))["where"].answer
    return type(answer).__name__


@app.function(retries=8, backoff=0.0)
async def pauses(task: Task) -> str:
    """Asks, and lets go of its worker."""
    if "where" not in task.questions:
        raise Pause({"where": InputRequest(kind=NEWEST_KIND)})
    return type(task.questions["where"].answer).__name__
