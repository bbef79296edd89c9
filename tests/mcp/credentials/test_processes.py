"""Credentials of a call on one replica reach the tool in another process, after kills; without the key, a
storage stays as it is.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.mcp.wire import as_object
from perdure.operating.maintenance import ALL_SPACES
from perdure.runtime import Pause
from perdure.runtime.claims import Claimer
from perdure.storage import Record, Storage, open_storage
from perdure.tasks import (
    InputKind,
    InputRequest,
    NewTask,
    Owner,
    Snapshot,
    StoreConfig,
    Success,
    TaskRecord,
    TaskStore,
)
from perdure.tasks.encryption import Keyring, new_key
from perdure.tasks.task_snapshot import TASKS

from ...conditions import wait_until
from ...fork_server import PIPE, ForkedProcess, spawn
from ...markers import in_test_all, row
from ...runtime.replicas import QUICK
from ...storage.engines import new_url
from ..raw_clients import Client2025, Client2026, serving
from ..tool_helpers import text_of
from .servers import FRAMEWORKS, ISSUER, CredentialServer, Framework

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
ENGINES = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
BOTH = pytest.mark.parametrize("framework", FRAMEWORKS)
ADA = Owner.user(ISSUER, "ada")
CALL = NewTask(
    method="tools/call",
    function="whoami",
    params={"name": "whoami", "arguments": {}},
    credentials={"headers": {"authorization": "Bearer ada"}},
)


@asynccontextmanager
async def process(
    url: str, framework: Framework, key: str, *options: str
) -> AsyncGenerator[tuple[ForkedProcess, str]]:
    """A replica; its process, and its URL."""
    words = ("-m", "tests.mcp.credentials.server_process", url, framework, *options)
    async with killed_at_the_end(words, {"PERDURE_ENCRYPTION_KEY": key}) as started:
        assert started.stdout is not None
        port = int(await asyncio.wait_for(started.stdout.readline(), 60))
        yield started, f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def worker(url: str, framework: Framework, key: str, *options: str) -> AsyncGenerator[ForkedProcess]:
    """`perdure worker` with the tools of a replica."""
    words = ("-m", "perdure.cli", "worker", "tests.mcp.credentials.worker_server:server")
    variables = {"PERDURE_ENCRYPTION_KEY": key, "WORKED": " ".join((url, framework, *options))}
    async with killed_at_the_end(words, variables) as started:
        yield started


@asynccontextmanager
async def killed_at_the_end(
    words: Sequence[str], variables: Mapping[str, str]
) -> AsyncGenerator[ForkedProcess]:
    started = await spawn(*words, cwd=ROOT, env={**os.environ, **variables}, stdout=PIPE)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def the_task(storage: Storage) -> TaskRecord:
    (record,) = await storage.page(TASKS, limit=10, now=0)
    return Snapshot.head_of(record).task


async def is_run_by(storage: Storage, pid: int) -> bool:
    """Whether this process runs the one task."""
    return (await the_task(storage)).variables.get("pid") == pid


async def has_ended(storage: Storage) -> bool:
    return (await the_task(storage)).is_terminal


@row(122, 124)
@ENGINES
@BOTH
async def test_a_task_created_on_a_replica_runs_with_its_token_in_a_worker_after_both_were_killed(
    framework: Framework, engine: str, tmp_path: Path
) -> None:
    url, old, key = await new_url(engine, tmp_path), new_key(), new_key()
    async with await open_storage(url) as storage:
        async with process(url, framework, old, "--hang") as (first, endpoint):
            async with Client2026(endpoint, token="ada") as client:  # noqa: S106
                client._headers["x-request-id"] = "request-1"  # pyright: ignore[reportPrivateUsage]
                await client.start("report")
            await wait_until(lambda: is_run_by(storage, first.pid), seconds=30)
            async with worker(url, framework, f"{old},{key}", "--hang") as second:
                first.kill()
                await first.wait()
                await wait_until(lambda: is_run_by(storage, second.pid), seconds=30)
                second.kill()
                await second.wait()
        assert not [record for record in await records(storage) if "Bearer" in record.body]
        async with worker(url, framework, f"{key},{old}") as last:
            await wait_until(lambda: has_ended(storage), seconds=30)
            outcome = (await the_task(storage)).outcome
            assert isinstance(outcome, Success)
            pid, token, scopes, claims, headers = json.loads(text_of(as_object(outcome.value)))
        assert (pid, token, scopes) == (last.pid, "ada", ["read", "only:ada"])
        assert claims == {"iss": ISSUER, "tenant": "ada's"}
        assert headers == {"authorization": "Bearer ada", "x-request-id": "request-1"}
        assert not [record for record in await records(storage) if "ciphertexts" in record.body]


# The same storage without the key


async def records(storage: Storage) -> list[Record]:
    """Everything that is stored."""
    await asyncio.sleep(storage.lag)
    return [record for space in ALL_SPACES for record in await storage.page(space, limit=1000, now=0)]


def busy_server(framework: Framework, url: str, keys: Sequence[str], limits: StoreConfig) -> CredentialServer:
    """A server whose tasks are running, queued, interrupted, waiting for answers, and ended."""
    bench = CredentialServer(framework, url, encryption_keys=keys, runtime=QUICK, store=limits)

    @bench.tool()
    async def asks() -> str:
        raise Pause(
            {"name": InputRequest(kind=InputKind.ELICITATION, params={"message": "Whose?"}, deadline=1)}
        )

    return bench


@row(122, 123)
@pytest.mark.parametrize(
    ("engine", "encrypt"),
    [
        ("sqlite", "everything"),
        ("postgres", "credentials"),
        pytest.param("sqlite", "credentials", marks=in_test_all),
        pytest.param("postgres", "everything", marks=in_test_all),
    ],
)
@BOTH
async def test_a_storage_that_is_opened_without_the_key_is_not_changed_in_any_byte(
    framework: Framework, engine: str, encrypt: str, tmp_path: Path
) -> None:
    url, key = await new_url(engine, tmp_path), new_key()
    limits = StoreConfig(encrypt="everything" if encrypt == "everything" else "credentials")
    made = await leave_tasks(framework, url, key, limits)
    file = tmp_path / "tasks.db"
    async with await open_storage(url) as storage:
        before = await records(storage)
    content = file.read_bytes() if engine == "sqlite" else b""
    for keys in ((), (new_key(),)):
        bench = busy_server(framework, url, keys, StoreConfig())
        async with (
            serving(bench.app()) as endpoint,
            Client2026(endpoint, token="ada") as modern,  # noqa: S106
            Client2025(endpoint, token="ada") as core,  # noqa: S106
        ):
            await asyncio.sleep(2)  # leases end, deadlines pass, queues are read
            for task_id in made:
                for method in ("tasks/get", "tasks/cancel"):
                    answer = await modern.send(method, {"taskId": task_id})
                    assert answer.error["data"] == {"retryable": True}, (method, answer.message)
                    assert "this server cannot read the task" in answer.error["message"]
            assert (await core.send("tasks/list")).result["tasks"] == []
            store = bench.tasks.runtime.store
            assert store.keys.missing_keys[store.application].keys() == set(Keyring([key]).key_ids)
        async with await open_storage(url) as storage:
            assert await records(storage) == before
        assert not content or file.read_bytes() == content
    bench = busy_server(framework, url, [key], limits)
    async with serving(bench.app()) as endpoint, Client2026(endpoint, token="ada") as client:  # noqa: S106
        for task_id in made:
            await client.until(task_id, "completed", "failed")


async def leave_tasks(framework: Framework, url: str, key: str, limits: StoreConfig) -> list[str]:
    """Let a server with the key create tasks, and leave them in each state that has credentials."""
    bench = busy_server(framework, url, [key], limits)
    bench.go_on.clear()
    async with (
        serving(bench.app()) as endpoint,
        Client2026(endpoint, token="ada") as modern,  # noqa: S106
        Client2025(endpoint, token="ada") as core,  # noqa: S106
    ):
        asked = await modern.start("asks")
        await modern.until(asked, "input_required")
        handed_back = await modern.start("whoami")
        await core.send("tasks/list")  # which creates the key of cursors
    async with await open_storage(url) as storage:
        store = TaskStore(storage, limits, keys=Keyring([key]), application="credentials")
        queued = await store.create(ADA, CALL)
        holder = Claimer(store, QUICK, "dead").new_holder()
        lost = await store.create(ADA, CALL, lease=lambda first: holder.take(first, None))
    return [asked, handed_back, queued.task.task_id, lost.task.task_id]
