"""Looking whether the counters are right, and setting them right."""

from __future__ import annotations

import asyncpg

from ..contract import MaintenanceReport
from ..damage import Damaged
from ..record import Address
from .pool import FULL_SCAN_TIMEOUT, ConnectionPool
from .statements import statement


async def maintain(connections: ConnectionPool, *, repair: bool) -> MaintenanceReport:
    """Compare every counter with what it counts; have the server learn what the tables are like.

    The server gives back room by itself. While counters are set right nobody can write.
    """
    schema = connections.location.quoted_schema
    async with connections.transaction() as session:
        if repair:
            await session.execute(statement("repair_lock", schema))
        wrong = await session.fetch(statement("recount", schema), timeout=FULL_SCAN_TIMEOUT)
        if repair:
            counts = [row for row in wrong if row["partition"] is not None]
            totals = [row for row in wrong if row["partition"] is None]
            await session.executemany(
                statement("repair_count", schema),
                [(row["space"], row["partition"], row["tag"], row["counted"]) for row in counts],
            )
            await session.executemany(
                statement("repair_total", schema),
                [(row["space"], row["tag"], row["counted"] - row["stored"]) for row in totals],
            )
            await session.execute(statement("drop_zero_counts", schema))
        damaged = await session.fetch(statement("damaged", schema), timeout=FULL_SCAN_TIMEOUT)
        await session.execute(statement("analyze", schema), timeout=FULL_SCAN_TIMEOUT)
    return MaintenanceReport(findings=(*map(_finding, wrong), *map(_damaged, damaged)))


def _damaged(row: asyncpg.Record) -> str:
    return str(Damaged(Address(*row), "its text cannot be read, or is not UTF-8"))


def _finding(row: asyncpg.Record) -> str:
    scope = row["space"] if row["partition"] is None else f"{row['partition']}/{row['space']}"
    return f"the counter of {scope} tagged {row['tag']!r} says {row['stored']}, there are {row['counted']}"
