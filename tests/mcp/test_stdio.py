"""Servers of their own process over stdio, where there is one local user, in both generations."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitRequestParams, ElicitResult, TextContent

from perdure.storage import open_storage
from perdure.tasks import Owner, Status, TaskRecord, TaskStore

from ..conditions import wait_for_status
from ..fork_server import PIPE, ForkedProcess, spawn
from ..markers import row
from .raw_clients import CAPABILITIES, EXTENSION, MODERN, VERSION, Answer, Json

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
MODULE = ("-m", "tests.mcp.stdio_server")
YES: Json = {"action": "accept", "content": {"confirm": True}}


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tasks.db'}"


class Lines:
    """JSON-RPC, a message a line. Answers with `YES` whatever the server asks."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process
        self._ids = itertools.count(1)
        self._frames: dict[int, asyncio.Future[Json]] = {}
        self.others: list[Json] = []
        """What came and was no answer."""
        self._reading = asyncio.create_task(self._read())

    async def send(self, method: str, params: Mapping[str, Any] = {}) -> Answer:
        request_id = await self.begin(method, params)
        async with asyncio.timeout(20):
            return Answer(0, await self._frames[request_id])

    async def begin(self, method: str, params: Mapping[str, Any] = {}) -> int:
        """Send a request without waiting for the answer."""
        request_id = next(self._ids)
        self._frames[request_id] = asyncio.get_running_loop().create_future()
        await self.write({"jsonrpc": "2.0", "id": request_id, "method": method, "params": dict(params)})
        return request_id

    async def write(self, message: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        await self._process.stdin.drain()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            await self._take(json.loads(line))

    async def _take(self, frame: Json) -> None:
        if "method" not in frame:
            self._frames[frame["id"]].set_result(frame)
            return
        self.others.append(frame)
        if "id" in frame:
            await self.write({"jsonrpc": "2.0", "id": frame["id"], "result": YES})

    async def leave(self) -> tuple[int, str]:
        """Close stdin, as a client does that ends; how the process ended, and what it complained of."""
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        async with asyncio.timeout(30):
            complaints, code = await asyncio.gather(self._process.stderr.read(), self._process.wait())
            await self._reading
        return code, complaints.decode()


class ModernLines(Lines):
    """2026-07-28."""

    async def begin(self, method: str, params: Mapping[str, Any] = {}) -> int:
        capabilities: Json = {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}}
        meta: Json = {VERSION: MODERN, CAPABILITIES: capabilities, **params.get("_meta", {})}
        return await super().begin(method, {**params, "_meta": meta})

    async def start(self, tool: str, arguments: Json) -> str:
        return (await self.send("tools/call", {"name": tool, "arguments": arguments})).result["taskId"]


class CoreLines(Lines):
    """2025-11-25."""

    async def shake_hands(self) -> Json:
        hello: Json = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "tests", "version": "1"},
        }
        result = (await self.send("initialize", hello)).result
        await self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    async def start(self, tool: str, arguments: Json) -> str:
        call = {"name": tool, "arguments": arguments, "task": {}}
        return (await self.send("tools/call", call)).result["task"]["taskId"]


async def until(client: Lines, task_id: str, *statuses: str) -> Json:
    async def look() -> Json:
        return (await client.send("tasks/get", {"taskId": task_id})).result

    return await wait_for_status(look, *statuses)


@asynccontextmanager
async def process(database: str) -> AsyncGenerator[ForkedProcess]:
    running = await spawn(*MODULE, database, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            running.kill()
        await running.wait()


@asynccontextmanager
async def modern_server(database: str) -> AsyncGenerator[ModernLines]:
    async with process(database) as running:
        yield ModernLines(running)


@asynccontextmanager
async def core_server(database: str) -> AsyncGenerator[CoreLines]:
    async with process(database) as running:
        client = CoreLines(running)
        await client.shake_hands()
        yield client


async def stored(database: str, task_id: str) -> TaskRecord:
    """The task as it stands in the database, whose server is gone."""
    async with await open_storage(database) as storage:
        return (await TaskStore(storage, application="perdure-fixture").get(Owner.local(), task_id)).task


# 2026-07-28


async def test_a_task_runs_to_its_result_over_stdio(database: str) -> None:
    async with modern_server(database) as client:
        task_id = await client.start("slow_compute", {"seconds": 0.1, "label": "x"})
        ended = await until(client, task_id, "completed")

        assert ended["result"]["content"][0]["text"] == "computed x in 0.1 seconds"
        assert await client.leave() == (0, "")


async def test_a_question_is_answered_over_stdio(database: str) -> None:
    async with modern_server(database) as client:
        task_id = await client.start("confirm_delete", {"filename": "a.txt"})
        waiting = await until(client, task_id, "input_required")
        answers = dict.fromkeys(waiting["inputRequests"], YES)
        await client.send("tasks/update", {"taskId": task_id, "inputResponses": answers})
        ended = await until(client, task_id, "completed")

    assert ended["result"]["content"][0]["text"] == "deleted a.txt"


async def test_a_task_is_cancelled_over_stdio(database: str) -> None:
    async with modern_server(database) as client:
        task_id = await client.start("slow_compute", {"seconds": 60})
        acknowledged = (await client.send("tasks/cancel", {"taskId": task_id})).result
        await until(client, task_id, "cancelled")

    assert acknowledged["resultType"] == "complete"


# 2025-11-25


async def test_the_one_local_user_is_offered_a_listing_and_gets_it(database: str) -> None:
    async with process(database) as running:
        client = CoreLines(running)
        capabilities = (await client.shake_hands())["capabilities"]
        made = [await client.start("slow_compute", {"seconds": 0.01}) for _ in range(3)]
        listed = (await client.send("tasks/list")).result["tasks"]

    assert capabilities["tasks"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    assert [task["taskId"] for task in listed] == made[::-1]


async def test_the_result_of_a_task_is_waited_for_over_stdio(database: str) -> None:
    async with core_server(database) as client:
        task_id = await client.start("slow_compute", {"seconds": 0.1, "label": "x"})
        result = (await client.send("tasks/result", {"taskId": task_id})).result
        told = [each["params"] for each in client.others if each["method"] == "notifications/tasks/status"]

        assert result["content"][0]["text"] == "computed x in 0.1 seconds"
        assert {each["taskId"] for each in told} <= {task_id}
        assert await client.leave() == (0, "")


async def test_a_question_of_a_task_is_a_request_over_stdio(database: str) -> None:
    async with core_server(database) as client:
        task_id = await client.start("confirm_delete", {"filename": "a.txt"})
        result = (await client.send("tasks/result", {"taskId": task_id})).result

    asked = [each for each in client.others if "id" in each]
    assert [each["method"] for each in asked] == ["elicitation/create"]
    assert asked[0]["params"]["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task_id}
    assert result["content"][0]["text"] == "deleted a.txt"


async def test_a_cancelled_task_is_the_answer_to_its_cancelling_over_stdio(database: str) -> None:
    async with core_server(database) as client:
        task_id = await client.start("slow_compute", {"seconds": 60})

        assert (await client.send("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"


# Leaving and coming back


async def test_when_stdin_closes_the_running_task_is_finished_before_the_process_ends(database: str) -> None:
    async with core_server(database) as client:
        task_id = await client.start("slow_compute", {"seconds": 1, "label": "x"})
        assert await client.leave() == (0, "")

    assert (await stored(database, task_id)).status is Status.COMPLETED


@row(115)
async def test_a_call_that_waits_when_stdin_closes_takes_its_task_with_it(database: str) -> None:
    async with core_server(database) as client:
        await client.begin("tools/call", {"name": "slow_compute", "arguments": {"seconds": 60}})
        task_id = await the_one_task(client)
        assert await client.leave() == (0, "")

    assert (await stored(database, task_id)).status is Status.CANCELLED


async def the_one_task(client: Lines) -> str:
    """Once its tool is at work, and not only stored."""
    async with asyncio.timeout(15):
        while True:
            tasks: list[Json] = (await client.send("tasks/list")).result["tasks"]
            if tasks and "statusMessage" in tasks[0]:
                return tasks[0]["taskId"]
            await asyncio.sleep(0.02)


async def test_the_next_process_has_the_tasks_of_the_one_before_in_either_generation(database: str) -> None:
    async with modern_server(database) as client:
        task_id = await client.start("slow_compute", {"seconds": 0.1, "label": "x"})
        await until(client, task_id, "completed")
        await client.leave()

    async with core_server(database) as client:
        result = (await client.send("tasks/result", {"taskId": task_id})).result
        listed = (await client.send("tasks/list")).result["tasks"]

    assert result["content"][0]["text"] == "computed x in 0.1 seconds"
    assert [task["taskId"] for task in listed] == [task_id]


# The official client, which knows of no tasks


async def agree(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"confirm": True})


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_calls_durable_tools_and_answers_what_they_ask(
    database: str, mode: str
) -> None:
    server = StdioServerParameters(command=sys.executable, args=[*MODULE, database], cwd=ROOT)
    async with Client(stdio_client(server), mode=mode, elicitation_callback=agree) as client:
        computed = await client.call_tool("slow_compute", {"seconds": 0.1, "label": "x"})
        deleted = await client.call_tool("confirm_delete", {"filename": "a.txt"})

    assert [text_of(result.content) for result in (computed, deleted)] == [
        "computed x in 0.1 seconds",
        "deleted a.txt",
    ]


def text_of(content: object) -> str:
    assert isinstance(content, list)
    (block,) = content  # pyright: ignore[reportUnknownVariableType]
    assert isinstance(block, TextContent)
    return block.text
