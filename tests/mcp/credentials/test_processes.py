"""Credentials of a call on one replica reach the tool in another process, after kills; without the key, a
storage stays as it is.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.operating.maintenance import ALL_SPACES
from perdure.runtime import Pause
from perdure.runtime.claiming import Claimer
from perdure.storage import Record, Storage, open_storage
from perdure.tasks import InputKind, InputRequest, NewTask, Owner, StoreConfig, TaskStore
from perdure.tasks.encryption import Keyring, new_key

from ...conditions import wait_until
from ...fork_server import PIPE, ForkedProcess, spawn
from ...markers import row
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
    variables = {**os.environ, "PERDURE_ENCRYPTION_KEY": key}
    words = ("-m", "tests.mcp.credentials.server_process", url, framework, *options)
    started = await spawn(*words, cwd=ROOT, env=variables, stdout=PIPE)
    try:
        assert started.stdout is not None
        port = int(await asyncio.wait_for(started.stdout.readline(), 60))
        yield started, f"http://127.0.0.1:{port}/mcp"
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def is_run_by(url: str, task_id: str, pid: int) -> bool:
    async with Client2026(url, token="ada") as client:  # noqa: S106
        task = await client.get(task_id)
    return task.get("_meta", {}).get("perdure/variables", {}).get("pid") == pid


@row(122)
@ENGINES
@BOTH
async def test_a_task_created_on_one_replica_runs_with_its_token_on_another_after_both_were_killed(
    framework: Framework, engine: str, tmp_path: Path
) -> None:
    storage, old, key = await new_url(engine, tmp_path), new_key(), new_key()
    async with process(storage, framework, old, "--hang") as (first, url):
        async with Client2026(url, token="ada") as client:  # noqa: S106
            client._headers["x-request-id"] = "request-1"  # pyright: ignore[reportPrivateUsage]
            task_id = await client.start("report")
        await wait_until(lambda: is_run_by(url, task_id, first.pid), seconds=30)
        async with process(storage, framework, f"{old},{key}", "--hang") as (second, other):
            first.kill()
            await first.wait()
            await wait_until(lambda: is_run_by(other, task_id, second.pid), seconds=30)
            second.kill()
            await second.wait()
    async with await open_storage(storage) as opened:
        assert not [record for record in await records(opened) if "Bearer" in record.body]
    async with (
        process(storage, framework, f"{key},{old}") as (last, url),
        Client2026(url, token="ada") as client,  # noqa: S106
    ):
        done = await client.until(task_id, "completed", "failed")
    pid, token, scopes, claims, headers = json.loads(text_of(done["result"]))
    assert (pid, token, scopes) == (last.pid, "ada", ["read", "only:ada"])
    assert claims == {"iss": ISSUER, "tenant": "ada's"}
    assert headers == {"authorization": "Bearer ada", "x-request-id": "request-1"}
    async with await open_storage(storage) as opened:
        assert not [record for record in await records(opened) if "ciphertexts" in record.body]


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
@ENGINES
@BOTH
@pytest.mark.parametrize("encrypt", ["credentials", "everything"])
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
                    assert "cannot be read by this server" in answer.error["message"]
            assert (await core.send("tasks/list")).result["tasks"] == []
            store = bench.tasks.runtime.store
            assert store.keys.missing_key_ids == {store.application: set(Keyring([key]).key_ids)}
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
