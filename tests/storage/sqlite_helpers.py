"""What the tests of the SQLite engine share: files, child processes, and a look behind the engine."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote

from perdure.storage import Change, Committed, Record, Refused, Storage
from perdure.storage.kit.sample_records import NOW, make_record
from perdure.storage.sqlite import SqliteEngine

from .helpers import TIMEOUT

ROOT = Path(__file__).parents[2]


def url_of(path: Path, **options: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"sqlite:///{quote(str(path))}{'?' * bool(query)}{query}"


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder. Not while this process has one open: that would drop SQLite's locks."""
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def padded(key: str, size: int) -> Record:
    return make_record(key, body='"' + "x" * size + '"')


# Behind the engine


def engine_of(storage: Storage) -> SqliteEngine:
    engine = storage._engine
    assert isinstance(engine, SqliteEngine)
    return engine


def writing_connection(storage: Storage) -> sqlite3.Connection:
    return engine_of(storage)._writer._db


def trace(storage: Storage) -> list[str]:
    """The statements that the writer executes from now on, as they come."""
    statements: list[str] = []
    writing_connection(storage).set_trace_callback(statements.append)
    return statements


def engine_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("perdure-sqlite")]


@contextmanager
def locked(path: Path) -> Generator[Callable[[], None]]:
    """Hold the file's write lock; call what is yielded to release it."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")

    def release() -> None:
        if db.in_transaction:
            db.execute("ROLLBACK")

    try:
        yield release
    finally:
        db.close()


async def queued(
    storage: Storage, commits: Sequence[Sequence[Change]]
) -> list[asyncio.Task[Committed | Refused]]:
    """Commits that have reached the writer's queue; under `locked` they wait there."""
    tasks = [asyncio.create_task(storage.commit(changes, now=NOW)) for changes in commits]
    await asyncio.sleep(0)
    return tasks


# Child processes


class Child:
    """A process of one of the child scripts, which reads and prints lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def send(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            line = await self._process.stdout.readline()
        if not line:
            await self.end()
        return line.decode().rstrip("\n")

    async def end(self) -> list[str]:
        """Close its input, wait for its good end, and return the lines not yet read."""
        async with asyncio.timeout(TIMEOUT):
            output, complaint = await self._process.communicate(b"")
        if self._process.returncode or complaint:
            raise AssertionError(f"the child ended with {self._process.returncode}:\n{complaint.decode()}")
        return output.decode().splitlines()

    async def kill(self) -> list[str]:
        """End it with SIGKILL, whatever it is doing, and return the complete lines that it printed before."""
        if self.running:
            self._process.kill()
        output, _ = await self._process.communicate()
        return output.decode().rpartition("\n")[0].splitlines()

    async def death(self) -> int:
        """Wait for an end that is not a good one: what it was, as `returncode` says it."""
        async with asyncio.timeout(TIMEOUT):
            await self._process.communicate()
        return self._process.returncode or 0


@asynccontextmanager
async def child(verb: str, *arguments: object, script: str = "sqlite_process") -> AsyncGenerator[Child]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.storage.{script}", verb, *map(str, arguments)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    one = Child(process)
    try:
        yield one
    finally:
        if one.running:
            await one.kill()


async def output_of_process(verb: str, *arguments: object, script: str = "sqlite_process") -> list[str]:
    """Run a child to its end, and return the lines that it printed."""
    async with child(verb, *arguments, script=script) as one:
        return await one.end()
