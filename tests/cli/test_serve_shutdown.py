"""How `perdure serve` ends: killed, or by one or two signals. Unfinished tasks resume at the next start."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from perdure.cli import signals
from perdure.mcp.client import ClientTask, ClientTasks
from perdure.operating import Operator
from perdure.storage import open_storage
from perdure.storage.kit.servers.process import free_port

from ..conditions import wait_until
from ..markers import in_test_all, row
from ..mcp.raw_clients import Answer, Client2025, Client2026
from ..mcp.tool_helpers import text_of
from ..test_examples import sampled, started, visiting
from .serve_process import (
    LONG_REPORT,
    REPORT,
    TOKEN,
    anyone,
    content_of,
    ended_well,
    has_page,
    has_read,
    is_writing,
    pasted,
    snippet_in,
)
from .user_servers import BREAKING, PATIENT

pytestmark = pytest.mark.anyio

WRITTEN = r"2026 report: 12 pages, finished by attempt {}, which started at page (\d+)"


# Being killed


@row(97)
async def test_a_report_is_finished_from_its_checkpoint_and_feeds_are_read_when_the_server_was_killed(
    tmp_path: Path,
) -> None:
    async with sampled(tmp_path, "--no-dashboard") as server, visiting(server.url) as (client, tasks):
        feeds = await started(client, tasks, "read_feeds", {})
        await wait_until(lambda: has_read(feeds, 3), seconds=30)
        report = await started(client, tasks, "build_report", REPORT)
        await wait_until(lambda: has_page(report, 4), seconds=30)
        await server.program.end(signal.SIGKILL)
    async with sampled(tmp_path, "--no-dashboard") as server, visiting(server.url) as (client, tasks):
        written = await tasks.resume(client, report.save()).wait(60)
        read = content_of(await tasks.resume(client, feeds.save()).wait(90))
        again = content_of(await client.call_tool("read_feeds", {"accounts": ["ada.example"]}))
        posts = content_of(await client.call_tool("recent_posts", {"limit": 200}))
        links = content_of(await client.call_tool("shared_links", {"limit": 3}))

    match = re.fullmatch(WRITTEN.format(2), text_of(written))
    assert match is not None, written
    assert int(match[1]) > 4
    assert read["accounts"] == 8
    assert read["items"] > 300  # a day of eight people
    assert 0 <= again["items"] - read["items"] <= 8  # what they posted meanwhile
    _are_listed_once_each(posts["result"], links["result"])


def _are_listed_once_each(posts: list[dict[str, Any]], top_links: list[dict[str, Any]]) -> None:
    uris = [post["uri"] for post in posts]
    assert len(uris) == len(set(uris)) == 200
    assert len(top_links) == 3
    assert top_links[0]["sharers"] == len(top_links[0]["handles"]) > 1
    assert all(name.endswith(".example") for name in top_links[0]["handles"])


@pytest.mark.parametrize(
    "options",
    [pytest.param((), id="open"), pytest.param(("--token", TOKEN), id="token", marks=in_test_all)],
)
async def test_the_python_lines_of_the_greeting_print_the_report_although_the_server_is_killed_meanwhile(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    port = free_port()
    async with sampled(tmp_path, *options, port=port) as server:
        assert re.findall(r"^    process     (\d+)$", server.program.output, re.MULTILINE) == [
            str(server.program.pid)
        ]
        assert f"run `kill -9 {server.program.pid}` while they wait" in server.program.output
        process = await pasted(tmp_path, snippet_in(server.program.output))
        await wait_until(lambda: _a_page_is_written(tmp_path), seconds=60)
        await server.program.end(signal.SIGKILL)
    async with sampled(tmp_path, *options, port=port):
        printed = (await asyncio.wait_for(process.communicate(), 60))[0].decode()

    assert re.search(WRITTEN.format(2), printed), printed


async def _a_page_is_written(folder: Path) -> bool:
    async with await open_storage(f"sqlite:///{folder / 'perdure.db'}") as storage:
        tasks = (await Operator(storage).tasks(name="build_report")).tasks
    return any((task.progress_fraction or 0) >= 2 / 12 for task in tasks)


# After one signal


async def test_it_ends_although_clients_are_waiting_and_the_report_resumes_at_the_next_start(
    tmp_path: Path,
) -> None:
    """One client gets each change of a task, another has a session open, a third shows the dashboard.

    The report that was stopped continues. Ctrl-C ends it as SIGTERM does, while a report is written.
    """
    pushed = ClientTasks(push=True)
    async with sampled(tmp_path) as server, anyone() as browser, Client2025(server.url) as core:
        await core.send("tools/list")
        events_path = server.url.removesuffix("/mcp") + "/events/tasks"
        async with browser.stream("GET", events_path) as events:
            assert events.status_code == 200
            async with Client(server.url, extensions=[pushed]) as client:
                report = await started(client, pushed, "build_report", {"year": 2026, "seconds": 18})
                await wait_until(lambda: has_page(report, 2), seconds=30)
                code = await server.program.end(signal.SIGTERM)
    ended_well(server.program, code)
    assert "SIGTERM: waiting for running tasks" in server.program.output
    async with sampled(tmp_path, "--no-dashboard") as server, visiting(server.url) as (client, tasks):
        result = await tasks.resume(client, report.save()).wait(60)
        other = await started(client, tasks, "build_report", LONG_REPORT)
        await wait_until(lambda: is_writing(other), seconds=30)
        code = await server.program.end(signal.SIGINT)

    assert re.fullmatch(WRITTEN.format(2), text_of(result)), result
    ended_well(server.program, code)
    assert "SIGINT: waiting for running tasks" in server.program.output
    assert "; press Ctrl+C again to stop immediately.\n" in server.program.output


@pytest.mark.parametrize(
    ("url", "end"),
    [("sqlite:///a.db", " Unfinished tasks, if any, resume at the next start."), ("memory:", "")],
)
async def test_it_says_that_tasks_resume_only_if_the_next_process_finds_them(
    tmp_path: Path, url: str, end: str
) -> None:
    async with sampled(tmp_path, "--url", url) as server:
        code = await server.program.end(signal.SIGINT)
    ended_well(server.program, code)
    assert server.program.output.endswith(f"\nStopped.{end}\n")


@pytest.mark.parametrize(
    ("number", "advice"),
    [(signal.SIGINT, "press Ctrl+C again"), (signal.SIGTERM, "send the signal again")],
)
async def test_a_process_says_what_it_waits_for_after_a_signal_only_if_it_waits(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, advice: str
) -> None:
    printed: list[str] = []
    monkeypatch.setattr(signals, "print_message", printed.append)
    for delay, end in ((60.0, 0.0), (0.0, 0.5)):
        monkeypatch.setattr(signals, "NOTICE_DELAY", delay)
        async with signals.stop_signals("writing") as stop:
            os.kill(os.getpid(), number)
            await stop.wait()
            await asyncio.sleep(end)
        assert printed == ([] if delay else [f"{number.name}: writing; {advice} to stop immediately."])


async def test_streams_and_waiting_requests_are_answered_when_it_stops(tmp_path: Path) -> None:
    async with sampled(tmp_path) as server, Client2026(server.url) as modern, Client2025(server.url) as core:
        task_id = await modern.start("build_report", LONG_REPORT)
        mine = await core.start("build_report", LONG_REPORT)
        async with (
            modern.listen({"taskIds": [task_id]}) as changes,
            modern.listen({"toolsListChanged": True}) as others,
        ):
            assert (await anext(changes))["method"] == (await anext(others))["method"]
            token = {"progressToken": "waiting"}
            requests = [
                asyncio.create_task(core.send("tasks/result", {"taskId": mine})),
                asyncio.create_task(core.call("build_report", LONG_REPORT, _meta=token)),
                asyncio.create_task(_plain_call(modern, LONG_REPORT)),
            ]
            await wait_until(lambda: _number_of_tasks(server.url, 4), seconds=30)
            os.kill(server.program.pid, signal.SIGTERM)
            ends = [[frame async for frame in frames][-1] for frames in (changes, others)]
        answers = await asyncio.gather(*requests)
        code = await server.program.ended()
    ended_well(server.program, code)
    assert [end["result"]["resultType"] for end in ends] == ["complete", "complete"]
    assert [(answer.code, answer.error["data"]) for answer in answers] == [(-32603, {"retryable": True})] * 3


async def _plain_call(modern: Client2026, arguments: dict[str, Any]) -> Answer:
    return await modern.call("build_report", arguments, declared=False)


async def _number_of_tasks(url: str, number: int) -> bool:
    async with anyone() as browser:
        page = (await browser.get(url.removesuffix("/mcp") + "/tasks")).text
    return page.count('id="task-') == number


# After two signals


async def test_a_second_signal_kills_it_and_the_next_start_finishes_the_task(tmp_path: Path) -> None:
    """For each signal."""
    (tmp_path / "own.py").write_text(PATIENT)
    async with sampled(tmp_path, "own:server") as server:
        async with visiting(server.url) as (client, tasks):
            coffee = await started(client, tasks, "brew", {})
            await wait_until(lambda: _has_started(coffee), seconds=30)
        os.kill(server.program.pid, signal.SIGTERM)
        await server.program.wait_for_output(
            "SIGTERM: waiting for running tasks, for at most `drain_timeout` (default: 20 seconds); "
            "send the signal again to stop immediately."
        )
        code = await server.program.end(signal.SIGINT)
    assert (code, "Killed." in server.program.output) == (1, True), server.program.output
    (tmp_path / "enough").touch()
    async with sampled(tmp_path, "own:server") as server, visiting(server.url) as (client, tasks):
        result = await tasks.resume(client, coffee.save()).wait(60)

    assert re.fullmatch(r"coffee, in attempt [2-4]", text_of(result))  # a slow worker is lost like a dead one


# A failing HTTP server


async def test_when_the_http_server_fails_everything_else_still_ends_in_good_order(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(BREAKING)
    async with sampled(tmp_path, "own:server") as server:
        (tmp_path / "break").touch()
        code = await server.program.ended()
    assert (tmp_path / "cleaned").exists()
    assert (code, "OSError: too many open files" in server.program.output) == (1, True), server.program.output


async def _has_started(task: ClientTask) -> bool:
    return (await task.status()).variables.get("started") is True
