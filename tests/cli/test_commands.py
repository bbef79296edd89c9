"""`perdure migrate`, `copy`, `doctor` and `worker`, as real processes: what they say, and how they end."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

import perdure
from perdure.operating.maintenance import ALL_SPACES as SPACES
from perdure.storage import Record, open_storage
from perdure.storage.copy import COPIES
from perdure.storage.kit.sample_records import HOSTILE_NAMES, NOW, insert_each, make_record

from ..fork_server import run_in_fork
from ..storage.engines import new_url
from ..storage.sqlite_helpers import url_of
from .user_servers import OWN_FASTMCP, OWN_LOW_LEVEL, OWN_SERVER

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SECRET = "hunter2"  # noqa: S105 - tests check that it is not printed
UNREACHABLE = f"postgresql://user:{SECRET}@127.0.0.1:1/db"
RECORDS = [
    *(make_record(name, space=space, order=at) for space in SPACES for at, name in enumerate(HOSTILE_NAMES)),
    make_record("timer", space=SPACES[-1], lane="lane", wake_at=1, version=9, expires_at=2),
]
PRIVATE = "storage with a memory: URL is private to one process; use a file or a database server"
SAME_STORAGE = "source and target are the same storage"
CommandResult = subprocess.CompletedProcess[str]


def perdure_command(*arguments: str, folder: Path = ROOT) -> CommandResult:
    variables = {**os.environ, "COLUMNS": "200"}
    return run_in_fork("-m", "perdure.cli", *arguments, cwd=folder, env=variables)


def expect_result(ended: CommandResult, code: int, *words: str) -> None:
    """It ended with this code and printed these words, all on standard output."""
    assert (ended.returncode, ended.stderr) == (code, ""), ended
    for each in words:
        assert each in ended.stdout


def expect(ended: CommandResult, code: int, *words: str) -> None:
    """It was refused with this code and these words; everything on standard error, and no traceback."""
    assert ended.returncode == code, ended
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr, ended.stderr
    for each in words:
        assert each in ended.stderr


async def file_of(path: Path, records: Sequence[Record] = ()) -> str:
    """The URL of a file with these records."""
    url = url_of(path)
    async with await open_storage(url) as storage:
        await insert_each(storage, *records, now=0)
    return url


async def records_in(url: str) -> list[Record]:
    async with await open_storage(url) as storage:
        pages = [await storage.page(space, limit=1000, now=0) for space in (*SPACES, COPIES)]
    return [record for page in pages for record in page]


# migrate


def test_migrate_makes_the_tables_and_does_nothing_the_second_time(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    for _ in range(2):
        expect_result(perdure_command("migrate", "--url", url_of(path)), 0, "The storage is ready.\n")
        assert path.stat().st_size > 0


def test_migrate_prints_json(tmp_path: Path) -> None:
    result = perdure_command("migrate", "--url", url_of(tmp_path / "records.db"), "--json")
    assert (result.returncode, result.stdout, result.stderr) == (0, '{"ready":true}\n', "")


# copy


async def test_a_copy_is_reported_in_one_json_document(tmp_path: Path) -> None:
    source = await file_of(tmp_path / "source.db", RECORDS)
    result = perdure_command("copy", url_of(tmp_path / "target.db"), "--url", source, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    count = len(HOSTILE_NAMES)
    records = {str(space): count + (space == SPACES[-1]) for space in SPACES}
    assert msgspec.json.decode(result.stdout) == {
        "identical": True,
        "records": records,
        "live_tasks": 0,
        "live_accounts": 0,
    }
    taken = await file_of(tmp_path / "taken.db", [make_record("another", space=SPACES[0])])
    again = perdure_command("copy", taken, "--url", source, "--json")
    expect(again, 2, f"perdure: cannot copy into {taken}: space ")


async def test_a_file_is_copied_to_another_and_back(tmp_path: Path) -> None:
    first = await file_of(tmp_path / "first.db", RECORDS)
    second, third = url_of(tmp_path / "second.db"), url_of(tmp_path / "third.db")
    for source, target in ((first, second), (second, third)):
        ended = perdure_command("copy", target, "--url", source)
        expect_result(ended, 0, "Copy verified: all records are identical.\n")
        counted = re.findall(r"^ +(\d+)  (\w+)$", ended.stdout, re.MULTILINE)
        count = len(HOSTILE_NAMES)
        assert counted == [(str(count + (space == SPACES[-1])), space) for space in SPACES]
        assert await records_in(target) == await records_in(first)


async def test_a_target_that_is_not_empty_is_refused_unless_asked_to_merge(tmp_path: Path) -> None:
    other = make_record("another", space=SPACES[0], order=NOW)
    source = await file_of(tmp_path / "source.db", RECORDS)
    target = await file_of(tmp_path / "target.db", [other, RECORDS[0]])
    before = await records_in(target)
    refused = (
        f"perdure: cannot copy into {target}: space {SPACES[0]!r} of the target already contains records; "
    )
    expect(perdure_command("copy", target, "--url", source), 2, refused, "--merge")
    assert await records_in(target) == before
    expect_result(perdure_command("copy", "--merge", target, "--url", source), 0, "Copy verified")
    assert sorted(await records_in(target), key=str) == sorted([*RECORDS, other], key=str)


async def test_merging_with_a_different_record_fails_and_names_it(tmp_path: Path) -> None:
    different = make_record("k", space=SPACES[0], body="[]")
    source = await file_of(tmp_path / "source.db", [make_record("k", space=SPACES[0])])
    target = await file_of(tmp_path / "target.db", [different])
    ended = perdure_command("copy", "--merge", target, "--url", source)
    expect(
        ended,
        2,
        f"{different.space}/{different.partition}/{different.key}: the copy differs from the source;",
    )


async def test_a_target_that_is_refused_is_named_without_its_password(tmp_path: Path) -> None:
    source, target = await file_of(tmp_path / "source.db", RECORDS), await new_url("postgres", tmp_path)
    expect_result(perdure_command("copy", target, "--url", source), 0, "Copy verified")
    parts = urlsplit(target)
    place = f"{parts.hostname}:{parts.port}{parts.path}"
    secret = parts._replace(netloc=f"{parts.username}:{SECRET}@{parts.hostname}:{parts.port}").geturl()
    ended = perdure_command("copy", f"{secret}&pool=2", "--url", source)
    expect(ended, 2, f"perdure: cannot copy into postgresql://{place}: space ")
    assert SECRET not in ended.stderr


def files_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_a_source_that_is_not_there_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    ended = perdure_command("copy", "sqlite:///target.db", "--url", "sqlite:///nope.db", folder=tmp_path)
    expect(ended, 2, "perdure: storage not found: sqlite:///nope.db; ")
    assert ended.stderr.count("\n") == 1
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["copy", "memory:", "--url", "FILE"],
        ["copy", "NEW", "--url", "memory:"],
        ["doctor", "--url", "memory:"],
    ],
)
async def test_records_that_are_gone_with_the_process_are_not_looked_after(
    tmp_path: Path, arguments: list[str]
) -> None:
    names = {"FILE": await file_of(tmp_path / "file.db"), "NEW": url_of(tmp_path / "new.db")}
    ended = perdure_command(*(names.get(each, each) for each in arguments))
    expect(
        ended,
        2,
        f"perdure: {PRIVATE}\n",
    )
    assert "new.db" not in files_in(tmp_path)


@pytest.mark.parametrize("options", [[], ["--merge"]], ids=" ".join)
async def test_a_storage_is_not_copied_onto_itself_however_it_is_written(
    tmp_path: Path, options: list[str]
) -> None:
    source = await file_of(tmp_path / "source.db", RECORDS)
    (tmp_path / "link.db").symlink_to(tmp_path / "source.db")
    for other in (
        source,
        "sqlite:///source.db?busy_timeout=7",
        "sqlite:///../source.db",
        "sqlite:///link.db",
    ):
        (tmp_path / "below").mkdir(exist_ok=True)
        folder = tmp_path / "below" if ".." in other else tmp_path
        ended = perdure_command("copy", *options, other, "--url", source, folder=folder)
        expect(ended, 2, f"perdure: cannot copy into {other.partition('?')[0]}: ", SAME_STORAGE)
        assert ended.stderr.count("\n") == 1
        assert "empty" not in ended.stderr
        assert sorted(await records_in(source), key=str) == sorted(RECORDS, key=str)


async def test_a_database_is_not_copied_onto_itself_by_another_name(tmp_path: Path) -> None:
    url = await new_url("postgres", tmp_path)
    expect_result(perdure_command("copy", url, "--url", await file_of(tmp_path / "source.db", RECORDS)), 0)
    again = url.replace("postgresql://", "postgres://").replace("127.0.0.1", "localhost")
    assert again != url
    expect(perdure_command("copy", "--merge", again, "--url", url), 2, SAME_STORAGE)
    assert sorted(await records_in(url), key=str) == sorted(RECORDS, key=str)


def test_everything_that_perdure_stores_is_copied() -> None:
    folder = Path(perdure.__file__).parent
    files = [path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] != "storage"]
    found = {
        word for path in files for word in re.findall(r"\bSpace\(\s*(.*?)\s*\)", path.read_text("utf-8"))
    }
    assert found == {f'"{space}"' for space in SPACES}
    assert len(set(SPACES)) == len(SPACES)


# doctor


def execute(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


async def test_doctor_finds_a_wrong_counter_and_repair_sets_it_right(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await file_of(path, [make_record(space=SPACES[0], tag="red")])
    expect_result(perdure_command("doctor", "--url", url), 0, "OK: 1 record checked, no problems found\n")
    execute(path, "UPDATE counts SET n = 5 WHERE partition = ''")
    complaint = f"counter {SPACES[0]}, tag 'red': stored 5, actual 1\n"
    for _ in range(2):  # finding is not mending
        expect_result(perdure_command("doctor", "--url", url), 1, complaint, "--repair")
    expect_result(
        perdure_command("doctor", "--repair", "--url", url),
        0,
        complaint,
        "Repaired: 1 record checked, no problems remain\n",
    )
    expect_result(perdure_command("doctor", "--url", url), 0, "OK: 1 record checked, no problems found\n")
    async with await open_storage(url) as storage:
        assert await storage.counts(SPACES[0], now=NOW) == {"red": 1}


async def test_doctor_fails_where_counting_anew_does_not_help(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await file_of(path, [make_record(space=SPACES[0])])
    table = "UPDATE sqlite_schema SET sql = replace(sql, 'body TEXT{}', 'body TEXT{}') WHERE name = 'records'"
    execute(path, "PRAGMA writable_schema = 1", table.format(" NOT NULL", ""))
    execute(path, "UPDATE records SET body = NULL")
    execute(path, "PRAGMA writable_schema = 1", table.format("", " NOT NULL"))
    for options in ([], ["--repair"]):
        ended = perdure_command("doctor", *options, "--url", url)
        assert "NULL value in records.body" in ended.stdout
        assert ended.returncode == 1, ended
        assert "Repaired:" not in ended.stdout


def test_doctor_makes_no_file_where_there_is_none(tmp_path: Path) -> None:
    ended = perdure_command("doctor", "--url", "sqlite:///missing.db", "--json", folder=tmp_path)
    expect(ended, 2, "perdure: storage not found: sqlite:///missing.db; ")
    assert ended.stderr.count("\n") == 1
    assert files_in(tmp_path) == []


# worker


@pytest.mark.parametrize("code", [OWN_FASTMCP, OWN_LOW_LEVEL], ids=["fastmcp", "low-level"])
def test_a_worker_refuses_a_server_whose_tasks_no_other_process_can_see(tmp_path: Path, code: str) -> None:
    (tmp_path / "own.py").write_text(code)
    ended = perdure_command("worker", "own:server", folder=tmp_path)
    expect(
        ended,
        2,
        f"perdure: {PRIVATE}",
    )
    ended = perdure_command("serve", "own:server", "--no-work", folder=tmp_path)
    expect(
        ended,
        2,
        "perdure: --no-work needs a storage that other processes can open; use a file or a database server",
    )


def test_a_worker_refuses_a_server_without_tasks_or_without_durable_tools(tmp_path: Path) -> None:
    idle = "\nidle = MCPServer('idle', **Tasks('sqlite:///own.db').attach())\n"
    (tmp_path / "own.py").write_text(OWN_SERVER + idle)
    ended = perdure_command("worker", "own:without", folder=tmp_path)
    expect(ended, 2, "perdure: own:without has no Tasks object attached; ")
    ended = perdure_command("worker", "own:idle", folder=tmp_path)
    advice = "write @tasks.durable below @server.tool()"
    expect(ended, 2, f"perdure: own:idle has no durable tools to run; {advice}\n")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (OWN_FASTMCP.replace("task=True", ""), "declare a tool with @mcp.tool(task=True)"),
        (
            OWN_LOW_LEVEL.replace("@tasks.durable\n", ""),
            "write @tasks.durable above a function that has the name of a tool",
        ),
    ],
    ids=["fastmcp", "low-level"],
)
def test_the_advice_to_make_tools_durable_is_that_of_the_framework(
    tmp_path: Path, code: str, advice: str
) -> None:
    (tmp_path / "own.py").write_text(code)
    ended = perdure_command("worker", "own:server", folder=tmp_path)
    expect(ended, 2, f"perdure: own:server has no durable tools to run; {advice}\n")


def test_a_worker_refuses_a_port_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_SERVER)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = perdure_command("worker", "own:server", "--port", str(port), folder=tmp_path)
    expect(ended, 2, f"perdure: port {port} on 127.0.0.1 is in use; choose another with --port")


def test_a_worker_that_is_given_anything_else_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_SERVER)
    ended = perdure_command("worker", "own:text", folder=tmp_path)
    expect(
        ended, 2, "perdure: own:text has the type str; give the name of an MCPServer, a Server or a FastMCP"
    )


# perdure itself


def test_it_prints_its_version() -> None:
    result = perdure_command("--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"perdure {version('perdure')}, mcp {version('mcp')}, python 3.")


# What cannot be opened


def test_a_url_that_names_no_engine_is_reported_in_one_line() -> None:
    ended = perdure_command("doctor", "--url", "mongodb://localhost/db")
    expect(ended, 2, "cannot open mongodb://localhost/db: unknown URL scheme", "sqlite")
    assert ended.stderr.startswith("perdure: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["migrate", "--url", UNREACHABLE],
        ["copy", "FILE", "--url", UNREACHABLE],
        ["copy", UNREACHABLE, "--url", "FILE"],
        ["doctor", "--url", UNREACHABLE],
        ["doctor", "--url", f"postgresql://user@127.0.0.1:1/db?password={SECRET}"],
        ["doctor", "--url", f"redis://:{SECRET}@127.0.0.1:1/0"],
        ["doctor", "--url", f"{UNREACHABLE}?nonsense=1"],
        ["doctor", "--url", f"redis://127.0.0.1:1/0?password={SECRET}"],
    ],
    ids=" ".join,
)
async def test_an_unreachable_server_may_be_retried_and_no_password_is_printed(
    tmp_path: Path, arguments: list[str]
) -> None:
    file = await file_of(tmp_path / "other.db")
    ended = perdure_command(*(file if each == "FILE" else each for each in arguments))
    expect(ended, 1, "perdure: ")
    assert ended.stderr.endswith("; check the host and port of the storage, or try again later\n")
    assert ended.stderr.count("\n") == 1
    assert SECRET not in ended.stderr


def test_a_worker_reports_in_one_line_that_its_storage_is_unreachable(tmp_path: Path) -> None:
    app = (
        f"from perdure.runtime import App\napp = App({UNREACHABLE!r}, application='tests')\n"
        "@app.function\ndef work(): ...\n"
    )
    (tmp_path / "mine.py").write_text(app)
    ended = perdure_command("worker", "mine:app", folder=tmp_path)
    expect(ended, 1, "perdure: ", "; check the host and port of the storage, or try again later\n")
    assert ended.stderr.count("\n") == 1
    assert SECRET not in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "--url", f"postgres://{SECRET}@127.0.0.1:port/db"],
        ["doctor", "--url", f"postgress://user:{SECRET}@127.0.0.1:1/db"],
        ["doctor", "--url", f"redis://:{SECRET}@127.0.0.1:1/0?nonsense=1"],
    ],
    ids=" ".join,
)
def test_a_password_is_never_printed(arguments: list[str]) -> None:
    ended = perdure_command(*arguments)
    expect(ended, 2, "perdure: ")
    assert SECRET not in ended.stderr
