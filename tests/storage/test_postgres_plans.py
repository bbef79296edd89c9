"""How PostgreSQL executes each statement: by seeking in an index, whatever it knows of the data.

With the settings of our own connections also on a table that it knows nothing of; as a pooler leaves it, once
it has looked at the table.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from perdure.storage import migrate_storage
from perdure.storage.postgres.location import parse_url
from perdure.storage.postgres.pool import ConnectionPool
from perdure.storage.postgres.schema import page_statement, statement

from .. import servers

if TYPE_CHECKING:
    from perdure.storage.postgres.pool import Connection

pytestmark = pytest.mark.anyio

STATEMENTS = {
    name
    for each in (files("perdure.storage.postgres") / "sql").iterdir()
    if (name := each.name.removesuffix(".sql")) != "page"
}
PAGES = [
    f"page_{scope}{tag}{direction}"
    for scope in ("all", "partition")
    for tag in ("", "_tag")
    for direction in ("", "_descending")
]
VALUES = {
    "get": "'{kit}', '{p1}', '{k1}', '{5}'",
    "due": "'lane', 500, 10, 5, 400, 'k', 'p', 's'",
    "counts_all": "'kit', 5",
    "counts_partition": "'kit', 'p1', 5",
} | {name: "'kit', 'p1', 500, 'k500', 5, 10" + ", 'a'" * ("tag" in name) for name in PAGES}
INDEXES = {
    "get": "records_by_address",
    "due": "records_by_timer",
    "counts_all": "records_by_expiry",
    "counts_partition": "records_by_expiry",
    "page_partition": "records_by_partition",
    "page_partition_tag": "records_by_partition_tag",
    "page_all": "records_by_order",
    "page_all_tag": "records_by_tag",
}
FILL = """
    INSERT INTO records (space, partition, key, "order", version, tag, expires_at, lane, wake_at, body)
    SELECT 'kit', 'p' || n % 50, 'k' || n, n, 1, CASE n % 100 WHEN 0 THEN 'b' ELSE 'a' END,
        CASE n % 3 WHEN 0 THEN n END, CASE n % 2 WHEN 0 THEN 'lane' END, CASE n % 2 WHEN 0 THEN n END, '{}'
    FROM generate_series(1, 20000) AS n
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The same as everywhere, but for fixtures of the whole module: filling a table takes a while."""
    return "asyncio"


@pytest.fixture(scope="module", params=["fresh", "analysed", "analysed, behind a pooler"])
async def db(request: pytest.FixtureRequest) -> AsyncGenerator[Connection]:
    is_pooled = request.param.endswith("pooler")
    url = servers.postgres().new_url("&pooler=transaction" if is_pooled else "")
    await migrate_storage(url)
    connections = await ConnectionPool.open(parse_url(url))
    db = await connections.connect()
    await db.execute(f"SET search_path = {connections.location.quoted_schema}")
    await db.execute(FILL)
    if request.param != "fresh":
        await db.execute("ANALYZE records")
    yield db
    await db.close()
    await connections.close()


def _sql(name: str, schema: str) -> str:
    if name not in PAGES:
        return statement(name, schema)
    return page_statement(
        schema,
        one_partition="partition" in name,
        one_tag="tag" in name,
        descending=name.endswith("descending"),
    )


async def plan(db: Connection, name: str, mode: str) -> str:
    """What the server does for a statement that was prepared."""
    schema = await db.fetchval("SELECT quote_ident(current_schema())")
    await db.execute(f"SET plan_cache_mode = {mode}; PREPARE ours AS {_sql(name, schema)}")
    rows = await db.fetch(f"EXPLAIN EXECUTE ours ({VALUES[name]})")
    await db.execute("DEALLOCATE ours")
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize("name", sorted(VALUES))
async def test_a_statement_seeks_in_its_index_and_sorts_nothing(db: Connection, name: str) -> None:
    for mode in ("force_custom_plan", "force_generic_plan"):
        steps = await plan(db, name, mode)
        found = re.findall(r"Index(?: Only)? Scan(?: Backward)? using (records_\w+)", steps)
        found += re.findall(r"Bitmap Index Scan on (records_\w+)", steps)
        assert found == [INDEXES[name.removesuffix("_descending")]], steps
        assert "Seq Scan on records" not in steps, steps
        if not name.startswith("counts"):  # which groups a few numbers
            assert "Sort" not in steps, steps
            assert "Bitmap" not in steps, steps


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_seeks_to_its_position(db: Connection, name: str) -> None:
    steps = await plan(db, name, "force_generic_plan")
    order = '("order" + 0)' if "tag" in name else '"order"'
    columns = f"ROW({order}, key)" if "partition" in name else f"ROW({order}, key, partition)"
    [condition] = re.findall(r"Index Cond: (.*)", steps)
    assert f"{columns} {'<' if name.endswith('descending') else '>'} ROW(" in condition


async def test_a_commit_and_a_purge_seek_too(db: Connection) -> None:
    """Their statements are within functions, so the server is asked what it did to the table."""
    await db.execute("SET plan_cache_mode = auto")
    looked = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'records'::regclass"
    async with db.transaction():
        before = await db.fetchval(looked)
        for n in range(8):  # from the sixth time on, plans are made without looking at the values
            await db.execute(
                """SELECT FROM commit_group('0', 'channel', '', '{p1,p2}', '{600,600}', '{1,2}',
                    '{kit,NULL}', '{1,NULL}', '{1,1}', '{a}', '{insert,keep}', '{kit,kit}', ARRAY[$1, $1],
                    '{1,1}', '{NULL,NULL}', '{NULL,NULL}', '{1,1}', '{a,a}', '{1,1}', '{NULL,NULL}',
                    '{NULL,NULL}', '{NULL,NULL}')""",
                f"new{n}",
            )
            await db.execute("SELECT FROM purge_overdue('0', 'channel', '', $1, 3)", 100 + n)
        assert await db.fetchval(looked) == before


def test_the_statements_of_every_verb_are_checked() -> None:
    assert len(PAGES) == 8
    notifications = {"announce_listener", "change_counter"}
    maintenance = {
        "analyze",
        "damaged",
        "delete_zero_counts",
        "repair_count",
        "repair_lock",
        "repair_total",
        "wrong_counters",
    }
    other = {"commit", "inspect", "purge", "server_info", "version"}
    assert {*STATEMENTS, *PAGES} == {*VALUES, *maintenance, *notifications, *other}
