"""`perdure worker module:app`: real processes on one storage, killed, stopped and told to end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.runtime import Runtime
from perdure.storage import open_storage
from perdure.tasks import Owner, Snapshot, Status, TaskStore

from ..conditions import wait_until, wait_until_stopped
from ..markers import row
from ..storage.engines import new_url
from .crash.scenario import others_can_write
from .replicas import QUICK, UNHURRIED, value_of
from .worker_app import app
from .worker_process import WorkerProcess, worker

pytestmark = pytest.mark.anyio
ME = Owner.local()

MORTAL = replace(UNHURRIED, clock_skew=0.7)
"""For workers that are to be missed: a lease lasts a second."""


@pytest.fixture
async def url(on_shared_engine: str, tmp_path: Path, anyio_backend: str) -> str:
    return await new_url(on_shared_engine, tmp_path)


@pytest.fixture
async def client(url: str, anyio_backend: str) -> AsyncGenerator[Runtime]:
    """Creates and waits in this process; the work is done by others."""
    async with await open_storage(url) as storage:
        yield Runtime(TaskStore(storage, application="tests"), app.functions, QUICK)


async def in_work(client: Runtime, made: Snapshot) -> Snapshot:
    """The task, once a worker has begun it and said so."""
    async for seen in client.watch(ME, made.task.task_id):
        if "pid" in seen.task.variables:
            return seen
    raise AssertionError("it ended before it was seen in work")


@row(65, 62)
async def test_the_work_of_a_killed_process_is_run_again_from_its_checkpoint(
    url: str, client: Runtime
) -> None:
    made = await client.submit("careful")
    async with worker(url, config=MORTAL) as first, worker(url, config=MORTAL) as second:
        seen = await in_work(client, made)
        (first if seen.task.variables["pid"] == first.pid else second).send(signal.SIGKILL)
        ended = await client.wait(ME, made.task.task_id, 120)
    assert value_of(ended) == {"reached": 3, "attempt": 2}
    assert ended.task.last_failure == "the worker was lost while it ran the task"


@row(62, 68)
async def test_a_killed_process_fails_what_is_not_to_be_run_again(url: str, client: Runtime) -> None:
    made = await client.submit("once")
    async with worker(url, config=MORTAL) as first:
        await in_work(client, made)
        first.send(signal.SIGKILL)
        await first.ended()
        async with worker(url, config=MORTAL):
            ended = await client.wait(ME, made.task.task_id, 120)
    assert ended.task.status is Status.FAILED
    assert (
        ended.task.status_message
        == "the worker was lost while it ran the task, and the function must not run twice (restart=False)"
    )


@row(64)
async def test_a_process_that_slept_longer_than_its_lease_cannot_write_any_more(
    url: str, client: Runtime
) -> None:
    made = await client.submit("patient")
    async with worker(url, config=MORTAL) as sleeper:
        await in_work(client, made)
        await freeze(sleeper, client)
        async with worker(url, config=MORTAL) as other:
            await wait_until(lambda: taken_by(client, made, other), 30)
            sleeper.send(signal.SIGCONT)
            await lost_its_lease(sleeper, made)
            before = await client.store.get(ME, made.task.task_id)
            assert before.task.variables["pid"] == other.pid
            assert "cleaned" not in before.task.variables  # what the sleeper wrote was dropped
            await client.cancel(ME, made.task.task_id)
            ended = await client.wait(ME, made.task.task_id, 120)
    assert ended.task.status is Status.CANCELLED
    assert ended.task.variables["cleaned"] is True


async def freeze(sleeper: WorkerProcess, client: Runtime) -> None:
    """Not while it holds a lock that others wait for."""
    while True:
        sleeper.send(signal.SIGSTOP)
        await wait_until_stopped(sleeper.pid)
        if await others_can_write(client.store.storage):
            return
        sleeper.send(signal.SIGCONT)
        await asyncio.sleep(0.02)


async def taken_by(client: Runtime, made: Snapshot, other: WorkerProcess) -> bool:
    found = await client.store.get(ME, made.task.task_id)
    return found.task.variables.get("pid") == other.pid


async def lost_its_lease(sleeper: WorkerProcess, made: Snapshot) -> None:
    said = ""
    while "no outcome was stored" not in said:
        said = await sleeper.line()
        assert said, "it said nothing of a lost lease"
    assert made.task.task_id in said


@row(71)
async def test_a_cancel_reaches_a_run_in_another_process(url: str, client: Runtime) -> None:
    made = await client.submit("patient")
    async with worker(url):
        await in_work(client, made)
        flagged = await client.cancel(ME, made.task.task_id)
        assert flagged.task.cancel_requested_at is not None
        ended = await client.wait(ME, made.task.task_id, 120)
    assert ended.task.status is Status.CANCELLED
    assert ended.task.variables["cleaned"] is True


@row(81)
async def test_a_question_of_one_process_is_answered_through_another_and_the_work_resumed_in_a_third(
    url: str, client: Runtime
) -> None:
    made = await client.submit("asks")
    async with worker(url, config=MORTAL) as first:
        seen = await until_asked(client, made)
        first.send(signal.SIGKILL)
        await first.ended()
    (key,) = seen.task.outstanding
    await client.answer(ME, made.task.task_id, {key: {"action": "accept", "content": {}}})
    async with worker(url, config=MORTAL):
        ended = await client.wait(ME, made.task.task_id, 120)
    assert value_of(ended) == "accept in attempt 2"
    assert list(ended.task.inputs) == [key]  # what was answered is not asked twice


async def until_asked(client: Runtime, made: Snapshot) -> Snapshot:
    async for seen in client.watch(ME, made.task.task_id):
        if seen.task.status is Status.INPUT_REQUIRED:
            return seen
    raise AssertionError("it did not ask")


async def test_sigterm_hands_back_what_runs_and_another_takes_it_at_once(url: str, client: Runtime) -> None:
    made = await client.submit("patient")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(url))
        await in_work(client, made)
        second = await stack.enter_async_context(worker(url))
        first.send(signal.SIGTERM)
        assert await first.ended() == 0
        await wait_until(lambda: taken_by(client, made, second), 30)
        found = await client.store.get(ME, made.task.task_id)
    assert (found.task.attempts, found.task.failures) == (2, 0)  # to be handed back is not to fail
    assert found.task.last_failure == "the worker was shut down before the task ended"


async def test_a_plain_function_that_heeds_nothing_does_not_keep_the_process_from_ending(
    url: str, client: Runtime
) -> None:
    made = await client.submit("stubborn")
    async with worker(url, config=replace(UNHURRIED, cancel_grace=0.3)) as first:
        await wait_until(lambda: is_held(client, made), 30)
        first.send(signal.SIGTERM)
        assert await first.ended() == 0
    ended = await client.wait(ME, made.task.task_id, 120)
    assert ended.task.last_failure == "the worker was shut down before the task ended"


async def is_held(client: Runtime, made: Snapshot) -> bool:
    return (await client.store.get(ME, made.task.task_id)).task.is_claimed


async def test_told_twice_the_process_stops_dead(url: str, client: Runtime) -> None:
    made = await client.submit("stubborn")
    async with worker(url, config=replace(UNHURRIED, drain_timeout=600.0)) as first:
        await wait_until(lambda: is_held(client, made), 30)
        first.send(signal.SIGTERM)
        assert "send the signal again" in await first.line()
        first.send(signal.SIGTERM)
        assert await first.ended() == 1


@row(72)
async def test_a_waiter_learns_of_the_end_in_another_process(url: str, client: Runtime) -> None:
    async with worker(url):
        made = [await client.submit("short", {"number": number}) for number in range(20)]
        ended = [await client.wait(ME, each.task.task_id, 120) for each in made]
    assert [value_of(each) for each in ended] == list(range(1, 21))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:app", "perdure: no module named 'nowhere' in this directory or environment"),
        (
            "tests.runtime.worker_app:nothing",
            "module tests.runtime.worker_app has no attribute .nothing.",
        ),
        ("tests.runtime.worker_app", "invalid name .*; use the form module:server"),
    ],
)
async def test_an_app_that_cannot_be_found_is_one_clear_sentence(name: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        async with worker("memory:", name):
            pass


async def test_a_storage_that_cannot_be_opened_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database")
    with pytest.raises(AssertionError, match="perdure: cannot open"):
        async with worker(f"sqlite:///{tmp_path / 'notes.txt'}"):
            pass


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "from perdure.runtime import App\napp = App('sqlite:///x.db', application='tests')\n",
            "the app has no functions",
        ),
        (
            "from perdure.runtime import App\napp = App('memory:', application='tests')\n"
            "@app.function\ndef work(): ...\n",
            "perdure: storage with a memory: URL is private to one process; use a file or a database server",
        ),
        ("import nowhere_at_all\n", "perdure: cannot import mine:"),
        ("raise ValueError('broken')\n", "perdure: cannot import mine:"),
    ],
)
def test_an_app_that_no_worker_can_serve_is_refused_with_the_reason(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "worker", "mine:app"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "importlib" not in ended.stderr
