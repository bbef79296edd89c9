"""How SQLite executes each statement: by seeking in an index, whatever it has learnt of the data."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Generator
from importlib.resources import files
from pathlib import Path

import pytest

from perdure.storage import open_storage
from perdure.storage.kit.sample_records import NOW, make_record
from perdure.storage.sqlite.database import page_statement, statement

from .helpers import inserting
from .sqlite_helpers import url_of

PAGES = {
    f"page_{'partition' if one_partition else 'all'}{'_tag' * one_tag}{'_descending' * descending}": (
        page_statement(one_partition=one_partition, one_tag=one_tag, descending=descending)
    )
    for one_partition in (False, True)
    for one_tag in (False, True)
    for descending in (False, True)
}
STATEMENTS = {
    name: statement(name)
    for each in (files("perdure.storage.sqlite") / "sql").iterdir()
    if (name := each.name.removesuffix(".sql")) != "page"
} | PAGES
WHOLE = {"all", "counts", "wrong_counters"}
"""Statements of maintenance, which read everything, and counts, which read what is expired."""


async def make_file(path: Path) -> None:
    """A file of which ANALYZE says that one partition and one tag hold almost everything."""
    async with await open_storage(url_of(path)) as storage:
        records = [
            make_record(f"k{n}", order=n, tag="ab"[n == 0], lane="lane", wake_at=n, expires_at=NOW + n)
            for n in range(300)
        ]
        await asyncio.gather(*[storage.commit(inserting(record), now=NOW) for record in records])


@pytest.fixture(params=["fresh", "analysed"])
def db(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[sqlite3.Connection]:
    path = tmp_path / "records.db"
    asyncio.run(make_file(path))
    db = sqlite3.connect(path)
    if request.param == "analysed":
        db.execute("ANALYZE")
    yield db
    db.close()


def plan(db: sqlite3.Connection, name: str) -> list[str]:
    """The steps of a statement's plan."""
    sql = STATEMENTS[name]
    names = re.findall(r":(\w+)", sql)
    values = dict.fromkeys(names, 1) if names else (1,) * sql.count("?")
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - WHOLE))
def test_a_statement_seeks_in_an_index_and_sorts_nothing(db: sqlite3.Connection, name: str) -> None:
    steps = plan(db, name)
    assert all(step.startswith("SEARCH") for step in steps), steps
    assert len(steps) == (0 if name in ("insert", "add_count") else 1)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_seeks_to_its_position(db: sqlite3.Connection, name: str) -> None:
    [step] = plan(db, name)
    columns = "(order,key)" if "partition" in name else "(order,key,partition)"
    marks = "(?,?)" if "partition" in name else "(?,?,?)"
    assert f"{columns}{'<' if name.endswith('descending') else '>'}{marks}" in step


def test_counting_reads_no_live_record(db: sqlite3.Connection) -> None:
    steps = [step for step in plan(db, "counts") if "records" in step or " counts" in step]
    assert len(steps) == 2
    assert all(step.startswith("SEARCH") for step in steps), steps
    assert any("USING COVERING INDEX records_by_expiry (expires_at<?)" in step for step in steps), steps


def test_the_statements_of_every_verb_are_checked() -> None:
    assert len(PAGES) == 8
    assert {"get", "find", "due", "expired", "expired_partition", "count", *WHOLE} < {*STATEMENTS}
