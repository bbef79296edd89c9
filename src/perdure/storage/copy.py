"""Copy all records from one storage to another, then compare the copy with the source.

A state record in the target stores how far the copy has progressed. With it, an interrupted copy can resume,
while a target that contains other records is refused. All reads use `now=0`, a time at which no record has
expired, so expired records are copied too. No process may write to either storage during a copy.
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
"""Maximum number of commits in flight. They run concurrently because many of them contain only one record."""


class CopyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a copy, passed to `on_progress` after each page of records."""

    step: str
    """The current step: first `copied`, then `compared`."""
    space: Space
    records: int
    """Number of records in this space that this call of `copy_records` has copied or compared so far."""


ProgressCallback: TypeAlias = Callable[[CopyProgress], None]


class _CopyState(msgspec.Struct, frozen=True, kw_only=True, tag_field=FORMAT_FIELD, tag=1):
    """The body of the state record: the source of an unfinished copy, and the position it has reached."""

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
    """Copy all records in these spaces, and return the number of records in each space.

    `name` identifies the source: if the target contains an unfinished copy of it, resume that copy. If the
    target contains other records, raise TargetNotEmpty, unless `merge` is set. With `merge`, a record that
    exists in both storages must be equal in both.
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
    """Check that all records of the source were read, and that the target contains no other records."""
    expected = dict(await source.counts(space, now=_EPOCH))
    actual = dict(await target.counts(space, now=_EPOCH))
    if sum(expected.values()) != records:
        reason = f"the source reports {expected} records by tag, but {records} records were read"
        raise CopyMismatch(space, "", "", f"{reason}; stop all processes that write to the source")
    if not merge and expected != actual:
        reason = f"the source reports {expected} records by tag, but the target reports {actual}"
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
    """Yield groups of records that fit into one commit each."""
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
    """Load the state of an unfinished copy, or start a new copy. Return the state and its record."""
    record = await target.get(_STATE_ADDRESS, now=_EPOCH)
    if record is not None:
        state = _decode_state(record)
        if state.source != name or state.space not in spaces:
            raise TargetNotEmpty(f"the target contains an unfinished copy of {state.source}; finish it first")
        return state, record
    if not merge:
        for space in spaces:
            if await target.page(space, limit=1, now=_EPOCH):
                reason = f"space {space!r} of the target already contains records"
                raise TargetNotEmpty(f"{reason}; use an empty target, or merge", can_merge=True)
    state = _CopyState(source=name, space=spaces[0])
    space, partition, key = _STATE_ADDRESS
    record = Record(space=space, partition=partition, key=key, order=0, body=_format.encode(state))
    await _commit_state(target, Insert(record=record))
    return state, record


def _decode_state(record: Record) -> _CopyState:
    try:
        return _format.decode(record.key, record.body)
    except StorageCorrupt as error:
        reason = f"the stored state of an unfinished copy cannot be read: {error}"
        raise StorageCorrupt(f"{reason}; empty the target and copy again") from error


async def _commit_state(target: Storage, change: Change) -> None:
    """Change the state record. Raise TargetNotEmpty if another copy has changed it."""
    if not isinstance(await target.commit([change], now=_EPOCH), Committed):
        raise TargetNotEmpty("another copy into this target is running; wait until it has finished")
