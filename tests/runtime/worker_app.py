"""An app for worker processes, on the storage and with the settings that the environment names."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec

from perdure.runtime import App, RuntimeConfig, Task

app = App(
    os.environ.get("PERDURE_URL", "memory:"),
    runtime=msgspec.json.decode(os.environ.get("PERDURE_RUNTIME", "{}"), type=RuntimeConfig),
    application="tests",
)


@app.function
async def careful(task: Task) -> dict[str, int]:
    """Ends at its second attempt, from the checkpoint that the first one left."""
    reached = task.variables.get_int("reached", 0)
    if not reached:
        await task.set_variables({"reached": 3, "pid": os.getpid()})
        await asyncio.sleep(600)
    return {"reached": reached, "attempt": task.attempt}


@app.function(restart=False)
async def once(task: Task) -> None:
    """Never ends by itself, and is not to be begun again."""
    await task.set_variables({"pid": os.getpid()})
    await asyncio.sleep(600)


@app.function
async def patient(task: Task) -> int:
    """Runs until it is told to end, then cleans up."""
    try:
        await task.set_variables({"pid": os.getpid()})
        await asyncio.sleep(600)
    finally:
        await task.set_variables({"cleaned": True})
    return 0


@app.function
async def asks(task: Task) -> str:
    """Asks for a name, and says who was at work."""
    await task.set_variables({"pid": os.getpid()})
    answer = await task.elicit("Whose name goes on it?")
    return f"{answer.action} in attempt {task.attempt}"


@app.function(restart=False)
def stubborn(task: Task) -> None:
    """A plain function that heeds nothing."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(0.01)


@app.function()
async def short(number: int) -> int:
    return number + 1
