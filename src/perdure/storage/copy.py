"""Copies all records from one storage to another, then compares the copy with the source.

A state record in the target stores the progress, so that an interrupted copy can be resumed. A target that
contains records but no state record is refused, unless `merge` is set. All reads use `now=0`, a time at which
no record has expired, so all records are copied. No process may write to either storage during a copy.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from .body_format import FORMAT_FIELD, BodyFormat
from .errors import CopyMismatch, StorageCorrupt, TargetNotEmpty
from .limits import MAX_CHANGES, MAX_COMMIT_BYTES
from .records_and_changes import (
    Address,
    Change,
    Committed,
    Delete,
    Insert,
    InsertIfAbsent,
    Micros,
    Position,
    Record,
    Space,
)
from .storage import Storage

COPIES = Space("copies")
_STATE_ADDRESS = Address(COPIES, "perdure", "under-way")
_EPOCH: Micros = 0
PAGE_SIZE = 100
MAX_CONCURRENT_COMMITS = 16
"""Maximum number of concurrent commits. Many commits are small, so running them one by one would be slow."""


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a copy, passed to `on_progress` after each page of records."""

    step: str
    """The current step: `copied` while records are copied, then `compared` while the copy is checked."""
    space: Space
    records: int
    """Number of records in `space` that this call to `copy_records` has processed in this step so far."""


ProgressCallback: TypeAlias = Callable[[CopyProgress], None]


class _CopyState(msgspec.Struct, frozen=True, kw_only=True, tag_field=FORMAT_FIELD, tag=1):
    """The body of the state record: the source of an unfinished copy, and the position reached so far."""

    source: str
    space: Space
    after: Position | None = None


_format = BodyFormat(_CopyState)


async def copy_records(
    source: Storage,
    target: Storage,
    spaces: Sequence[Space],
    *,
    name: str,
    merge: bool = False,
    on_progress: ProgressCallback = lambda _: None,
) -> Mapping[Space, int]:
    """Copy all records in `spaces` from `source` to `target`. Return the number of records in each space.

    `name` identifies the source. If the target contains an unfinished copy from this source, resume the copy.
    If the target contains other records, raise TargetNotEmpty, unless `merge` is set. With `merge`, a record
    that exists in both storages must be the same in both.
    """
    await asyncio.sleep(max(source.lag, target.lag))
    state, record = await _load_state(target, spaces, name, merge=merge)
    for space in spaces[spaces.index(state.space) :]:
        copied = 0
        async for page in _pages(source, space, state.after if space == state.space else None):
            await _write_page(target, page)
            state = _CopyState(source=name, space=space, after=page[-1].position)
            change = record.replace_with(body=_format.encode(state), tag="")
            await _commit_state(target, change)
            record = change.after
            copied += len(page)
            on_progress(CopyProgress(step="copied", space=space, records=copied))
    await asyncio.sleep(target.lag)
    compared = {space: await _compare_space(source, target, space, on_progress) for space in spaces}
    for space, records in compared.items():
        await _compare_counts(source, target, space, records, merge=merge)
    await _commit_state(target, Delete(before=record))
    return compared


async def _compare_space(
    source: Storage, target: Storage, space: Space, on_progress: ProgressCallback
) -> int:
    records = 0
    async for page in _pages(source, space, None):
        stored = await target.get_many([record.address for record in page], now=_EPOCH)
        for record, copied in zip(page, stored, strict=True):
            if record != copied:
                raise CopyMismatch(record.space, record.partition, record.key)
        records += len(page)
        on_progress(CopyProgress(step="compared", space=space, records=records))
    return records


async def _compare_counts(
    source: Storage, target: Storage, space: Space, records: int, *, merge: bool
) -> None:
    """Check that all source records were read.

    Without `merge`, also check that the target has no other records.
    """
    expected = dict(await source.counts(space, now=_EPOCH))
    actual = dict(await target.counts(space, now=_EPOCH))
    if sum(expected.values()) != records:
        reason = f"the source reports {sum(expected.values())} records, but {records} records were read"
        raise CopyMismatch(space, "", "", f"{reason}; stop all processes that write to the source")
    if not merge and expected != actual:
        reason = f"the numbers of records by tag differ: {expected} in the source, {actual} in the target"
        raise CopyMismatch(space, "", "", reason)


async def _pages(source: Storage, space: Space, after: Position | None) -> AsyncIterator[list[Record]]:
    while page := await source.page(space, after=after, limit=PAGE_SIZE, now=_EPOCH):
        yield page
        after = page[-1].position


async def _write_page(target: Storage, page: Sequence[Record]) -> None:
    """Insert the records of a page. Skip records that were written before the copy was interrupted."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_COMMITS)

    async def write(records: Sequence[Record]) -> None:
        async with slots:
            await target.commit([InsertIfAbsent(record=record) for record in records], now=_EPOCH)

    commits = _split_into_commits(page)
    results = await asyncio.gather(*(write(records) for records in commits), return_exceptions=True)
    for result in results:
        if result is not None:
            raise result


def _split_into_commits(page: Sequence[Record]) -> Iterator[list[Record]]:
    """Split the records of a page into groups. Each group fits into one commit."""
    partitions: defaultdict[str, list[Record]] = defaultdict(list)
    for record in page:
        partitions[record.partition].append(record)
    for records in partitions.values():
        batch: list[Record] = []
        size = 0
        for record in records:
            length = len(record.body.encode())
            if batch and (len(batch) == MAX_CHANGES or size + length > MAX_COMMIT_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(record)
            size += length
        yield batch


# The state record


async def _load_state(
    target: Storage, spaces: Sequence[Space], name: str, *, merge: bool
) -> tuple[_CopyState, Record]:
    """Load the state of an unfinished copy, or start a new copy. Return the state and the state record."""
    record = await target.get(_STATE_ADDRESS, now=_EPOCH)
    if record is not None:
        state = _decode_state(record)
        if state.source != name or state.space not in spaces:
            problem = f"the target contains an unfinished copy of {state.source}"
            raise TargetNotEmpty(f"{problem}; run that copy again to finish it")
        return state, record
    if not merge:
        for space in spaces:
            if await target.page(space, limit=1, now=_EPOCH):
                problem = f"space {space!r} of the target already contains records"
                raise TargetNotEmpty(f"{problem}; use an empty target, or merge the records", can_merge=True)
    state = _CopyState(source=name, space=spaces[0])
    space, partition, key = _STATE_ADDRESS
    record = Record(space=space, partition=partition, key=key, order=0, body=_format.encode(state))
    await _commit_state(target, Insert(record=record))
    return state, record


def _decode_state(record: Record) -> _CopyState:
    try:
        return _format.decode(record.key, record.body)
    except StorageCorrupt as error:
        remedy = "empty the target and copy again"
        raise StorageCorrupt(f"the state of an unfinished copy cannot be read: {error}; {remedy}") from error


async def _commit_state(target: Storage, change: Change) -> None:
    """Apply `change` to the state record. Raise TargetNotEmpty if another copy has changed that record."""
    if not isinstance(await target.commit([change], now=_EPOCH), Committed):
        raise TargetNotEmpty("another copy into this target is running; wait until it has finished")
