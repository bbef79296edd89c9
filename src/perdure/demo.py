"""`make run`: the main job, told step by step, on a SQLite file that is killed in the middle.

A child process creates tasks and is killed with SIGKILL while it writes. This process then opens the same
file and finds everything that was acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from .storage import open_storage
from .tasks import InputKind, InputRequest, NewTask, Owner, Progress, Snapshot, Success, TaskStore

ANA = Owner.user("https://issuer.example", "ana")


def say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show(snapshot: Snapshot) -> None:
    task = snapshot.task
    say(f"    {task.task_id}  version {snapshot.version}  {task.status}  {task.status_message or ''}")


async def create_until_killed(url: str) -> None:
    """What the child does: begin a report, then create tasks for ever, telling each once it is stored."""
    async with await open_storage(url) as storage:
        store = TaskStore(storage)
        params = {"name": "build_report", "arguments": {"year": 2026}}
        report = await store.create(ANA, NewTask(method="tools/call", params=params))
        report = await store.report(report, message="collecting", progress=Progress(done=3, total=12))
        report = await store.set_variables(report, {"page": 3, "rows": [1, 2, 3]})
        question = InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose name goes on it?"})
        report = await store.ask(report, {"name": question})
        say(report.task.task_id)
        bob = 0
        while True:
            owner = Owner.user("https://issuer.example", f"bob-{(bob := bob + 1) // 100}")
            say((await store.create(owner, NewTask(method="tools/call"))).task.task_id)


async def kill_in_the_middle(url: str) -> list[str]:
    """Start the child, kill it while it writes, and return what it had been told is stored."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "perdure.demo", url, stdout=asyncio.subprocess.PIPE
    )
    told = [await read_line(child) for _ in range(500)]
    child.kill()
    rest, _ = await child.communicate()
    return told + [line for line in rest.decode().splitlines() if len(line) == len(told[0])]


async def read_line(child: asyncio.subprocess.Process) -> str:
    line = await child.stdout.readline() if child.stdout is not None else b""
    return line.decode().strip()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'tasks.db'}"
        say("1. A process begins a report for Ana, asks her a question, and creates tasks for others.")
        told = await kill_in_the_middle(url)
        say(f"   It is killed with SIGKILL after {len(told)} tasks were acknowledged.\n")
        async with await open_storage(url) as storage:
            await look(TaskStore(storage), told)


async def look(store: TaskStore, told: list[str]) -> None:
    say(f"2. Another process opens the same file ({store.storage.name}) and walks the listing, page by page.")
    listed = await list_all(store)
    lost = set(told) - set(listed)
    say(f"   It holds {len(listed)} tasks. Acknowledged and lost: {len(lost)}.\n")

    say("3. Ana's report is where it was, with its variables and the open question:")
    report = await store.get(ANA, told[0])
    show(report)
    say(f"    variables {dict(report.task.variables)}, asked {list(report.task.outstanding)}\n")

    say("4. She answers, and the work ends in one write:")
    answer = {"name": {"action": "accept", "content": {"name": "Ana"}}}
    report = await store.mutate(ANA, told[0], lambda read: store.answer(read, answer))
    show(report)
    report = await store.finish(
        report, Success.of({"content": [{"type": "text", "text": "12 pages, by Ana"}]})
    )
    show(report)
    if isinstance(report.task.outcome, Success):
        say(f"    result {report.task.outcome.value}\n")

    say("5. The engine checks itself:")
    upkeep = await store.maintain()
    say(f"    {upkeep.examined} tasks read, {len(upkeep.findings)} findings")


async def list_all(store: TaskStore) -> list[str]:
    ids: list[str] = []
    page = await store.list_all(limit=200)
    ids += [each.task.task_id for each in page.tasks]
    while page.next_cursor is not None:
        page = await store.list_all(limit=200, cursor=page.next_cursor)
        ids += [each.task.task_id for each in page.tasks]
    return ids


if __name__ == "__main__":
    asyncio.run(create_until_killed(sys.argv[1]) if sys.argv[1:] else main())
