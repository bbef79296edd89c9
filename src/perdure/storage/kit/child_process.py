"""Processes that the kit starts to contend with it: what they are told, what they do, how they are read."""

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
"""Far more than any writer needs, so that a broken engine does not hold up the kit for ever."""


class ChildJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told on its standard input, in one line."""

    url: str
    plugin: str | None
    rounds: int
    """How many versions to fight for; 0: insert records until killed, telling each commit."""


async def contend(storage: Storage, rounds: int) -> list[int]:
    """Replace the contended record as soon as each version appears; the versions that this writer won."""
    won: list[int] = []
    for _ in range(MAX_ATTEMPTS):
        record = await storage.get(make_record("contended").address, now=NOW)
        if record is None or record.version > rounds:
            return won
        result = await storage.commit([record.replace_with(body="{}", tag="")], now=NOW)
        if isinstance(result, Committed):
            won.append(record.version)
    raise ContractViolation(f"{rounds} versions were not won in {MAX_ATTEMPTS} tries")


async def insert_until_killed(storage: Storage) -> None:
    """Commit three records at a time, and tell of each commit once it has returned."""
    for number in count():
        name = f"{number}!"
        changes = [Insert(record=make_record(f"{name}{n}", order=number, tag=str(n))) for n in range(3)]
        require_committed(await storage.commit(changes, now=NOW))
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


async def start_child(contest: ChildJob) -> Process:
    command = (sys.executable, "-m", "perdure.storage.kit")
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    if process.stdin is not None:
        process.stdin.write(msgspec.json.encode(contest) + b"\n")
    return process


async def run_children(contest: ChildJob, count: int) -> list[list[int]]:
    """The versions that each of so many processes won. None begins before all of them are ready."""
    processes = await asyncio.gather(*[start_child(contest) for _ in range(count)])
    try:
        for process in processes:
            await read_line(process)
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
    return await asyncio.gather(*[_read_result(process) for process in processes])


def report_ready() -> None:
    """Tell so, as a process that was started, and return when all are."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


async def _read_result(process: Process) -> list[int]:
    answer, complaint = await process.communicate()
    if process.returncode:
        raise ContractViolation(f"a contending process failed:\n{complaint.decode()}")
    return msgspec.json.decode(answer, type=list[int])


async def read_line(process: Process) -> str:
    line = await process.stdout.readline() if process.stdout is not None else b""
    if not line and process.stderr is not None:
        raise ContractViolation(f"a writing process failed:\n{(await process.stderr.read()).decode()}")
    return line.decode().strip()


async def read_rest(process: Process) -> list[str]:
    answer, _ = await process.communicate()
    return answer.decode().splitlines()
