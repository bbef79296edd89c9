"""Clients of today, which know no tasks and give up soon, get the result of work that takes longer.

In `make test`, calls are handed over after 2 seconds, clients give up after 4, and the work takes 6. In
`make test-all`, also once with 45 seconds, a minute (for the Inspector: its defaults), and three minutes.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ...markers import row
from ..conformance import suite
from ..raw_clients import CORE, MODERN, Json
from .late_client import next_call
from .late_servers import KINDS, late_server

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]
RESULT = {"pages": 12, "title": "12 pages"}
CLIENTS = [(framework, mode) for framework in ("official", "fastmcp") for mode in ("auto", "legacy")]
MAX_ANSWERS = 20


class Pace(NamedTuple):
    """How long everything takes, in seconds."""

    hand_over_after: float
    client_timeout: float
    work: float


QUICK = Pace(hand_over_after=2, client_timeout=4, work=6)
REAL = Pace(hand_over_after=45, client_timeout=60, work=180)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`make test-all` also runs the test of all clients at the pace of the world."""
    if "pace" in metafunc.fixturenames:
        is_all = metafunc.config.getoption("--engines") == "all"
        paces = {"quick": QUICK, "real": REAL} if is_all else {"quick": QUICK}
        metafunc.parametrize("pace", paces.values(), ids=paces.keys())


async def run_client(framework: str, mode: str, url: str, pace: Pace) -> Json:
    """What the client printed: the tools that it saw, and its answers."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.mcp.without_tasks.late_client", framework, mode),
        *(str(pace.client_timeout), url, str(pace.work)),
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)


def check(answers: list[Json]) -> None:
    """The first answer hands over, the others wait, and the last one is the result."""
    assert [answer["tool"] for answer in answers[:2]] == ["build_report", "wait_for_task"]
    assert "'build_report' has not finished yet" in answers[0]["text"]
    assert {answer["tool"] for answer in answers[1:]} == {"wait_for_task"}
    assert all("Progress: " in answer["text"] for answer in answers[:-1])
    assert answers[-1]["structured"] == RESULT


def check_client(seen: Json) -> None:
    """Check what a client saw. It does not know tasks, so it is shown the tools that wait for them."""
    assert set(seen["tools"]) == {"build_report", "wait_for_task", "cancel_task", "answer_task"}
    check(seen["answers"])


async def run_inspector(url: str, generation: str, pace: Pace) -> list[Json]:
    """The answers that the command line of the Inspector prints, one process for each call."""
    answers: list[Json] = []
    following: tuple[str, Json] | None = ("build_report", {"seconds": pace.work})
    while following is not None and len(answers) < MAX_ANSWERS:
        exit_code, output = await suite.inspect(url, generation, *following, seconds=pace.work + 60)
        assert exit_code == 0, output
        printed: Any = json.loads(output[output.index("{") :])
        text = "".join(block["text"] for block in printed["content"])
        answers.append({"tool": following[0], "text": text, "structured": printed.get("structuredContent")})
        following = next_call(text)
    return answers


@row(131)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "official"])
async def test_clients_that_give_up_soon_get_their_results(kind: str, tmp_path: Path) -> None:
    async with late_server(kind, f"sqlite:///{tmp_path / 'tasks.db'}", QUICK.hand_over_after) as (url, _):
        clients = await asyncio.gather(*(run_client(*client, url, QUICK) for client in CLIENTS))

    for seen in clients:
        check_client(seen)


@row(131)
async def test_every_client_of_today_gets_the_result_of_long_work(pace: Pace, tmp_path: Path) -> None:
    """All clients run at once. The Inspector has its defaults, and understands the tasks of 2026-07-28."""
    faulthandler.cancel_dump_traceback_later()  # pytest takes a test of three minutes for one that hangs
    async with late_server("official", f"sqlite:///{tmp_path / 'tasks.db'}", pace.hand_over_after) as (
        url,
        _,
    ):
        clients = asyncio.gather(*(run_client(*client, url, pace) for client in CLIENTS))
        handed_over, with_tasks = await asyncio.gather(
            run_inspector(url, CORE, pace), run_inspector(url, MODERN, pace)
        )
        check(handed_over)
        for seen in await clients:
            check_client(seen)

    assert [answer["structured"] for answer in with_tasks] == [RESULT]
