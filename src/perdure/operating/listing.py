"""Lists the tasks of all owners, and finds a task by its id."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ..storage import Micros, Position, Record, Space, Storage, Tag, is_last_page
from ..tasks import Owner, Snapshot
from ..tasks.errors import InvalidCursor, NotFound
from ..tasks.owner import partition_of
from ..tasks.stored_task import TASKS, task_address
from ..tasks.task_record import TaskId, is_task_id
from .errors import AmbiguousId, IdTooShort
from .locators import Sealer
from .views import NewerTask, TaskSummary

MIN_PREFIX_LENGTH = 6
TASK_ID_LENGTH = 32
"""Number of characters in a generated task id. A shorter string is treated as a prefix."""
PAGE_SIZE = 200

_position_decoder = msgspec.json.Decoder(Position)


class TaskSummaryPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of task summaries, newest first."""

    tasks: tuple[TaskSummary, ...]
    corrupt: tuple[str, ...] = ()
    """The ids of the damaged tasks on this page."""
    newer: tuple[NewerTask, ...] = ()
    """The tasks on this page that were written by a newer version of perdure."""
    next_cursor: str | None = None
    """The cursor to pass as `after` to get the next page. None if this is the last page."""


def encode_cursor(position: Position | None, sealer: Sealer) -> str | None:
    return None if position is None else sealer.seal(msgspec.json.encode(position).decode())


def decode_cursor(cursor: str | None, sealer: Sealer) -> Position | None:
    if cursor is None:
        return None
    plain = sealer.unseal(cursor)
    if plain is None:
        raise InvalidCursor
    return _position_decoder.decode(plain)


async def iterate_records(
    storage: Storage,
    space: Space,
    *,
    tag: Tag | None = None,
    descending: bool = False,
    max_records: int | None = None,
    now: Micros,
) -> AsyncIterator[Record]:
    """Yield up to `max_records` records of a space, oldest first unless `descending` is set."""
    after: Position | None = None
    seen = 0
    while max_records is None or seen < max_records:
        size = PAGE_SIZE if max_records is None else min(PAGE_SIZE, max_records - seen)
        records = await storage.page(space, after=after, limit=size, tag=tag, descending=descending, now=now)
        for record in records:
            yield record
        if is_last_page(records, size):
            return
        seen += len(records)
        after = records[-1].position


async def find(storage: Storage, text: str, *, max_scanned: int | None = None, now: Micros) -> Snapshot:
    """Return the task with this id, or the only task whose id starts with `text`.

    A complete id is found with one read if the task belongs to the local user or to an anonymous client. Any
    other complete id is searched for among all tasks, newest first. A prefix is compared with the ids of all
    tasks, to make sure that it is unique. `max_scanned` limits the number of tasks that are read.
    """
    if not is_task_id(text) or len(text) < MIN_PREFIX_LENGTH:
        raise IdTooShort(MIN_PREFIX_LENGTH)
    is_complete = len(text) >= TASK_ID_LENGTH
    if is_complete and (direct := await _get_unowned(storage, text, now)) is not None:
        return direct
    found: list[Record] = []
    async for record in iterate_records(storage, TASKS, descending=True, max_records=max_scanned, now=now):
        if record.key.startswith(text):
            found.append(record)
            if is_complete or len(found) > 1:
                break
    if not found:
        raise NotFound
    if len(found) > 1:
        raise AmbiguousId(text, sorted(record.key for record in found))
    return Snapshot.from_record(found[0])


async def _get_unowned(storage: Storage, task_id: TaskId, now: Micros) -> Snapshot | None:
    """Return the task with this id if it belongs to the local user or an anonymous client, else None."""
    owners = (Owner.local(), Owner.anonymous())
    addresses = [task_address(partition_of(owner, task_id), task_id) for owner in owners]
    records = await storage.get_many(addresses, now=now)
    return next((Snapshot.from_record(record) for record in records if record is not None), None)
