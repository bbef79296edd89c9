"""Starts the kit's child processes, which run the program `child_main`, and reads their results."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

import msgspec

from ..records_and_changes import Committed
from ..storage import Storage
from .check_framework import ContractViolation, Subject
from .sample_records import NOW, make_record

MAX_ATTEMPTS = 20_000
"""Maximum number of attempts by one writer to replace the record. A correct engine needs far fewer."""


class ChildJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a child process. The process reads the job from standard input, as one line."""

    url: str
    plugin: str | None
    rounds: int
    """Number of versions to compete for. If it is 0, the child inserts records until it is killed."""


async def contend(storage: Storage, rounds: int) -> list[int]:
    """Compete with other writers to replace a record, until its version is higher than `rounds`.

    Return the versions that this writer replaced.
    """
    won: list[int] = []
    for _ in range(MAX_ATTEMPTS):
        record = await storage.get(make_record("contended").address, now=NOW)
        if record is None or record.version > rounds:
            return won
        result = await storage.commit([record.replace_with(body="{}", tag="")], now=NOW)
        if isinstance(result, Committed):
            won.append(record.version)
    raise ContractViolation(
        f"after {MAX_ATTEMPTS} attempts of one writer, all writers together had written fewer than {rounds} "
        "versions"
    )


async def start_child(subject: Subject, rounds: int) -> Process:
    """Start a child process that opens the URL of the subject. For `rounds`, see `ChildJob`."""
    command = (sys.executable, "-m", "perdure.storage.kit.child_main")
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    if process.stdin is not None:
        job = ChildJob(url=subject.url or "", plugin=subject.plugin, rounds=rounds)
        process.stdin.write(msgspec.json.encode(job) + b"\n")
    return process


async def contend_in_children(subject: Subject, rounds: int, count: int) -> list[list[int]]:
    """Run `contend` in `count` processes at the same time. Return the versions that each process replaced."""
    processes = await asyncio.gather(*[start_child(subject, rounds) for _ in range(count)])
    try:
        for process in processes:
            await read_line(process)
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
    return await asyncio.gather(*[_read_result(process) for process in processes])


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
