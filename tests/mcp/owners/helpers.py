"""A running server as its operator sees it, and what its callers may see of a task or may not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from perdure import Tasks
from perdure.mcp import AnonymousPolicy, Identify
from perdure.runtime import RuntimeConfig
from perdure.tasks import Owner, StoreConfig

from ... import task_edits
from ..raw_clients import Json, serving
from ..tokens import Caller, TokenClient2025, TokenClient2026, Tokens, about, make_server

NO_SUCH_TASK = "0123456789abcdefghijklmnop"
both = pytest.mark.parametrize("generation", [TokenClient2026, TokenClient2025])


@asynccontextmanager
async def served(
    tokens: Tokens | None,
    url: str = "memory:",
    *,
    anonymous: AnonymousPolicy = "id",
    identify: Identify | None = None,
    quota: int = 100,
    retention: float = 60,
    stateless: bool = False,
) -> AsyncGenerator[tuple[str, Tasks]]:
    """A running server: its URL, and its tasks as an operator sees them."""
    store = StoreConfig(max_tasks_per_owner=quota, retention=retention)
    # What waits for an answer when a test is over is not waited for.
    runtime = RuntimeConfig(drain_timeout=0)
    tasks = Tasks(url, store=store, runtime=runtime, anonymous=anonymous, identify=identify)
    server = make_server(tasks, tokens)
    async with serving(server.streamable_http_app(stateless_http=stateless)) as endpoint:
        yield endpoint, tasks


async def owners(tasks: Tasks) -> dict[str, Owner]:
    """Whose every stored task is."""
    snapshots = await task_edits.all_tasks(tasks.runtime.store)
    return {snapshot.task.task_id: snapshot.task.owner for snapshot in snapshots}


async def listed(caller: TokenClient2025) -> set[str]:
    answer = await caller.send("tasks/list")
    return {task["taskId"] for task in answer.result["tasks"]}


async def assert_absent(caller: Caller, task_id: str) -> None:
    """To this caller the task is what a task is that never was, to the byte."""
    for (method, params), absent in zip(
        about(caller, task_id).items(), about(caller, NO_SUCH_TASK).values(), strict=True
    ):
        foreign = await caller.post(method, params)
        assert foreign == await caller.post(method, absent), method
        assert b'"code":-32602,"message":"Task not found"' in foreign[1], (method, foreign)
    if isinstance(caller, TokenClient2026):
        subscribed = await caller.post("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
        absent = {"notifications": {"taskIds": [NO_SUCH_TASK]}}
        assert subscribed == await caller.post("subscriptions/listen", absent)
        assert b'"taskIds":[]' in subscribed[1]


async def assert_present(caller: Caller, task_id: str) -> None:
    assert (await caller.get(task_id))["status"] in ("working", "input_required")


async def assert_refused(caller: Caller, method: str, params: Json) -> None:
    answer = await caller.send(method, params)
    told = (answer.code, answer.error["message"])
    assert told == (-32600, "this server serves tasks only to authenticated callers; authenticate first"), (
        method,
        params,
    )


async def assert_not_listable(caller: TokenClient2025) -> None:
    assert "list" not in caller.initialized["capabilities"]["tasks"]
    assert (await caller.send("tasks/list")).code in (-32600, -32601)
