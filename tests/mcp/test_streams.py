"""What reaches a client on the streams of its requests and of its session: questions, progress, log, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer

from perdure import Task, Tasks
from perdure.mcp import task_stream
from perdure.mcp.task_stream import Delivery
from perdure.runtime import RuntimeConfig
from perdure.storage.time_types import system_clock
from perdure.tasks import Snapshot, TaskRecord
from perdure.tasks.task_snapshot import TASKS

from ..conditions import wait_until
from ..markers import row
from .raw_clients import CORE, MODERN, Answer, Client2025, Client2026, Json, serving

pytestmark = pytest.mark.anyio

RELATED = "io.modelcontextprotocol/related-task"
CONFIRM: Json = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
EVERY_VERSION = (MODERN, CORE, "2025-06-18")


@dataclass
class Site:
    """A running server whose tools wait for a gate."""

    url: str = ""
    gate: anyio.Event = field(default_factory=anyio.Event)
    tasks: Tasks = field(default_factory=lambda: Tasks("memory:"))


@asynccontextmanager
async def hosting(*, stateless: bool = False, **options: Any) -> AsyncGenerator[Site]:
    site = Site()
    site.tasks = Tasks("memory:", runtime=RuntimeConfig(drain_timeout=0.0, cancel_grace=0.5), **options)
    server: MCPServer[object] = MCPServer("tests", **site.tasks.attach())

    @server.tool()
    @site.tasks.durable()
    async def confirm(task: Task) -> str:
        answer = await task.elicit("Sure?", CONFIRM, key="go")
        return answer.action

    @server.tool()
    @site.tasks.durable()
    async def confirm_and_wait(task: Task) -> str:
        answer = await task.elicit("Sure?", CONFIRM, key="go")
        await site.gate.wait()
        return answer.action

    @server.tool()
    @site.tasks.durable()
    async def pages(numbers: list[float], task: Task, total: float | None = None) -> str:
        for number in numbers:
            await task.report_progress(number, total, f"page {number:g}")
            await asyncio.sleep(0.05)
        return "done"

    @server.tool()
    @site.tasks.durable()
    async def talk(task: Task) -> str:
        await task.log("debug", None)
        await task.log("warning", {"rows": 3}, logger="db")
        await site.gate.wait()
        await task.log("error", "the end")
        return "done"

    @server.tool()
    @site.tasks.durable()
    async def gate() -> str:
        await site.gate.wait()
        return "through"

    async with serving(server.streamable_http_app(stateless_http=stateless)) as site.url:
        yield site


async def yes(_: Json) -> Json:
    return {"action": "accept", "content": {"confirm": True}}


@asynccontextmanager
async def listening(core: Client2025) -> AsyncGenerator[list[Json]]:
    """The notifications on the session's own stream, which is read meanwhile."""
    seen: list[Json] = []

    async def read() -> None:
        async for frame in frames:
            seen.append(frame)  # noqa: PERF401 (they are read while they come)

    async with core.listen() as frames:
        reading = asyncio.create_task(read())
        yield seen
        reading.cancel()
        await asyncio.wait([reading])


async def call(url: str, version: str, tool: str, arguments: Json, **meta: Any) -> Answer:
    """Call a tool without a task."""
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    if version == MODERN:
        async with Client2026(url) as modern:
            return await modern.send("tools/call", params, declared=False)
    async with Client2025(url, version=version, answering=yes) as core:
        return await core.send("tools/call", params)


def of_method(frames: list[Json] | tuple[Json, ...], method: str) -> list[Json]:
    return [frame["params"] for frame in frames if frame.get("method") == method]


# Questions on the session's own stream


async def polled_until_asked(core: Client2025, task_id: str) -> None:
    async def is_asked() -> bool:
        await core.get(task_id)
        return bool(core.asked)

    await wait_until(is_asked, 15)


async def test_a_client_that_only_polls_is_asked_on_the_stream_of_its_session() -> None:
    async with hosting() as site, Client2025(site.url, answering=yes) as core, listening(core):
        task_id = await core.start("confirm")
        await core.until(task_id, "completed")

        assert [each["method"] for each in core.asked] == ["elicitation/create"]
        assert core.asked[0]["params"]["_meta"][RELATED] == {"taskId": task_id}


async def test_a_question_is_open_on_one_stream_of_a_session_at_a_time() -> None:
    go_on = asyncio.Event()

    async def slowly(_: Json) -> Json:
        await go_on.wait()
        return await yes(_)

    async with hosting() as site, Client2025(site.url, answering=slowly) as core, listening(core):
        task_id = await core.start("confirm")
        await polled_until_asked(core, task_id)
        waiting = asyncio.create_task(core.send("tasks/result", {"taskId": task_id}))
        assert (await core.get(task_id))["status"] == "input_required"
        go_on.set()

        assert (await waiting).result["content"][0]["text"] == "accept"
        assert len(core.asked) == 1


async def test_a_question_whose_stream_is_closed_is_asked_on_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_stream, "PING_SECONDS", 0.1)
    is_first = True

    async def second_time(request: Json) -> Json:
        nonlocal is_first
        if is_first:
            is_first = False
            await anyio.sleep_forever()
        return await yes(request)

    async with hosting() as site, Client2025(site.url, answering=second_time) as core:
        async with listening(core):
            task_id = await core.start("confirm")
            await polled_until_asked(core, task_id)
        for _ in range(20):  # nobody answers its pings
            await core.get(task_id)
        async with listening(core):
            await core.until(task_id, "completed")

    assert len(core.asked) == 2


async def test_the_result_takes_over_a_question_whose_stream_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_stream, "PING_SECONDS", 0.1)
    is_first = True

    async def second_time(request: Json) -> Json:
        nonlocal is_first
        if is_first:
            is_first = False
            await anyio.sleep_forever()
        return await yes(request)

    async with hosting() as site, Client2025(site.url, answering=second_time) as core:
        async with listening(core):
            task_id = await core.start("confirm")
            await polled_until_asked(core, task_id)
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert answer.result["content"][0]["text"] == "accept"


async def test_a_new_session_that_polls_is_asked_what_the_old_one_was_not() -> None:
    async with hosting() as site:
        async with Client2025(site.url) as gone:
            task_id = await gone.start("confirm")
            await gone.until(task_id, "input_required")
        async with Client2025(site.url, answering=yes) as core, listening(core):
            await core.until(task_id, "completed")
            assert len(core.asked) == 1


async def test_a_question_that_another_client_has_answered_is_withdrawn_and_a_late_answer_ignored() -> None:
    answered = asyncio.Event()

    async def late(_: Json) -> Json:
        await answered.wait()
        return {"action": "decline"}

    async with hosting() as site, Client2025(site.url, answering=late) as core, Client2026(site.url) as other:
        task_id = await core.start("confirm_and_wait")
        waiting = asyncio.create_task(core.send("tasks/result", {"taskId": task_id}))
        await wait_until(lambda: bool(core.asked))
        await other.update(task_id, {"go": await yes({})})
        await other.until(task_id, "working")
        answered.set()
        site.gate.set()
        answer = await waiting

    assert answer.result["content"][0]["text"] == "accept"
    withdrawn = of_method(answer.frames, "notifications/cancelled")
    assert [each["requestId"] for each in withdrawn] == [core.asked[0]["id"]]


async def test_a_client_that_waits_for_the_result_is_asked_there_and_not_on_the_stream_of_its_session() -> (
    None
):
    async with hosting() as site, Client2025(site.url, answering=yes) as core, core.listen():
        task_id = await core.start("confirm")  # nobody reads the stream of the session
        await core.until(task_id, "input_required")
        answer = await core.send("tasks/result", {"taskId": task_id})

        assert answer.result["content"][0]["text"] == "accept"
        assert len(core.asked) == 1


# Progress


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_each_of_several_reports_in_quick_succession_reaches_a_client_that_waits(version: str) -> None:
    async with hosting() as site:
        answer = await call(site.url, version, "pages", {"numbers": [0, 50, 100]}, progressToken="mine")

    sent = of_method(answer.frames, "notifications/progress")
    assert [(each["progress"], each["message"]) for each in sent] == [
        (0, "page 0"),
        (50, "page 50"),
        (100, "page 100"),
    ]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_the_progress_of_a_waiting_call_always_increases(version: str) -> None:
    async with hosting() as site:
        answer = await call(site.url, version, "pages", {"numbers": [10, 50, 20, 50, 60]}, progressToken=7)

    sent = of_method(answer.frames, "notifications/progress")
    assert [each["progress"] for each in sent] == [10, 50, 60]


@row(127)
@pytest.mark.parametrize("on_result", [False, True])
async def test_a_call_as_a_task_has_progress_with_its_token(on_result: bool) -> None:  # noqa: FBT001
    async with hosting() as site, Client2025(site.url) as core, listening(core) as seen:
        arguments: Json = {"numbers": [1, 2, 3], "total": 3}
        made = await core.call("pages", arguments, task={}, _meta={"progressToken": "mine"})
        task_id = made.result["task"]["taskId"]
        if on_result:
            frames = (await core.send("tasks/result", {"taskId": task_id})).frames
        else:
            await core.until(task_id, "completed")
            await wait_until(lambda: 3 in [each["progress"] for each in of_method(seen, PROGRESS)])
            frames = ()
        sent = [*of_method(seen, PROGRESS), *of_method(frames, PROGRESS)]

    assert [each["progress"] for each in sent] == [1, 2, 3]
    assert all(each["progressToken"] == "mine" for each in sent)
    assert all(each["_meta"][RELATED] == {"taskId": task_id} for each in sent)
    assert sent[-1]["total"] == 3


PROGRESS = "notifications/progress"
MESSAGE = "notifications/message"


async def test_a_call_as_a_task_without_a_token_has_no_progress() -> None:
    async with hosting() as site, Client2025(site.url) as core, listening(core) as seen:
        task_id = await core.start("pages", {"numbers": [1, 2]})
        await wait_until(lambda: "completed" in [each["status"] for each in of_method(seen, STATUS)])
        answer = await core.send("tasks/result", {"taskId": task_id})

    assert of_method([*seen, *answer.frames], PROGRESS) == []


STATUS = "notifications/tasks/status"


# The log


async def test_a_session_that_listens_gets_the_log_of_its_task() -> None:
    async with hosting() as site, Client2025(site.url) as core, listening(core) as seen:
        task_id = await core.start("talk")
        await wait_until(lambda: len(of_method(seen, MESSAGE)) == 2)
        site.gate.set()
        await wait_until(lambda: len(of_method(seen, MESSAGE)) == 3)

    meta = {RELATED: {"taskId": task_id}}
    assert of_method(seen, MESSAGE) == [
        {"level": "debug", "data": None, "_meta": meta},
        {"level": "warning", "data": {"rows": 3}, "logger": "db", "_meta": meta},
        {"level": "error", "data": "the end", "_meta": meta},
    ]


async def test_the_stream_of_the_result_carries_the_log_if_it_is_open() -> None:
    async with hosting() as site, Client2025(site.url) as core, listening(core) as seen:
        site.gate.set()
        task_id = await core.start("talk")
        answer = await core.send("tasks/result", {"taskId": task_id})
        sent = [*of_method(seen, MESSAGE), *of_method(answer.frames, MESSAGE)]

    assert [each["data"] for each in sent] == [None, {"rows": 3}, "the end"]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_waiting_call_carries_the_log_before_2026_07_28(version: str) -> None:
    async with hosting() as site:
        site.gate.set()
        answer = await call(site.url, version, "talk", {})

    sent = [each["data"] for each in of_method(answer.frames, MESSAGE)]
    assert sent == ([] if version == MODERN else [None, {"rows": 3}, "the end"])
    assert all("_meta" not in each for each in of_method(answer.frames, MESSAGE))


async def test_a_task_of_2026_07_28_sends_no_log_and_no_notification_for_it() -> None:
    async with hosting() as site, Client2026(site.url) as modern:
        task_id = await modern.start("talk")
        seen: list[Json] = []
        async with modern.listen({"taskIds": [task_id]}) as frames, asyncio.timeout(15):
            async for frame in frames:
                seen.append(frame)
                if frame.get("method") == "notifications/tasks":
                    site.gate.set()
                if "result" in frame:
                    break

    assert of_method(seen, MESSAGE) == []
    shown = [{**each, "pollIntervalMs": 0} for each in of_method(seen, "notifications/tasks")]
    assert all(one != other for one, other in pairwise(shown))


async def test_a_session_gets_log_entries_from_the_level_on_that_it_set() -> None:
    async with hosting() as site, Client2025(site.url) as core, listening(core) as seen:
        site.gate.set()
        await core.send("logging/setLevel", {"level": "warning"})
        task_id = await core.start("talk")
        await core.until(task_id, "completed")
        await wait_until(lambda: len(of_method(seen, MESSAGE)) == 2)

    assert [each["level"] for each in of_method(seen, MESSAGE)] == ["warning", "error"]


async def test_without_a_session_no_level_is_kept_and_a_waiting_call_gets_the_whole_log() -> None:
    async with hosting(stateless=True) as site, Client2025(site.url) as core:
        site.gate.set()
        await core.send("logging/setLevel", {"level": "error"})
        answer = await core.call("talk")

    assert [each["level"] for each in of_method(answer.frames, MESSAGE)] == ["debug", "warning", "error"]


# Ends


async def test_a_session_that_ends_no_longer_follows_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    following: list[str] = []
    follow = task_stream.SessionStream.follow

    async def recorded(
        self: task_stream.SessionStream, seen: TaskRecord, delivery: Delivery, scope: anyio.CancelScope
    ) -> None:
        following.append(seen.task_id)
        try:
            await follow(self, seen, delivery, scope)
        finally:
            following.remove(seen.task_id)

    monkeypatch.setattr(task_stream.SessionStream, "follow", recorded)
    async with hosting() as site, Client2026(site.url) as other, Client2025(site.url) as stays:
        async with Client2025(site.url) as leaves:
            task_ids = [await leaves.start("gate"), await leaves.start("gate")]
            kept = await stays.start("gate")
            await wait_until(lambda: sorted(following) == sorted([*task_ids, kept]))
            await leaves.end()
        await wait_until(lambda: following == [kept])
        assert [(await other.get(task_id))["status"] for task_id in task_ids] == ["working", "working"]


@row(115)
async def test_streams_are_answered_when_the_server_stops() -> None:
    async with hosting() as site, Client2026(site.url) as modern, Client2025(site.url) as core:
        task_id = await modern.start("gate")
        mine = await core.start("gate")
        calls = [asyncio.create_task(call(site.url, version, "gate", {})) for version in EVERY_VERSION]
        result = asyncio.create_task(core.send("tasks/result", {"taskId": mine}))
        async with (
            modern.listen({"taskIds": [task_id]}) as tasks,
            modern.listen({"toolsListChanged": True}) as others,
        ):
            assert (await anext(tasks))["method"] == (await anext(others))["method"]
            assert (await anext(tasks))["method"] == "notifications/tasks"
            site.tasks.close_streams()
            for frames in (tasks, others):
                last = await anext(frames)
                assert last["result"]["resultType"] == "complete"
                assert last["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == last["id"]
        for answer in (*await asyncio.gather(*calls), await result):
            assert (answer.code, answer.error["data"]) == (-32603, {"retryable": True})
            assert "the server is stopping" in answer.error["message"]
        stored = await site.tasks.runtime.store.storage.page(TASKS, limit=20, now=system_clock())
        waiting = [
            task for each in stored if (task := Snapshot.from_record(each).task).attended_by is not None
        ]
        assert len(waiting) == len(EVERY_VERSION)
        assert all(task.is_terminal or task.cancel_requested_at is not None for task in waiting)
        assert (await modern.get(task_id))["status"] == "working"
        assert (await core.get(mine))["status"] == "working"
        late = await core.send("tasks/result", {"taskId": mine})
        assert "the server is stopping" in late.error["message"]


# Keeping connections open


async def test_a_silent_stream_of_a_waiting_call_gets_a_notification_now_and_then() -> None:
    params: Json = {"name": "gate", "arguments": {}}
    async with (
        hosting(keep_alive=0.05) as site,
        Client2026(site.url) as modern,
        modern.stream("tools/call", params, {}, "gate") as frames,
        asyncio.timeout(15),
    ):
        for _ in range(3):
            assert (await anext(frames))["method"] == task_stream.KEEP_ALIVE_METHOD
        site.gate.set()
        rest = [frame async for frame in frames]

    assert rest[-1]["result"]["content"][0]["text"] == "through"


@pytest.mark.parametrize("as_task", [False, True])
async def test_a_silent_stream_of_2025_11_25_gets_a_ping_now_and_then(as_task: bool) -> None:  # noqa: FBT001
    async with hosting(keep_alive=0.05) as site, Client2025(site.url) as core:
        if as_task:
            task_id = await core.start("gate")
            waiting = asyncio.create_task(core.send("tasks/result", {"taskId": task_id}))
        else:
            waiting = asyncio.create_task(core.call("gate"))
        await wait_until(lambda: core.pings >= 3)
        site.gate.set()

        assert (await waiting).result["content"][0]["text"] == "through"
