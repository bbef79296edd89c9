"""Paginated lists of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from heapq import merge
from itertools import islice, takewhile

import msgspec

from ..storage import (
    MAX_PAGE_BYTES,
    Micros,
    Position,
    Record,
    Storage,
    Tag,
    is_last_page,
)
from ..storage.errors import NotReadableHere
from .canonical_json import check_text
from .cursor import CursorScope, decode_cursor, encode_cursor
from .encryption import Keyring
from .errors import CorruptRecord, InvalidValue
from .lifecycle import Status
from .task_record import TaskRecord
from .task_snapshot import TASKS, Snapshot, tags_of

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200
MAX_RECORDS_EXAMINED = 1000
"""Maximum number of records that one call examines. It limits the cost of filters without an index."""


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for task lists. A field that is `None` matches every task.

    Only `status` is indexed. If another field is set, a page can be short or even empty although more tasks
    match.
    """

    status: Status | None = None
    method: str | None = None
    session_id: str | None = None

    def validate(self) -> None:
        for field, name in (("method", self.method), ("session_id", self.session_id)):
            if name is not None:
                check_text(field, name)

    @property
    def tags(self) -> tuple[Tag | None, ...]:
        return (None,) if self.status is None else tags_of(self.status)

    @property
    def is_indexed(self) -> bool:
        return self.method is None and self.session_id is None

    def matches(self, task: TaskRecord) -> bool:
        return self.method in (None, task.original_method) and self.session_id in (None, task.session_id)


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of tasks, with the errors for records on it that cannot be read."""

    tasks: tuple[Snapshot, ...]
    corrupt: tuple[CorruptRecord, ...] = ()
    """One error for each damaged record on this page."""
    not_readable: tuple[NotReadableHere, ...] = ()
    """One error for each intact record on this page that this process cannot read, for example because it
    lacks the key to decrypt the record."""
    next_cursor: str | None = None
    """The cursor of the next page. None if there are no more tasks."""


async def page_of_tags(
    storage: Storage,
    tags: Collection[Tag | None],
    *,
    partition: str | None = None,
    after: Position | None,
    limit: int,
    descending: bool,
    now: Micros,
) -> tuple[list[Record], bool]:
    """Return a page of the task records that have one of these tags, and whether it is the last page.

    A tag is the label by which the storage indexes a record. If `tags` contains None, all records are
    returned.

    Each tag is queried separately, and the results are merged in the order of the list. If a query did not
    return all records of its tag, the missing ones may belong before later records of other tags. The page
    therefore ends no later than the last record of such a query, and the next page continues from there.
    """
    pages = await asyncio.gather(
        *(
            storage.page(TASKS, partition, after=after, limit=limit, tag=tag, descending=descending, now=now)
            for tag in tags
        )
    )
    merged = merge(*pages, key=lambda record: record.position, reverse=descending)
    ends = [page[-1].position for page in pages if not is_last_page(page, limit)]
    if ends:
        end = max(ends) if descending else min(ends)
        merged = takewhile(
            lambda record: (record.position >= end) if descending else (record.position <= end), merged
        )
    found = list(islice(merged, limit))
    return found, not ends and len(found) < limit


async def list_tasks(
    storage: Storage,
    partition: str,
    task_filter: TaskFilter,
    *,
    cursor: str | None,
    cursor_key: bytes,
    limit: int,
    newest_first: bool,
    keys: Keyring,
    now: Micros,
) -> TaskPage:
    """Return the page of tasks to which `cursor` refers, or the first page if `cursor` is None."""
    task_filter.validate()
    scope = CursorScope(
        partition=partition,
        status=task_filter.status,
        method=task_filter.method,
        session_id=task_filter.session_id,
        newest_first=newest_first,
    )
    scan = await scan_tasks(
        storage,
        task_filter.tags,
        matches=None if task_filter.is_indexed else task_filter.matches,
        partition=partition,
        after=None if cursor is None else decode_cursor(cursor, scope, cursor_key),
        limit=limit,
        descending=newest_first,
        read=lambda record: Snapshot.from_record(record, keys),
        now=now,
    )
    end = scan.next_position
    return TaskPage(
        tasks=tuple(scan.found),
        corrupt=tuple(scan.corrupt),
        not_readable=tuple(error for _, error in scan.not_readable),
        next_cursor=None if end is None else encode_cursor(end, scope, cursor_key),
    )


class TaskScan:
    """The result of a scan: the tasks that it found, and the records that it could not read."""

    def __init__(self, after: Position | None) -> None:
        self.found: list[Snapshot] = []
        self.corrupt: list[CorruptRecord] = []
        self.not_readable: list[tuple[Record, NotReadableHere]] = []
        self.next_position = after
        """The position after which the next scan must continue. None if there are no more records."""

    @property
    def size(self) -> int:
        return len(self.found) + len(self.corrupt) + len(self.not_readable)

    def add(self, record: Record, read: Snapshot | CorruptRecord | NotReadableHere) -> None:
        match read:
            case Snapshot():
                self.found.append(read)
            case CorruptRecord():
                self.corrupt.append(read)
            case NotReadableHere():
                self.not_readable.append((record, read))


async def scan_tasks(
    storage: Storage,
    tags: Collection[Tag | None],
    *,
    matches: Callable[[TaskRecord], bool] | None,
    partition: str | None = None,
    after: Position | None,
    limit: int,
    max_chars: int = MAX_PAGE_BYTES,
    descending: bool,
    read: Callable[[Record], Snapshot],
    now: Micros,
) -> TaskScan:
    """Scan for up to `limit` tasks whose tag is in `tags` and that `matches` accepts.

    If `tags` contains None, tasks with any tag are scanned. If `matches` is None, all tasks are accepted.
    Records that `read` cannot decode are also part of the result, and count toward `limit`. The scan can stop
    before it has found `limit` tasks: it examines at most 1,000 records, and reads no more of them after
    their bodies have reached `max_chars` characters.
    """
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE_SIZE:
        raise InvalidValue("limit", f"must be an integer from 1 to {MAX_PAGE_SIZE}, not {limit}")
    scan = TaskScan(after)
    examined = chars = 0
    while examined < MAX_RECORDS_EXAMINED and chars < max_chars:
        # One extra record shows whether there is a next page. With a filter, most records may not match, so
        # many are read at once.
        page_size = limit + 1 - scan.size if matches is None else MAX_PAGE_SIZE
        records, is_last = await page_of_tags(
            storage,
            tags,
            partition=partition,
            after=scan.next_position,
            limit=min(page_size, MAX_RECORDS_EXAMINED - examined),
            descending=descending,
            now=now,
        )
        for record in records:
            found = read_task(record, read)
            if matches is None or not isinstance(found, Snapshot) or matches(found.task):
                if scan.size == limit:
                    return scan
                scan.add(record, found)
            scan.next_position = record.position
        if is_last:
            scan.next_position = None
            return scan
        examined += len(records)
        chars += sum(len(record.body) for record in records)
    return scan


def read_task(
    record: Record, read: Callable[[Record], Snapshot]
) -> Snapshot | CorruptRecord | NotReadableHere:
    """Return the task in a record. If `read` cannot decode the record, return the error instead."""
    try:
        return read(record)
    except (CorruptRecord, NotReadableHere) as error:
        return error
