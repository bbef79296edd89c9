"""Copying everything from one storage to another: in order, resumable, and compared to the byte afterwards.

A note in the target tells how far the copy has come. It is why an interrupted copy can go on, and how a
half-copied target is told from one that holds something else. Records are read at the beginning of time,
when none has expired; so those that wait for a purge are copied too. Nobody may write to either side
meanwhile: what changed in the source is found by the comparison, and is an error.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from .body import FORMAT_FIELD, BodyFormat
from .errors import CopyDiffers, StorageCorrupt, TargetNotEmpty
from .port import MOST_BYTES, MOST_CHANGES, Storage
from .record import Address, Committed, Delete, Insert, Keep, Micros, Position, Record, Space, Tag

COPIES = Space("copies")
_NOTE = Address(COPIES, "perdure", "under-way")
_BEGINNING: Micros = 0
PAGE = 100
AT_ONCE = 16
"""Commits under way at a time: each is of one partition, and often of one record."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy has come."""

    step: str
    """`copied` or `compared`."""
    space: Space
    records: int
    """Of this space, in this call."""


Told: TypeAlias = Callable[[Progress], None]


class _Note(msgspec.Struct, frozen=True, kw_only=True, tag_field=FORMAT_FIELD, tag=1):
    """What the target says of a copy that is under way."""

    source: str
    space: Space
    after: Position | None = None


_format = BodyFormat(_Note)


async def copy(
    source: Storage,
    target: Storage,
    spaces: Sequence[Space],
    *,
    name: str,
    merge: bool = False,
    tell: Told = lambda _: None,
) -> Mapping[Space, int]:
    """Copy all records of these spaces; how many there are of each.

    A copy that was interrupted goes on where it stood if it has the same `name`, which says where it is from.
    A target that holds anything else is refused, unless `merge`: then records that are there already must be
    the same.
    """
    await asyncio.sleep(max(source.lag, target.lag))
    note = await _begin(target, spaces, name, merge=merge)
    for space in spaces[spaces.index(note.space) :]:
        note = await _copy_space(source, target, _at(note, space), tell)
    await asyncio.sleep(target.lag)
    compared = {space: await _compare_space(source, target, space, tell) for space in spaces}
    for space, records in compared.items():
        await _compare_counts(source, target, space, records, merge=merge)
    await _end(target)
    return compared


def _at(note: _Note, space: Space) -> _Note:
    return note if note.space == space else _Note(source=note.source, space=space)


async def _copy_space(source: Storage, target: Storage, note: _Note, tell: Told) -> _Note:
    records = 0
    async for page in _pages(source, note.space, note.after):
        await _write(target, page)
        note = _Note(source=note.source, space=note.space, after=page[-1].position)
        await _write_note(target, note)
        records += len(page)
        tell(Progress(step="copied", space=note.space, records=records))
    return note


async def _compare_space(source: Storage, target: Storage, space: Space, tell: Told) -> int:
    records = 0
    async for page in _pages(source, space, None):
        there = await target.get_many([record.address for record in page], now=_BEGINNING)
        for record, copied in zip(page, there, strict=True):
            if record != copied:
                raise CopyDiffers(record.space, record.partition, record.key)
        records += len(page)
        tell(Progress(step="compared", space=space, records=records))
    return records


async def _compare_counts(
    source: Storage, target: Storage, space: Space, records: int, *, merge: bool
) -> None:
    """The walk has met everything, and nothing else is there."""
    wanted, got = await _counts(source, space), await _counts(target, space)
    if sum(wanted.values()) != records:
        raise CopyDiffers(space, "", "", f"the source counts {wanted}, and {records} were met")
    if not merge and wanted != got:
        raise CopyDiffers(space, "", "", f"the source counts {wanted}, the target {got}")


async def _counts(storage: Storage, space: Space) -> dict[Tag, int]:
    return dict(await storage.counts(space, now=_BEGINNING))


async def _pages(source: Storage, space: Space, after: Position | None) -> AsyncIterator[list[Record]]:
    while page := await source.page(space, after=after, limit=PAGE, now=_BEGINNING):
        yield page
        after = page[-1].position


async def _write(target: Storage, page: Sequence[Record]) -> None:
    """Keep, not insert: the page may have been written before a copy was interrupted."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def write(records: Sequence[Record]) -> None:
        async with slots:
            await target.commit([Keep(record=record) for record in records], now=_BEGINNING)

    results = await asyncio.gather(*(write(records) for records in _commits(page)), return_exceptions=True)
    for result in results:
        if result is not None:
            raise result


def _commits(page: Sequence[Record]) -> Iterator[list[Record]]:
    """The same records in as few commits as the contract allows."""
    partitions: defaultdict[str, list[Record]] = defaultdict(list)
    for record in page:
        partitions[record.partition].append(record)
    for records in partitions.values():
        some: list[Record] = []
        size = 0
        for record in records:
            length = len(record.body.encode())
            if some and (len(some) == MOST_CHANGES or size + length > MOST_BYTES):
                yield some
                some, size = [], 0
            some.append(record)
            size += length
        yield some


# The note


async def _begin(target: Storage, spaces: Sequence[Space], name: str, *, merge: bool) -> _Note:
    record = await target.get(_NOTE, now=_BEGINNING)
    if record is not None:
        note = _read(record)
        if note.source != name or note.space not in spaces:
            raise TargetNotEmpty(f"a copy of {note.source} is under way there; finish that first")
        return note
    if not merge:
        for space in spaces:
            if await target.page(space, limit=1, now=_BEGINNING):
                remedy = "copy to an empty storage, or ask to merge"
                raise TargetNotEmpty(f"there are records in {space!r} already; {remedy}")
    note = _Note(source=name, space=spaces[0])
    body = _format.encode(note)
    result = await target.commit(
        [Insert(record=Record(space=COPIES, partition=_NOTE.partition, key=_NOTE.key, order=0, body=body))],
        now=_BEGINNING,
    )
    if not isinstance(result, Committed):
        raise TargetNotEmpty("somebody else copies into it at the same time")
    return note


async def _write_note(target: Storage, note: _Note) -> None:
    record = await _note_record(target)
    result = await target.commit([record.becoming(body=_format.encode(note), tag="")], now=_BEGINNING)
    if not isinstance(result, Committed):
        raise TargetNotEmpty("somebody else copies into it at the same time")


async def _end(target: Storage) -> None:
    await target.commit([Delete(before=await _note_record(target))], now=_BEGINNING)


async def _note_record(target: Storage) -> Record:
    record = await target.get(_NOTE, now=_BEGINNING)
    if record is None:
        raise TargetNotEmpty("somebody else copies into it at the same time")
    return record


def _read(record: Record) -> _Note:
    try:
        return _format.decode(record.key, record.body)
    except StorageCorrupt as error:
        raise StorageCorrupt(f"the note of a copy under way cannot be read: {error}") from error
