"""Child processes of the kit: their jobs, how they are started, and how their output is read."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from itertools import count

import msgspec

from ..port import Storage
from ..record import Committed, Insert
from .sample_records import NOW, make_record, require_committed
from .suite import ContractViolation

MAX_ATTEMPTS = 20_000
"""Far more than a writer needs with a correct engine. A faulty one does not block the kit forever."""


class ChildJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a child process, which it reads as one line from its standard input."""

    url: str
    plugin: str | None
    rounds: int
    """How many versions to compete for. 0 means: insert records until killed, and print each commit."""


async def contend(storage: Storage, rounds: int) -> list[int]:
    """Compete with other writers to replace each version of one record.

    Return the versions this writer won.
    """
    won: list[int] = []
    for _ in range(MAX_ATTEMPTS):
        record = await storage.get(make_record("contended").address, now=NOW)
        if record is None or record.version > rounds:
            return won
        result = await storage.commit([record.replace_with(body="{}", tag="")], now=NOW)
        if isinstance(result, Committed):
            won.append(record.version)
    raise ContractViolation(f"{rounds} versions were not written in {MAX_ATTEMPTS} attempts")


async def insert_until_killed(storage: Storage) -> None:
    """Commit three records at a time, and print each commit after it has returned."""
    for number in count():
        name = f"{number}!"
        changes = [Insert(record=make_record(f"{name}{n}", order=number, tag=str(n))) for n in range(3)]
        require_committed(await storage.commit(changes, now=NOW))
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


async def start_child(job: ChildJob) -> Process:
    command = (sys.executable, "-m", "perdure.storage.kit")
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    if process.stdin is not None:
        process.stdin.write(msgspec.json.encode(job) + b"\n")
    return process


async def run_children(job: ChildJob, count: int) -> list[list[int]]:
    """Run `count` processes, which start together when all are ready.

    Return the versions that each has won.
    """
    processes = await asyncio.gather(*[start_child(job) for _ in range(count)])
    try:
        for process in processes:
            await read_line(process)
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
    return await asyncio.gather(*[_read_result(process) for process in processes])


def report_ready() -> None:
    """In a child process: print that it is ready, and return when all processes are."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


async def _read_result(process: Process) -> list[int]:
    output, errors = await process.communicate()
    if process.returncode:
        raise ContractViolation(f"a child process failed:\n{errors.decode()}")
    return msgspec.json.decode(output, type=list[int])


async def read_line(process: Process) -> str:
    line = await process.stdout.readline() if process.stdout is not None else b""
    if not line and process.stderr is not None:
        raise ContractViolation(f"a child process failed:\n{(await process.stderr.read()).decode()}")
    return line.decode().strip()


async def read_rest(process: Process) -> list[str]:
    output, _ = await process.communicate()
    return output.decode().splitlines()
