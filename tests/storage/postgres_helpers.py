"""What the tests of the PostgreSQL engine share: a look behind the engine, and calls that may fail."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from perdure.storage.errors import OutcomeUnknown, StorageBusy, StorageUnavailable
from perdure.storage.kit.sample_records import PARTITION
from perdure.storage.kit.servers import Postgres
from perdure.storage.postgres.location import parse_url

from .helpers import TIMEOUT

if TYPE_CHECKING:
    from perdure.storage.postgres.pool import Connection

T = TypeVar("T")


class Standby(Postgres):
    """A copy of a server that follows it."""

    def __init__(self, primary: Postgres) -> None:
        super().__init__()
        self._primary = primary

    def prepare(self) -> None:
        if self.run_as is not None:
            os.chown(self.folder, self.run_as, self.run_as)
        subprocess.run(
            [
                self._binaries / "pg_basebackup", "--pgdata", self.folder / "data", "--write-recovery-conf",
                "--checkpoint", "fast", "--no-sync", "--host", "127.0.0.1", "--port", str(self._primary.port),
                "--username", "perdure",
            ],
            check=True, capture_output=True, user=self.run_as, group=self.run_as, cwd=self.folder,
        )  # fmt: skip


OURS = "FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid()"
"""The sessions of a name, but for the one that asks."""


def named(server: Postgres, options: str = "") -> tuple[str, str]:
    """Return the URL of a new storage whose sessions have a name of their own, and the name."""
    url = server.new_url()
    name = parse_url(url).options.schema
    return f"{url}&application_name={name}{options}", name


@asynccontextmanager
async def session(url: str) -> AsyncGenerator[Connection]:
    """A session of our own in the schema that the URL names."""
    location = parse_url(url)
    connection = await asyncpg.connect(
        location.dsns[0], server_settings={"search_path": location.quoted_schema}
    )
    try:
        yield connection
    finally:
        await connection.close()


async def at_last(call: Callable[[], Awaitable[T]]) -> T:
    """The answer where a timeout is so short that it may take more than one try."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                return await call()
            except (StorageBusy, StorageUnavailable, OutcomeUnknown):
                await asyncio.sleep(0.02)


async def until_waiting(url: str, name: str) -> None:
    """Until the one session of this name that writes waits for a lock."""
    async with session(url.partition("&")[0]) as db:
        await until(db, f"SELECT count(*) = 1 {OURS} AND wait_event_type = 'Lock'", name)


async def until(db: Connection, question: str, *values: object) -> None:
    """Ask the server until it says yes."""
    async with asyncio.timeout(TIMEOUT):
        while not await db.fetchval(question, *values):  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.02)


@asynccontextmanager
async def stalled(url: str, name: str) -> AsyncGenerator[None]:
    """While the sessions of this name, as many as there are now, are frozen."""
    async with session(url.partition("&")[0]) as db:
        pids = [row["pid"] for row in await db.fetch(f"SELECT pid {OURS}", name)]
    _send(signal.SIGSTOP, pids)
    try:
        yield
    finally:
        _send(signal.SIGCONT, pids)


def _send(what: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it was just leaving
            os.kill(pid, what)


@asynccontextmanager
async def partition_locked(url: str, partition: str = PARTITION) -> AsyncGenerator[Connection]:
    """Run the block while another session writes to this partition and does not finish."""
    async with session(url) as other, other.transaction():
        await other.execute("SELECT begin_writing('0', ARRAY[$1])", partition)
        yield other
