"""Lists of tasks, page by page."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from heapq import merge
from itertools import islice, takewhile

import msgspec

from ..storage import (
    MAX_PAGE_BYTES,
    Address,
    InsertIfAbsent,
    Micros,
    Position,
    Record,
    Space,
    Storage,
    Tag,
    is_last_page,
)
from ..storage.body import FORMAT_FIELD, BodyFormat
from ..storage.errors import NewerFormat, StorageCorrupt
from .canonical_json import check_text
from .cursor import CursorScope, decode_cursor, encode_cursor
from .errors import CorruptRecord, InvalidValue
from .lifecycle import Status
from .snapshot import TASKS, Snapshot, tags_of

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200
MAX_RECORDS_EXAMINED = 1000
"""Maximum number of records that one call reads: a filter without an index must not block the server."""

SETTINGS = Space("settings")
CURSOR_KEY_ADDRESS = Address(SETTINGS, "perdure", "cursor-key")


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for lists. Only the status is indexed; with other fields, a short page can have a next one."""

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

    def matches(self, snapshot: Snapshot) -> bool:
        task = snapshot.task
        return self.method in (None, task.original_method) and self.session_id in (None, task.session_id)


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tasks, with a cursor for the next page if there may be more."""

    tasks: tuple[Snapshot, ...]
    corrupt: tuple[CorruptRecord, ...] = ()
    """Records among them that cannot be read."""
    newer: tuple[NewerFormat, ...] = ()
    """Records among them that a newer version wrote."""
    next_cursor: str | None = None


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
    """Return a page of the records that have one of these tags, and whether it is the last.

    Each tag is read separately. If the page of one tag ends early, the others are cut at the same position.
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


class Listing:
    """Reads pages of tasks, and keeps the key that signs cursors, which all replicas share."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._key: bytes | None = None

    async def page(
        self,
        partition: str,
        task_filter: TaskFilter,
        *,
        cursor: str | None,
        limit: int,
        newest_first: bool,
        now: Micros,
    ) -> TaskPage:
        if type(limit) is not int or not 1 <= limit <= MAX_PAGE_SIZE:
            raise InvalidValue("limit", f"must be 1 to {MAX_PAGE_SIZE}, not {limit}")
        task_filter.validate()
        scope = CursorScope(
            partition=partition,
            status=task_filter.status,
            method=task_filter.method,
            session_id=task_filter.session_id,
            newest_first=newest_first,
        )
        key = await self._cursor_key(now)
        after = None if cursor is None else decode_cursor(cursor, scope, key)
        page = _PageBuilder(task_filter, limit)
        while page.needs_more:
            records, is_last = await page_of_tags(
                self._storage,
                task_filter.tags,
                partition=partition,
                after=page.position or after,
                limit=page.next_size,
                descending=newest_first,
                now=now,
            )
            page.add(records, is_last=is_last)
        next_position = page.next_position
        return TaskPage(
            tasks=tuple(page.found),
            corrupt=tuple(page.corrupt),
            newer=tuple(page.newer),
            next_cursor=None if next_position is None else encode_cursor(next_position, scope, key),
        )

    async def _cursor_key(self, now: Micros) -> bytes:
        """Return the key that signs cursors. The first replica that needs it creates it in the storage."""
        if self._key is None:
            space, partition, key = CURSOR_KEY_ADDRESS
            body = KEY_FORMAT.encode(StoredKey(secrets.token_hex(32)))
            record = Record(space=space, partition=partition, key=key, order=now, body=body)
            await self._storage.commit([InsertIfAbsent(record=record)], now=now)
            kept = await self._storage.get(CURSOR_KEY_ADDRESS, now=now) or record
            self._key = decode_key(kept)
        return self._key


class StoredKey(msgspec.Struct, frozen=True, tag_field=FORMAT_FIELD, tag=1):
    """A secret key that all replicas share, as it is stored."""

    key: str


KEY_FORMAT = BodyFormat(StoredKey)
KEY_BYTES = 32


def decode_key(record: Record) -> bytes:
    """Return the stored key. Raise CorruptRecord or NewerFormat."""
    try:
        key = bytes.fromhex(KEY_FORMAT.decode(record.key, record.body).key)
    except (StorageCorrupt, ValueError) as error:
        raise _invalid_key(record) from error
    if len(key) != KEY_BYTES:
        raise _invalid_key(record)
    return key


def _invalid_key(record: Record) -> CorruptRecord:
    return CorruptRecord(record.key, "it is not a valid key; delete it to have a new one created")


class _PageBuilder:
    """A page under construction. It needs records until it is full, a limit is reached, or none is left."""

    def __init__(self, task_filter: TaskFilter, limit: int) -> None:
        self._task_filter = task_filter
        self._limit = limit
        self._examined = 0
        self._bytes = 0
        self._exhausted = False
        self._overflowing = False
        self.position: Position | None = None
        """The position of the last record that was added or skipped."""
        self.found: list[Snapshot] = []
        self.corrupt: list[CorruptRecord] = []
        self.newer: list[NewerFormat] = []

    @property
    def needs_more(self) -> bool:
        is_enough = self._examined >= MAX_RECORDS_EXAMINED or self._bytes >= MAX_PAGE_BYTES
        return not (self._exhausted or self._overflowing or is_enough)

    @property
    def next_size(self) -> int:
        """The number of records to read: one more than fits, which shows whether there is a next page.

        A filter without an index may skip most records, so it reads many.
        """
        left = self._limit + 1 - self._taken
        return min(
            left if self._task_filter.is_indexed else MAX_PAGE_SIZE, MAX_RECORDS_EXAMINED - self._examined
        )

    @property
    def next_position(self) -> Position | None:
        return None if self._exhausted and not self._overflowing else self.position

    def add(self, records: list[Record], *, is_last: bool) -> None:
        self._exhausted = is_last
        for record in records:
            self._examined += 1
            self._bytes += len(record.body)
            taken = self._read(record)
            if taken and self._taken == self._limit:
                self._overflowing = True
                return
            self._append(taken)
            self.position = record.position

    @property
    def _taken(self) -> int:
        return len(self.found) + len(self.corrupt) + len(self.newer)

    def _read(self, record: Record) -> Snapshot | CorruptRecord | NewerFormat | None:
        try:
            snapshot = Snapshot.from_record(record)
        except (CorruptRecord, NewerFormat) as error:
            return error
        return snapshot if self._task_filter.matches(snapshot) else None

    def _append(self, taken: Snapshot | CorruptRecord | NewerFormat | None) -> None:
        match taken:
            case Snapshot():
                self.found.append(taken)
            case CorruptRecord():
                self.corrupt.append(taken)
            case NewerFormat():
                self.newer.append(taken)
            case None:
                pass
