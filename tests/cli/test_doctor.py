"""`perdure doctor` reports versions, whether writes succeed, and the clock of the server."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from perdure.operating.maintenance import ServerInfo, server_info
from perdure.storage import open_storage
from perdure.tasks import TaskStore

from ..storage.engines import new_url
from ..tasks.samples import created
from .command import run_command

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("engine", "named"),
    [("sqlite", r"SQLite 3\.\d+"), ("postgres", r"PostgreSQL \d+"), ("redis", r"(Valkey|Redis) \d+")],
)
async def test_a_server_reports_its_version_and_its_clock(engine: str, named: str, tmp_path: Path) -> None:
    url = await new_url(engine, tmp_path)
    async with await open_storage(url) as storage:
        info = await server_info(storage)
    assert re.match(named, info.version)
    if engine == "sqlite":
        assert info.clock_offset is None  # it has no other clock than ours
    else:
        assert info.clock_offset is not None
        assert abs(info.clock_offset) <= info.offset_error + 0.01  # the server is on this machine, and rounds


def test_clocks_are_apart_only_where_no_slow_answer_explains_it() -> None:
    for ahead, margin, expected in (
        (2.5, 0.1, True),
        (-2.5, 0.1, True),
        (2.5, 0.6, False),
        (1.9, 0.0, False),
        (None, 0.0, False),
    ):
        server = ServerInfo(version="x", clock_offset=ahead, offset_error=margin)
        assert server.has_clock_skew(2.0) is expected


async def test_doctor_reports_the_server_and_leaves_nothing_behind(tmp_path: Path) -> None:
    url = await new_url("postgres", tmp_path)
    output = await doctor(url)
    for line in (
        r"perdure \S+, mcp \d\S+, python 3\.\d+\.\d+\n",
        r"Storage: postgres\w* \(PostgreSQL \d\S*.*\), schema is current\n",
        r"Writing and deleting a record: \d+ ms\n",
        r"Server clock: \d\.\d+ s (ahead of|behind) the local clock \(±\d\.\d+ s\)\n",
        r"OK: 0 records checked, no problems found\n$",
    ):
        assert re.search(line, output), output
    report = msgspec.json.decode(await doctor(url, "--json"))
    assert report["server"]["version"].startswith("PostgreSQL")
    assert (report["findings"], report["records"]) == ([], 0)


async def test_doctor_lists_applications_so_that_the_tasks_of_a_renamed_server_are_found(
    tmp_path: Path,
) -> None:
    url = await new_url("sqlite", tmp_path)
    async with await open_storage(url) as storage:
        for application, count in (("shop", 2), ("renamed", 1)):
            await created(TaskStore(storage, application=application), count)
    output = await doctor(url)
    assert "\nApplication renamed has 1 task: 1 working (queued, running or waiting to retry), " in output
    assert "\nApplication shop has 2 tasks: 2 working" in output
    report = msgspec.json.decode(await doctor(url, "--json"))
    assert [each["name"] for each in report["applications"]] == ["renamed", "shop"]
    assert report["applications"][1]["counts"]["working"] == 2


async def doctor(url: str, *options: str) -> str:
    """The report, which is all on standard output."""
    result = await run_command("doctor", *options, "--url", url)
    assert (result.code, result.err) == (0, "")
    return result.out
