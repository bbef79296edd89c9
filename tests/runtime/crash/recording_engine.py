"""A storage that notes every read and write of a task or lease, and may kill its process at one of them.

`journal:URL` opens the storage of that URL, whatever its engine, and passes everything on.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Sequence
from itertools import count
from random import uniform
from typing import Literal, TypeAlias
from zlib import crc32

import msgspec

from perdure.runtime.lease import LEASES
from perdure.storage import (
    Accepted,
    Address,
    Change,
    ChangeResult,
    Committed,
    Conflict,
    Delete,
    Engine,
    Guard,
    Insert,
    InsertIfAbsent,
    Kept,
    Micros,
    Record,
    Refused,
    Replace,
    Storage,
    open_storage,
    register_engine,
)
from perdure.tasks.task_snapshot import TASKS

from ...forwarding_engine import ForwardingEngine
from . import journal
from .journal import Edit, Got, Journal, Look

SCHEME = "journal"
SOON = 0.004
"""Seconds within which a commit has often been written and not yet been answered."""

Moment: TypeAlias = Literal["before", "during", "after"]


class Doom(msgspec.Struct, frozen=True):
    """Die at this commit: before it is asked for, while it is under way, or before anybody is told of it."""

    commit: int
    moment: Moment


def install(to: Journal, doom: Doom | None) -> None:
    """Let URLs of the scheme open recorded storages in this process."""
    _Recording.journal = to
    _Recording.doom = doom
    register_engine(SCHEME, f"{__name__}:open_engine", package="perdure")


async def open_engine(url: str) -> Engine:
    return _Recording(await open_storage(url.removeprefix(f"{SCHEME}:")))


class _Recording(ForwardingEngine):
    name = SCHEME
    journal: Journal
    doom: Doom | None = None
    numbers = count(1)
    """One for all storages of the process, as its journal is."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.lag = storage.lag

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        called = journal.now()
        found = await self.storage.get_many(addresses, now=now)
        for address, record in zip(addresses, found, strict=True):
            if address.space in RECORDED:
                look = None if record is None else look_at(record)
                self.journal.add(Got(called=called, place=place_of(address), look=look))
        return found

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        number = next(self.numbers)
        self._die_if(number, "before")
        at = [n for n, change in enumerate(changes) if change.address.space in RECORDED]
        edits = [_edit(changes[n]) for n in at]
        self.journal.add(journal.Committing(number=number, now=now, edits=edits))
        self._die_if(number, "during")
        result = await self.storage.commit(changes, guard=guard, now=now)
        self._die_if(number, "after")
        answers = [_number(result.results[n]) for n in at]
        is_done = isinstance(result, Committed)
        self.journal.add(journal.Committed(number=number, is_done=is_done, answers=answers))
        return result

    def _die_if(self, number: int, moment: Moment) -> None:
        if self.doom != Doom(number, moment):
            return
        self.journal.add(journal.Struck(victim=self.journal.who, how="doomed"))
        if moment == "during":
            asyncio.get_running_loop().call_later(uniform(0, SOON), die)
        else:
            die()


RECORDED = (TASKS, LEASES)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def place_of(address: Address) -> str:
    """Ids of tasks are random, so the partition need not be told."""
    return f"{address.space}/{address.key}"


class _Body(msgspec.Struct, frozen=True):
    """What of a task or a lease is judged."""

    attempts: int = 0
    held: bool = False
    variables: msgspec.Raw = msgspec.Raw(b"")
    holder: str | None = None
    until: int | None = None


_decoder = msgspec.json.Decoder(_Body)


def look_at(record: Record) -> Look:
    body = _decoder.decode(record.body)
    digest = hashlib.blake2b(record.body.encode(), digest_size=8).hexdigest()
    return Look(
        version=record.version,
        digest=digest,
        tag=record.tag,
        attempts=body.attempts,
        held=body.held,
        variables=crc32(body.variables),
        holder=body.holder,
        until=body.until,
    )


def _edit(change: Change) -> Edit:
    place = place_of(change.address)
    match change:
        case Insert(record=record):
            return Edit(place, "insert", None, look_at(record))
        case Replace(before=before, after=after):
            return Edit(place, "replace", look_at(before), look_at(after))
        case Delete(before=before):
            return Edit(place, "delete", look_at(before), None)
        case InsertIfAbsent():
            raise NotImplementedError("neither tasks nor leases are kept")


def _number(answer: ChangeResult) -> int:
    match answer:
        case Accepted(version=version) | Kept(version=version):
            return version
        case Conflict(actual=actual):
            return -actual
        case _:
            return 0
