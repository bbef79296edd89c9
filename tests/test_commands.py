"""`perdure migrate`, `copy` and `doctor`, as real processes: what they say, and with what they end."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import perdure
from perdure.cli.storages import SPACES
from perdure.storage import Record, open_storage
from perdure.storage.copying import COPIES
from perdure.storage.kit.samples import HOSTILE_NAMES, NOW, put, sample

from .storage.sqlite_helpers import url_of

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]
SECRET = "hunter2"  # noqa: S105 - the point is that it is not told
UNREACHABLE = f"postgresql://user:{SECRET}@127.0.0.1:1/db"
RECORDS = [
    *(sample(name, space=space, order=at) for space in SPACES for at, name in enumerate(HOSTILE_NAMES)),
    sample("timer", space=SPACES[-1], lane="lane", wake_at=1, version=9, expires_at=2),
]
Ended = subprocess.CompletedProcess[str]


def perdure_command(*arguments: str, folder: Path = ROOT) -> Ended:
    return subprocess.run(
        [sys.executable, "-m", "perdure.cli", *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def expect(ended: Ended, code: int, *words: str) -> None:
    """It ended so, and each of these was said; everything on standard error, and no traceback."""
    assert ended.returncode == code, ended
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr, ended.stderr
    for each in words:
        assert each in ended.stderr


async def file_of(path: Path, records: Sequence[Record] = ()) -> str:
    """The URL of a file with these records."""
    url = url_of(path)
    async with await open_storage(url) as storage:
        await put(storage, *records, now=0)
    return url


async def records_in(url: str) -> list[Record]:
    async with await open_storage(url) as storage:
        pages = [await storage.page(space, limit=1000, now=0) for space in (*SPACES, COPIES)]
    return [record for page in pages for record in page]


# migrate


def test_migrate_makes_the_tables_and_does_nothing_the_second_time(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    for _ in range(2):
        expect(perdure_command("migrate", url_of(path)), 0, "the storage is ready\n")
        assert path.stat().st_size > 0


def test_migrate_tells_programs(tmp_path: Path) -> None:
    told = perdure_command("migrate", url_of(tmp_path / "records.db"), "--json")
    assert (told.returncode, told.stdout, told.stderr) == (0, '{"is_ready":true}\n', "")


# copy


async def test_a_copy_is_told_to_programs_in_one_document(tmp_path: Path) -> None:
    source = await file_of(tmp_path / "source.db", RECORDS)
    told = perdure_command("copy", source, url_of(tmp_path / "target.db"), "--json")
    assert (told.returncode, told.stderr) == (0, "")
    count = len(HOSTILE_NAMES)
    records = {str(space): count + (space == SPACES[-1]) for space in SPACES}
    assert msgspec.json.decode(told.stdout) == {"is_same": True, "records": records}
    taken = await file_of(tmp_path / "taken.db", [sample("another", space=SPACES[0])])
    again = perdure_command("copy", source, taken, "--json")
    expect(again, 2, "perdure: there are records in ")


async def test_a_file_is_copied_to_another_and_back(tmp_path: Path) -> None:
    first = await file_of(tmp_path / "first.db", RECORDS)
    second, third = url_of(tmp_path / "second.db"), url_of(tmp_path / "third.db")
    for source, target in ((first, second), (second, third)):
        ended = perdure_command("copy", source, target)
        expect(ended, 0, "everything is there, to the byte\n")
        told = re.findall(r"^ +(\d+)  (\w+)$", ended.stderr, re.MULTILINE)
        count = len(HOSTILE_NAMES)
        assert told == [(str(count + (space == SPACES[-1])), space) for space in SPACES]
        assert await records_in(target) == await records_in(first)


async def test_a_target_that_is_not_empty_is_refused_unless_asked_to_merge(tmp_path: Path) -> None:
    other = sample("another", space=SPACES[0], order=NOW)
    source = await file_of(tmp_path / "source.db", RECORDS)
    target = await file_of(tmp_path / "target.db", [other, RECORDS[0]])
    before = await records_in(target)
    expect(perdure_command("copy", source, target), 2, f"there are records in {SPACES[0]!r}", "merge")
    assert await records_in(target) == before
    expect(perdure_command("copy", "--merge", source, target), 0, "everything is there")
    assert sorted(await records_in(target), key=str) == sorted([*RECORDS, other], key=str)


async def test_merging_with_a_different_record_fails_and_names_it(tmp_path: Path) -> None:
    different = sample("k", space=SPACES[0], body="[]")
    source = await file_of(tmp_path / "source.db", [sample("k", space=SPACES[0])])
    target = await file_of(tmp_path / "target.db", [different])
    ended = perdure_command("copy", "--merge", source, target)
    expect(ended, 2, f"{different.space}/{different.partition}/{different.key}: it is not the same record;")


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


async def test_doctor_finds_a_wrong_counter_and_recount_sets_it_right(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await file_of(path, [sample(space=SPACES[0], tag="red")])
    expect(perdure_command("doctor", url), 0, "all is well with 1 records\n")
    execute(path, "UPDATE counts SET n = 5 WHERE partition = ''")
    complaint = f"the counter of {SPACES[0]} tagged 'red' says 5, there are 1\n"
    for _ in range(2):  # finding is not mending
        expect(perdure_command("doctor", url), 1, complaint, "--recount")
    expect(perdure_command("doctor", "--recount", url), 0, complaint, "set right, among 1 records\n")
    expect(perdure_command("doctor", url), 0, "all is well with 1 records\n")
    async with await open_storage(url) as storage:
        assert await storage.counts(SPACES[0], now=NOW) == {"red": 1}


async def test_doctor_fails_where_counting_anew_does_not_help(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    url = await file_of(path, [sample(space=SPACES[0])])
    table = "UPDATE sqlite_schema SET sql = replace(sql, 'body TEXT{}', 'body TEXT{}') WHERE name = 'records'"
    execute(path, "PRAGMA writable_schema = 1", table.format(" NOT NULL", ""))
    execute(path, "UPDATE records SET body = NULL")
    execute(path, "PRAGMA writable_schema = 1", table.format("", " NOT NULL"))
    for options in ([], ["--recount"]):
        ended = perdure_command("doctor", *options, url)
        assert "NULL value in records.body" in ended.stderr
        assert ended.returncode == 1, ended
        assert "set right, among" not in ended.stderr


# What cannot be opened


def test_a_url_that_names_no_engine_is_told_in_one_line() -> None:
    ended = perdure_command("doctor", "mongodb://localhost/db")
    expect(ended, 2, "cannot open mongodb://localhost/db: its scheme names no engine", "sqlite")
    assert ended.stderr.startswith("perdure: ")
    assert ended.stderr.count("\n") == 1


OTHER = "memory:"


@pytest.mark.parametrize(
    "arguments",
    [
        ["migrate", UNREACHABLE],
        ["copy", UNREACHABLE, OTHER],
        ["copy", OTHER, UNREACHABLE],
        ["doctor", UNREACHABLE],
        ["doctor", f"postgresql://user@127.0.0.1:1/db?password={SECRET}"],
        ["doctor", f"redis://:{SECRET}@127.0.0.1:1/0"],
        ["doctor", f"{UNREACHABLE}?nonsense=1"],
        ["doctor", f"redis://127.0.0.1:1/0?password={SECRET}"],
    ],
    ids=" ".join,
)
def test_a_server_that_does_not_answer_is_worth_another_try_and_no_password_is_told(
    arguments: list[str],
) -> None:
    ended = perdure_command(*arguments)
    expect(ended, 1, "perdure: ")
    assert ended.stderr.endswith("; try again in a while\n")
    assert ended.stderr.count("\n") == 1
    assert SECRET not in ended.stderr


def test_a_worker_tells_in_one_sentence_that_its_storage_does_not_answer(tmp_path: Path) -> None:
    app = f"from perdure.runtime import App\napp = App({UNREACHABLE!r})\n@app.function\ndef work(): ...\n"
    (tmp_path / "mine.py").write_text(app)
    ended = perdure_command("worker", "mine:app", folder=tmp_path)
    expect(ended, 1, "perdure: ", "; try again in a while\n")
    assert ended.stderr.count("\n") == 1
    assert SECRET not in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", f"postgres://{SECRET}@127.0.0.1:port/db"],
        ["doctor", f"postgress://user:{SECRET}@127.0.0.1:1/db"],
        ["doctor", f"redis://:{SECRET}@127.0.0.1:1/0?nonsense=1"],
    ],
    ids=" ".join,
)
def test_a_password_is_never_told(arguments: list[str]) -> None:
    ended = perdure_command(*arguments)
    expect(ended, 2, "perdure: ")
    assert SECRET not in ended.stderr
