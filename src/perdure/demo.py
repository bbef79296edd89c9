"""`make run`: the main job, step by step. A process is killed in the middle of a report, another ends it.

Both processes open the same app, as a server and its replica would. The first is killed with SIGKILL after
the fifth page; the second finds its lease run out and goes on from the checkpoint, up to a question.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from .runtime import App, Runtime, RuntimeConfig, Task
from .tasks import Owner, Snapshot, Status, Success

ANA = Owner.user("https://issuer.example", "ana")
PAGES = 12
IMPATIENT = RuntimeConfig(heartbeat=0.3, clock_skew=0.0)
"""A lost worker is missed after about a second and a half; a server takes its time, with 3 s heartbeats."""


def app_at(url: str) -> App:
    """The program: one function, run again if its worker dies."""
    app = App(url, runtime=IMPATIENT)

    @app.function(attempts=3, backoff=0.1)
    async def build_report(year: int, task: Task) -> dict[str, str]:
        first = task.variables.get_int("page", 0) + 1
        for page in range(first, PAGES + 1):
            await task.report(f"page {page} of {year}, attempt {task.attempt}", page, PAGES)
            await asyncio.sleep(0.1)
            await task.set_variables({"page": page})
        answer = await task.elicit("Whose name goes on it?")
        return {"report": f"{PAGES} pages of {year}", "by": str(answer.values.get("name"))}

    return app


def say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show(snapshot: Snapshot) -> None:
    task = snapshot.task
    say(f"    version {snapshot.version:>2}  {task.status:<14}  {task.status_message or ''}")


async def begin(url: str) -> None:
    """What the first process does: submit a report and run it, until it is killed."""
    async with app_at(url).open() as runtime:
        made = await runtime.submit("build_report", {"year": 2026}, owner=ANA)
        say(made.task.task_id)
        async for seen in runtime.watch(ANA, made.task.task_id):
            say(f"{seen.task.variables.get_int('page', 0)}")


async def kill_in_the_middle(url: str) -> str:
    """Start that process, kill it after the fifth page, and return the task's id."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "perdure.demo", url, stdout=asyncio.subprocess.PIPE
    )
    task_id = await read_line(child)
    while (page := await read_line(child)) != "5":
        if not page:
            raise RuntimeError("the first process ended by itself")
    child.kill()
    await child.communicate()
    return task_id


async def read_line(child: asyncio.subprocess.Process) -> str:
    line = await child.stdout.readline() if child.stdout is not None else b""
    return line.decode().strip()


async def main() -> None:
    logging.basicConfig(format="    log: %(message)s", stream=sys.stdout)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'tasks.db'}"
        say("1. A process begins a report of 12 pages for Ana. It is killed with SIGKILL after page 5.")
        task_id = await kill_in_the_middle(url)
        async with app_at(url).open() as runtime:
            say(f"\n2. Another process opens the same file ({runtime.store.storage.name}) and finds it:")
            await watch(runtime, task_id)


async def watch(runtime: Runtime, task_id: str) -> None:
    seen = await runtime.store.get(ANA, task_id)
    show(seen)
    say("\n3. The lease of the killed process runs out, and the report goes on from its checkpoint:")
    shown = seen.task
    async for seen in runtime.watch(ANA, task_id):
        if (seen.task.status, seen.task.status_message) != (shown.status, shown.status_message):
            show(seen)
        shown = seen.task
        if seen.task.status is Status.INPUT_REQUIRED:
            say("\n4. It asks for a name. The answer may come through any process:")
            (key,) = seen.task.outstanding
            answer = {"action": "accept", "content": {"name": "Ana"}}
            await runtime.answer(ANA, task_id, {key: answer})
    if isinstance(seen.task.outcome, Success):
        say(f"\n5. The result, after {seen.task.attempts} attempts: {seen.task.outcome.value}")


if __name__ == "__main__":
    asyncio.run(begin(sys.argv[1]) if sys.argv[1:] else main())
