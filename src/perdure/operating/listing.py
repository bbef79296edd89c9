"""Lists the tasks of all owners, and finds a task by its id."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from ..storage import Micros, Position, Record, Space, Storage, Tag, is_last_page
from ..tasks import Owner, Snapshot
from ..tasks.application_name import application_of
from ..tasks.errors import InvalidCursor, NotFound
from ..tasks.owner import partition_of
from ..tasks.task_record import TaskId, is_task_id
from ..tasks.task_snapshot import TASKS, task_address
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
    """The cursor to pass as `after` to get the next page. `None` if this is the last page."""


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
    """Return the task whose id is `text`, or the only task whose id starts with `text`.

    For a complete id, tasks are read, newest first, until the task is found. Tasks of the local user and of
    anonymous clients are usually found sooner: when the first task of an application is read, the id is also
    looked up directly among their tasks in this application.

    For a prefix, the ids of all tasks are compared, to make sure that only one matches. `max_scanned` limits
    the number of tasks that are read in both cases. A second match beyond that limit is not noticed.
    """
    if not is_task_id(text) or len(text) < MIN_PREFIX_LENGTH:
        raise IdTooShort(MIN_PREFIX_LENGTH)
    records = iterate_records(storage, TASKS, descending=True, max_records=max_scanned, now=now)
    found: list[Record] = []
    if len(text) >= TASK_ID_LENGTH:
        found += await _find_complete(storage, records, text, now)
    else:
        async for record in records:
            if record.key.startswith(text):
                found.append(record)
                if len(found) > 1:
                    raise AmbiguousId(text, sorted(record.key for record in found))
    if not found:
        raise NotFound
    return Snapshot.head_of(found[0])


async def _find_complete(
    storage: Storage, records: AsyncIterator[Record], task_id: TaskId, now: Micros
) -> list[Record]:
    applications: set[str] = set()
    async for record in records:
        if record.key == task_id:
            return [record]
        application = application_of(record.partition)
        if application not in applications:
            applications.add(application)
            if found := await _get_unowned(storage, application, task_id, now):
                return found
    return []


async def _get_unowned(storage: Storage, application: str, task_id: TaskId, now: Micros) -> list[Record]:
    """Return a list that contains the task if it belongs to the local user or an anonymous client."""
    owners = (Owner.local(), Owner.anonymous())
    addresses = [task_address(partition_of(application, owner, task_id), task_id) for owner in owners]
    return [each for each in await storage.get_many(addresses, now=now) if each is not None]
