"""`/health` reports writes that fail, on storages that really refuse them, and that they succeed again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.responses import Response

from perdure.cli.serve.asgi import Health
from perdure.storage import Change, Committed, Guard, Insert, Micros, Refused, Storage, open_storage
from perdure.storage.errors import StorageFull
from perdure.storage.kit.sample_records import NOW, make_record
from perdure.storage.kit.servers.valkey import Valkey
from perdure.storage.memory import MemoryEngine

from ..conditions import wait_until
from ..markers import server
from ..mcp.raw_clients import Client2026
from ..storage.sqlite_helpers import padded
from ..storage.sqlite_process import fill
from ..test_examples import sampled
from .serve_process import anyone

pytestmark = pytest.mark.anyio

ROOM = 400_000
FULL = {"status": "writes fail", "reason": "the storage is full"}


class Filling(msgspec.Struct, frozen=True):
    """A storage that can be made to refuse writes, and to accept them again."""

    url: str
    refuse: Callable[[], None]
    accept: Callable[[], None]


@contextmanager
def on_sqlite(folder: Path) -> Generator[Filling]:
    """A file that others fill up to the size that the server allows, and empty again."""
    path = folder / "full.db"

    def execute(statement: str, *values: object) -> None:
        with sqlite3.connect(path, timeout=60) as db:
            db.execute(statement, values)
        db.close()

    def refuse() -> None:
        execute("CREATE TABLE ballast (bytes BLOB)")
        execute("INSERT INTO ballast VALUES (zeroblob(?))", 2 * ROOM)

    yield Filling(f"sqlite:///{path}?max_bytes={ROOM}", refuse, lambda: execute("DELETE FROM ballast"))


@contextmanager
def on_valkey(_: Path) -> Generator[Filling]:
    """A server whose memory is limited, and unlimited again."""
    valkey = Valkey()
    valkey.start()
    try:

        def limit(size: str) -> None:
            assert valkey.send_command("CONFIG", "SET", "maxmemory", size).startswith("+OK")

        yield Filling(valkey.new_url(), lambda: limit("1"), lambda: limit("0"))
    finally:
        valkey.close()


@server("valkey")
@pytest.mark.parametrize("make", [on_sqlite, on_valkey])
async def test_health_reports_writes_that_fail_until_they_succeed_again(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    with make(tmp_path) as filling:
        async with (
            sampled(tmp_path, "--url", filling.url, "--no-dashboard") as served,
            Client2026(served.url) as modern,
            anyone() as browser,
        ):
            address = f"{served.url.removesuffix('/mcp')}/health"

            async def is_well() -> bool:
                return (await browser.get(address)).status_code == 200

            async def is_refused() -> bool:
                return "error" in (await modern.call("print_report", {"year": 2026})).message

            await modern.until(await modern.start("print_report", {"year": 2026}), "completed")
            assert await is_well()
            filling.refuse()
            await wait_until(is_refused, seconds=30)  # a short record may still fit
            failing = await browser.get(address)
            assert (failing.status_code, failing.json()) == (503, FULL)
            filling.accept()
            await wait_until(is_well, seconds=30)
            await modern.until(await modern.start("print_report", {"year": 2026}), "completed")
            assert (await browser.get(address)).json() == {"status": "ok"}
    assert "writes to the storage are failing: " in served.program.output


async def test_only_what_is_written_ends_the_report_of_a_failure(tmp_path: Path) -> None:
    async with await open_storage(f"sqlite:///{tmp_path / 'full.db'}?max_bytes={ROOM}") as storage:
        assert storage.write_error is None
        _, error = await fill(storage, "first")
        assert storage.write_error is error
        assert isinstance(error, StorageFull)
        refused = await storage.commit([Insert(record=padded("first-0", 1000))], now=NOW)
        assert isinstance(refused, Refused)
        assert await storage.purge(until=NOW, limit=1) == []
        assert storage.write_error is error
        await storage.close()


class Counting(MemoryEngine):
    """Counts the commits."""

    commits = 0

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        self.commits += 1
        return await super().commit(changes, guard=guard, now=now)


async def test_while_writes_succeed_health_writes_nothing() -> None:
    async with Storage(engine := Counting()) as storage:
        await storage.commit([Insert(record=make_record("k"))], now=NOW)
        answers: list[Response] = [await Health(storage).response() for _ in range(3)]
    assert [each.status_code for each in answers] == [200] * 3
    assert engine.commits == 1
