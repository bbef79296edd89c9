"""The tasks of all owners: pages, newest first, and the search for a task by its id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from ..storage import Micros, Position, Record, Storage, Tag, is_last_page
from ..storage.errors import NewerFormat
from ..tasks import Owner, Snapshot, Status
from ..tasks.errors import CorruptRecord, InvalidCursor, InvalidValue, NotFound
from ..tasks.listing import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, MAX_RECORDS_EXAMINED, page_of_tags
from ..tasks.owner import partition_of
from ..tasks.snapshot import TASKS, task_address
from ..tasks.task_record import TaskId, is_task_id
from .errors import AmbiguousId, IdTooShort
from .locators import Sealer
from .views import TAGS, NewerTask, TaskSummary, matches_name

MIN_PREFIX_LENGTH = 6
TASK_ID_LENGTH = 32
"""Number of characters of a task id. A text of this length is a complete id."""
MAX_READ_CHARS = 16 * 1024 * 1024
FIRST_PAGE_SIZE = 20
"""Number of records that are read first, before their size is known."""

_position_decoder = msgspec.json.Decoder(tuple[int, str, str])


class TaskSummaryPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of tasks."""

    tasks: tuple[TaskSummary, ...]
    corrupt: tuple[str, ...] = ()
    """Ids of damaged tasks on this page."""
    newer: tuple[NewerTask, ...] = ()
    """Tasks on this page that a newer version of perdure wrote, in the same order."""
    next_cursor: str | None = None
    """The cursor to pass as `after` for the next page. None if this is the last page."""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks to list."""

    statuses: frozenset[Status] | None = None
    name: str | None = None

    @property
    def tags(self) -> list[Tag | None]:
        if self.statuses is None:
            return [None]
        return [tag for status in sorted(self.statuses) for tag in TAGS[status]]


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that one scan found."""

    snapshots: tuple[Snapshot, ...]
    corrupt: tuple[str, ...]
    newer: tuple[Record, ...]
    after: Position | None


async def scan(
    storage: Storage,
    query: ListQuery,
    *,
    after: Position | None = None,
    limit: int = DEFAULT_PAGE_SIZE,
    now: Micros,
) -> Scan:
    """Return up to `limit` tasks after a position, from at most 1,000 records, or fewer if they are large."""
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE_SIZE:
        raise InvalidValue("limit", f"must be 1 to {MAX_PAGE_SIZE}, not {limit}")
    page = _Page(query, limit)
    budget = ReadBudget(MAX_RECORDS_EXAMINED, MAX_PAGE_SIZE)
    while not (page.is_full or budget.is_spent):
        size = limit + 1 if query.name is None else budget.page_size
        records, is_last = await page_of_tags(
            storage, query.tags, after=page.position or after, limit=size, descending=True, now=now
        )
        budget.record(records)
        page.add(records)
        if not page.is_full and is_last:
            return page.result(None)
    return page.result(page.position)


class _Page:
    """A page being filled. It is full when a record was read for which there is no room."""

    def __init__(self, query: ListQuery, limit: int) -> None:
        self._query = query
        self._limit = limit
        self._found: list[Snapshot] = []
        self._corrupt: list[str] = []
        self._newer: list[Record] = []
        self.is_full = False
        self.position: Position | None = None

    def add(self, records: Sequence[Record]) -> None:
        for record in records:
            found = _parse(record)
            if isinstance(found, Snapshot) and not self._matches(found):
                self.position = record.position
                continue
            if len(self._found) + len(self._corrupt) + len(self._newer) == self._limit:
                self.is_full = True
                return
            self.position = record.position
            match found:
                case Snapshot():
                    self._found.append(found)
                case CorruptRecord():
                    self._corrupt.append(record.key)
                case NewerFormat():
                    self._newer.append(record)

    def _matches(self, snapshot: Snapshot) -> bool:
        return self._query.name is None or matches_name(snapshot.task, self._query.name)

    def result(self, after: Position | None) -> Scan:
        return Scan(
            snapshots=tuple(self._found),
            corrupt=tuple(self._corrupt),
            newer=tuple(self._newer),
            after=after,
        )


def parse_or_none(record: Record) -> Snapshot | None:
    """Return the task, or None if its record is damaged or was written by a newer version."""
    found = _parse(record)
    return found if isinstance(found, Snapshot) else None


def _parse(record: Record) -> Snapshot | CorruptRecord | NewerFormat:
    try:
        return Snapshot.from_record(record)
    except (CorruptRecord, NewerFormat) as error:
        return error


def encode_cursor(position: Position | None, sealer: Sealer) -> str | None:
    return None if position is None else sealer.seal(msgspec.json.encode(position).decode())


def decode_cursor(cursor: str | None, sealer: Sealer) -> Position | None:
    if cursor is None:
        return None
    plain = sealer.unseal(cursor)
    if plain is None:
        raise InvalidCursor
    return Position(*_position_decoder.decode(plain))


# By id


async def find(storage: Storage, text: str, *, max_scanned: int | None = None, now: Micros) -> Snapshot:
    """Return the task whose id is `text` or starts with it.

    A complete id of the local user, or of an anonymous client, costs one read. Any other complete id is
    searched for among all tasks, newest first. A prefix is compared with all tasks, to be sure that it is
    unique. `max_scanned` limits the number of tasks that are read.
    """
    if not is_task_id(text) or len(text) < MIN_PREFIX_LENGTH:
        raise IdTooShort(MIN_PREFIX_LENGTH)
    is_complete = len(text) >= TASK_ID_LENGTH
    if is_complete and (direct := await _get_unowned(storage, text, now)) is not None:
        return direct
    found: list[Record] = []
    async for record in _scan_newest(storage, max_scanned, now):
        if record.key.startswith(text):
            found.append(record)
            if is_complete or len(found) > 1:
                break
    return Snapshot.from_record(_single(text, found))


def _single(text: str, found: Sequence[Record]) -> Record:
    if not found:
        raise NotFound
    if len(found) > 1:
        raise AmbiguousId(text, sorted(record.key for record in found))
    return found[0]


async def _get_unowned(storage: Storage, task_id: TaskId, now: Micros) -> Snapshot | None:
    """Return the task of the local user or of an anonymous client with this id, or None."""
    owners = (Owner.local(), Owner.anonymous())
    addresses = [task_address(partition_of(owner, task_id), task_id) for owner in owners]
    records = await storage.get_many(addresses, now=now)
    return next((Snapshot.from_record(record) for record in records if record is not None), None)


async def _scan_newest(storage: Storage, max_scanned: int | None, now: Micros) -> AsyncIterator[Record]:
    after: Position | None = None
    seen = 0
    while max_scanned is None or seen < max_scanned:
        size = MAX_PAGE_SIZE if max_scanned is None else min(MAX_PAGE_SIZE, max_scanned - seen)
        records = await storage.page(TASKS, after=after, limit=size, descending=True, now=now)
        for record in records:
            yield record
        if is_last_page(records, size):
            return
        seen += len(records)
        after = records[-1].position


class ReadBudget:
    """Limits how many records, and how many characters, one scan reads."""

    def __init__(self, max_records: int, max_page_size: int) -> None:
        self._max_records = max_records
        self._max_page_size = max_page_size
        self._read = 0
        self._chars = 0

    @property
    def is_spent(self) -> bool:
        return self._read >= self._max_records or self._chars >= MAX_READ_CHARS

    @property
    def page_size(self) -> int:
        """How many records to read next, if they are as large as the previous ones."""
        if not self._read:
            return min(FIRST_PAGE_SIZE, self._max_page_size)
        room = (MAX_READ_CHARS - self._chars) * self._read // max(1, self._chars)
        return max(1, min(self._max_page_size, room, self._max_records - self._read))

    def record(self, records: Sequence[Record]) -> None:
        self._read += len(records)
        self._chars += sum(len(each.body) for each in records)
