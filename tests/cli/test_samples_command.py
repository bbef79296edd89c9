"""`perdure samples`: the states that the dashboard shows afterwards, and what is wrong if there are none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure.cli.sample_calls import SAMPLE_TASKS
from perdure.operating import Operator
from perdure.samples.server import REPORT_SECONDS
from perdure.storage import open_storage
from perdure.storage.kit.servers.process import free_port

from ..conditions import wait_until
from ..fork_server import PIPE, spawn
from ..test_examples import sampled
from .command import CommandResult, environment, result_of
from .serve_process import TOKEN, anyone
from .user_servers import OWN_SERVER

pytestmark = pytest.mark.anyio


async def samples(*arguments: str, code: int = 0) -> CommandResult:
    """Run the command with `python -m perdure`, as the greeting of the server shows it."""
    process = await spawn("-m", "perdure", "samples", *arguments, env=environment(), stdout=PIPE, stderr=PIPE)
    return (await result_of(process)).expect(code)


async def test_the_command_in_the_greeting_creates_a_task_in_each_state(tmp_path: Path) -> None:
    wanted = sorted(sample.state for sample in SAMPLE_TASKS)
    async with sampled(tmp_path) as server:
        named = re.search(r"perdure samples (\S+)\n", server.program.output)
        assert named is not None, server.program.output
        ended = await samples(named[1])
        async with await open_storage(f"sqlite:///{tmp_path / 'perdure.db'}") as storage:
            operator = Operator(storage)

            async def has_all() -> bool:
                return sorted(task.display_status for task in (await operator.tasks()).tasks) == wanted

            await wait_until(has_all, seconds=30)
        async with anyone() as browser:
            page = (await browser.get(server.url.removesuffix("/mcp") + "/tasks")).text

    assert set(wanted) == {
        "completed", "failed", "cancelled", "waiting to retry", "input required", "running", "queued"
    }  # fmt: skip
    assert ended.out.startswith("build_report(2024, seconds=2): completed\nprint_report(2024): failed\n")
    assert [line.partition(": ")[2] for line in ended.out.splitlines()] == [s.state for s in SAMPLE_TASKS]
    assert ended.err == f"These tasks are on the dashboard: {server.url.removesuffix('mcp')}tasks\n"
    assert "the mail server is busy" in page


async def test_with_a_token_the_command_needs_it_too(tmp_path: Path) -> None:
    async with sampled(tmp_path, "--token", TOKEN) as server:
        refused = await samples(server.url, code=2)
        await samples(server.url, "--token", TOKEN)
    advice = "set --token or PERDURE_TOKEN to the token of the server"
    assert refused.err == f"perdure: {server.url} requires a token; {advice}\n"


async def test_what_is_not_the_sample_server_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_SERVER)
    async with sampled(tmp_path, "own:server") as server:
        other = await samples(server.url, code=2)
        page = await samples(server.url.removesuffix("mcp"), code=2)
    closed = await samples(f"http://127.0.0.1:{free_port()}/mcp", code=2)
    invalid = await samples("127.0.0.1:8000", code=2)

    assert (
        "is not the sample server; to start the sample server, run `perdure serve` without MODULE:SERVER"
        in other.err
    )
    assert "did not answer as an MCP server (HTTP status 405); use the MCP address" in page.err
    assert "; start the sample server with `perdure serve`" in closed.err
    assert invalid.err.startswith("perdure: invalid address '127.0.0.1:8000'; use the MCP address, such as ")
    assert all(each.err.count("\n") == 1 for each in (other, page, closed, invalid))


def test_a_report_takes_less_than_half_of_the_minute_that_many_clients_wait() -> None:
    assert REPORT_SECONDS <= 30
