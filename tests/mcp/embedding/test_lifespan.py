"""The storage opens for the first client and closes after the last, also within a lifespan of the user's."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from mcp.client import Client
from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, Resolve
from mcp.shared.exceptions import MCPError

from perdure import Tasks
from perdure.storage import Change, Storage, open_storage
from perdure.storage.errors import PerdureError, StorageClosed
from perdure.storage.time_types import system_clock
from perdure.tasks import Json, NewTask, Owner, Status, StoreConfig, TaskStore
from perdure.tasks.task_snapshot import TASKS

from ...conditions import wait_until
from ...markers import server
from ...runtime.faulty_storage import FaultyLink, is_held
from ..raw_clients import Client2025, Client2026, serving
from ..tool_helpers import FAST_CONFIG
from .servers import add_tools, called, count_of, low_level, make, text_of

pytestmark = pytest.mark.anyio


async def is_open(storage: Storage) -> bool:
    try:
        await storage.counts(TASKS, now=0)
    except StorageClosed:
        return False
    return True


class Visit:
    """A client in the same process, in a task of its own: clients come and leave in any order."""

    client: Client

    def __init__(self, server: MCPServer[Any] | Server[Any], mode: str = "auto") -> None:
        self._server = server
        self._mode = mode
        self._came, self._leaves = asyncio.Event(), asyncio.Event()
        self._visiting: asyncio.Task[None] | None = None

    async def begin(self) -> Client:
        self._visiting = asyncio.create_task(self._visit())
        await self._came.wait()
        return self.client

    async def end(self) -> None:
        self._leaves.set()
        assert self._visiting is not None
        await self._visiting

    async def _visit(self) -> None:
        async with Client(self._server, mode=self._mode) as self.client:
            self._came.set()
            await self._leaves.wait()


# The lifespan of the tasks


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_storage_is_opened_once_for_all_clients_and_closed_with_the_last(
    url: str, mode: str
) -> None:
    server, tasks = make(url)
    first, second = Visit(server, mode), Visit(server, mode)
    await first.begin()
    runtime = tasks.runtime
    await second.begin()
    assert [await called(first.client), await called(second.client)] == [42, 42]
    await first.end()
    assert tasks.runtime is runtime
    assert await called(second.client) == 42
    await second.end()
    assert not await is_open(runtime.store.storage)
    with pytest.raises(MCPError, match="tasks cannot run"):
        _ = tasks.runtime


def is_running(tasks: Tasks) -> bool:
    try:
        _ = tasks.runtime
    except MCPError:
        return False
    return True


async def test_a_task_that_is_claimed_while_the_server_stops_is_run() -> None:
    link = FaultyLink()
    claimed, may_answer = asyncio.Event(), asyncio.Event()

    async def hold_claims(changes: Sequence[Change]) -> None:
        if any(is_held(each) for each in changes):
            claimed.set()
            await may_answer.wait()

    async def answer_once_stopped() -> None:
        await wait_until(lambda: not is_running(tasks))
        may_answer.set()

    link.after = hold_claims
    async with await open_storage("memory:") as storage:
        server, tasks = make(await link.around(storage))
        store = TaskStore(storage, application="host")
        call: Json = {"name": "double", "arguments": {"number": 21}}
        async with Client(server):
            made = await store.create(
                Owner.local(), NewTask(method="tools/call", function="double", params=call)
            )
            await claimed.wait()
            answering = asyncio.create_task(answer_once_stopped())
        await answering
        ended = (await store.get(Owner.local(), made.task.task_id)).task
    assert ended.status is Status.COMPLETED, ended.status_message


async def test_clients_that_come_at_the_same_moment_share_one_runtime(url: str) -> None:
    server, tasks = make(url)
    opened: list[object] = []
    together = asyncio.Barrier(5)

    async def come() -> None:
        async with Client(server) as client:
            opened.append(tasks.runtime)
            await together.wait()
            assert await called(client) == 42

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(come())
    assert len(opened) == 5
    assert len(set(opened)) == 1


async def test_a_server_that_was_closed_can_be_run_again_and_finds_its_tasks(url: str) -> None:
    server, tasks = make(url)
    for count in (1, 2, 3):
        async with Client(server) as client:
            assert await called(client) == 42
            assert await count_of(tasks) == count


def test_a_server_can_be_run_again_in_another_event_loop(url: str) -> None:
    server, _ = make(url)
    together = 3

    async def run() -> list[int]:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call()) for _ in range(together)]
        return [call.result() for call in calls]

    async def call() -> int:
        async with Client(server) as client:
            return await called(client)

    assert anyio.run(run) == anyio.run(run) == [42] * together


async def test_a_storage_that_cannot_be_opened_is_told_at_start_up_and_may_be_mended(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    server, _ = make(f"sqlite:///{folder / 'tasks.db'}")
    for _ in range(2):
        with pytest.raises(PerdureError, match="missing"):
            async with Client(server):
                pass
    folder.mkdir()
    async with Client(server) as client:
        assert await called(client) == 42


async def test_an_http_server_whose_storage_cannot_be_opened_does_not_start(tmp_path: Path) -> None:
    server, _ = make(f"sqlite:///{tmp_path / 'missing' / 'tasks.db'}")
    app = server.streamable_http_app()
    with pytest.raises(PerdureError, match="missing"):
        async with app.router.lifespan_context(app):
            pass


async def test_who_gives_up_while_the_storage_opens_leaves_nothing_behind(url: str) -> None:
    server, tasks = make(url)

    async def come() -> None:
        async with Client(server):
            await asyncio.Event().wait()

    for moment in range(1, 12):
        coming = asyncio.create_task(come())
        for _ in range(moment):
            await asyncio.sleep(0)
        coming.cancel()
        await asyncio.wait((coming,))
        async with Client(server) as client:
            assert await called(client) == 42
            storage = tasks.runtime.store.storage
        assert not await is_open(storage)
    gc.collect()  # an exception that nobody took would be reported now, and fail the test


async def test_a_storage_that_was_given_ready_is_used_and_not_closed(url: str) -> None:
    async with await open_storage(url) as storage:
        server, tasks = make(storage)
        async with Client(server) as client:
            assert tasks.runtime.store.storage is storage
            assert await called(client) == 42
        assert await is_open(storage)
        assert sum((await storage.counts(TASKS, now=system_clock())).values()) == 1


@server
async def test_limits_of_the_store_are_those_that_were_given(url: str) -> None:
    tasks = Tasks(url, store=StoreConfig(max_ttl=1, ttl=1))
    server: MCPServer[Any] = MCPServer("host", **tasks.attach())
    add_tools(server, tasks)
    async with serving(server.streamable_http_app()) as endpoint, Client2025(endpoint) as core:
        answer = await core.call("double", {"number": 1}, task={"ttl": 1001})
        assert answer.code == -32602


# A lifespan of the user's own


class Pool:
    """Something that a server opens, and that tools need open."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.is_open = True
        self._events = events

    def use(self) -> str:
        assert self.is_open, f"{self.name} is closed"
        return self.name

    def close(self) -> None:
        self.is_open = False
        self._events.append(f"{self.name} closed")


def pooled(events: list[str]) -> Callable[[Any], AbstractAsyncContextManager[Pool]]:
    """A lifespan that opens a pool, numbered by how often it was entered."""
    numbers = iter(range(1, 99))

    @asynccontextmanager
    async def mine(_: object) -> AsyncGenerator[Pool]:
        pool = Pool(f"pool {next(numbers)}", events)
        try:
            yield pool
        finally:
            pool.close()

    return mine


def pool_in_use(ctx: Context[Pool, Any]) -> str:
    return ctx.request_context.lifespan_context.use()


def make_pooled(url: str, events: list[str]) -> tuple[MCPServer[Pool], Tasks]:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    server: MCPServer[Pool] = MCPServer("host", log_level="ERROR", **tasks.attach(lifespan=pooled(events)))

    @server.tool()
    async def plain(ctx: Context[Pool, Any]) -> str:
        return pool_in_use(ctx)

    @server.tool()
    @tasks.durable()
    async def durable(pool: Annotated[str, Resolve(pool_in_use)]) -> str:
        return pool

    @server.tool()
    @tasks.durable()
    async def lasting() -> str:
        try:
            events.append("the task began")
            await asyncio.Event().wait()
        finally:
            events.append("the task ended")
        return ""

    return server, tasks


@pytest.mark.parametrize("tool", ["plain", "durable"])
async def test_what_a_lifespan_of_ones_own_yields_reaches_tools_and_resolvers(url: str, tool: str) -> None:
    server, _ = make_pooled(url, events := list[str]())
    async with Client(server) as client:
        assert await called(client, tool, nothing=None) == "pool 1"
        assert events == []
    assert events == ["pool 1 closed"]


@server
async def test_tasks_end_before_the_lifespan_that_they_run_in(url: str) -> None:
    server, tasks = make_pooled(url, events := list[str]())
    async with serving(server.streamable_http_app()) as endpoint, Client2026(endpoint) as modern:
        await modern.start("lasting")
        await wait_until(lambda: bool(events))
        storage = tasks.runtime.store.storage
    assert events == ["the task began", "the task ended", "pool 1 closed"]
    assert not await is_open(storage)


async def test_a_lifespan_of_ones_own_that_fails_leaves_no_runtime_open(url: str) -> None:
    @asynccontextmanager
    async def broken(_: object) -> AsyncGenerator[None]:
        if url:
            raise ValueError("no pool today")
        yield

    tasks = Tasks(url)
    server: MCPServer[None] = MCPServer("host", log_level="ERROR", **tasks.attach(lifespan=broken))
    with pytest.raises(ValueError, match="no pool today"):
        async with Client(server):
            pass
    with pytest.raises(MCPError):
        _ = tasks.runtime


@pytest.mark.parametrize("leaves_first", ["older", "newer"])
async def test_a_task_runs_in_a_lifespan_that_is_open_whichever_client_left(
    url: str, leaves_first: str
) -> None:
    tasks = Tasks(url, runtime=FAST_CONFIG)
    server = low_level(tasks, lifespan=pooled(list[str]()))
    older, newer = Visit(server), Visit(server)
    for each in (older, newer):
        await each.begin()
    leaving, staying = (older, newer) if leaves_first == "older" else (newer, older)
    await leaving.end()
    assert text_of(await staying.client.call_tool("pool_in_use")) in ("pool 1", "pool 2")
    await staying.end()
