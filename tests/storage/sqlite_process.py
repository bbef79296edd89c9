"""Run an operation of the SQLite tests in another process: `python -m tests.storage.sqlite_process VERB`."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from perdure.storage import Storage, open_storage
from perdure.storage.errors import StorageError
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, insert_each, make_record

from .helpers import keys_of
from .sqlite_helpers import padded

UNPRIVILEGED = 65534


def say(line: object) -> None:
    print(line, flush=True)


async def next_line() -> str:
    return (await asyncio.to_thread(sys.stdin.readline)).rstrip("\n")


async def keys(url: str) -> None:
    """Print the keys of the records that this process reads."""
    async with await open_storage(url) as storage:
        say(json.dumps(await keys_of(storage)))


async def put_keys(url: str) -> None:
    """Open the storage, and insert a record for each key that is read."""
    async with await open_storage(url) as storage:
        say("ready")
        while key := await next_line():
            await insert_each(storage, make_record(key))
            say(key)


async def open_at_once(name: str) -> None:
    """Open each URL that is read, insert a record, and close after the next line."""
    while url := await next_line():
        try:
            storage = await open_storage(url)
        except StorageError as error:
            say(repr(error))
            return
        await insert_each(storage, make_record(name))
        say("open")
        await next_line()
        await storage.close()
        say("closed")


async def come_and_go(url: str, name: str, times: str) -> None:
    """Open, put a record, read and close, again and again."""
    for n in range(int(times)):
        async with await open_storage(url) as storage:
            await insert_each(storage, make_record(f"{name}-{n}"))
            await storage.page(SPACE, PARTITION, limit=1, now=NOW)


async def lock(path: str) -> None:
    """Hold the write lock until the next line."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    say("locked")
    await next_line()
    db.execute("ROLLBACK")
    db.close()


async def spoil_first_page(path: str) -> None:
    """Damage an open file from outside; in its own process that would drop SQLite's locks."""
    with Path(path).open("r+b") as file:  # noqa: ASYNC230
        file.write(b"garbage!" * 512)


async def without_rights(url: str) -> None:
    """Open as a user without the rights of root, and print the result."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)
    try:
        storage = await open_storage(url)
    except StorageError as error:
        say(type(error).__name__)
    else:
        await storage.close()
        say("opened")


async def die_making_the_file(url: str, max_bytes: str) -> None:
    """Open a new file, and be killed by the kernel when a file outgrows so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_files(int(max_bytes))
    await open_storage(url)


async def outgrow(url: str, max_bytes: str) -> None:
    """Insert records until the file system refuses. Print how many were acknowledged, and the error.

    Then print how many more were stored when there was room again.
    """
    async with await open_storage(url) as storage:
        limit_files(int(max_bytes))
        count, error = await fill(storage, "before")
        say(json.dumps([count, type(error).__name__]))
        limit_files(resource.RLIM_INFINITY)
        await insert_each(storage, padded("after", 1000))
        say(json.dumps(len((await storage.maintain()).findings)))


async def fill(storage: Storage, prefix: str) -> tuple[int, BaseException]:
    """Put records of a kilobyte until one does not fit: how many did, and the error."""
    for n in range(10_000):
        try:
            await insert_each(storage, padded(f"{prefix}-{n}", 1000))
        except Exception as error:
            return n, error
    raise AssertionError("ten thousand records fit")


def limit_files(max_bytes: int) -> None:
    """Let the kernel refuse to write beyond so many bytes of any file."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))


VERBS: dict[str, Callable[..., Awaitable[None]]] = {
    each.__name__: each
    for each in (
        keys,
        put_keys,
        open_at_once,
        come_and_go,
        lock,
        spoil_first_page,
        without_rights,
        die_making_the_file,
        outgrow,
    )
}


async def main(verb: str, *arguments: str) -> None:
    await VERBS[verb](*arguments)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
