"""Everybody's tasks, the newest first, a page at a time; and one of them by its id alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from ..storage import Micros, Position, Record, Storage, Tag, is_last_page
from ..storage.errors import NewerFormat
from ..tasks import Owner, Snapshot, Status
from ..tasks.errors import CorruptRecord, InvalidCursor, InvalidValue, NotFound
from ..tasks.listing import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, MAX_RECORDS_EXAMINED, page_of_tags
from ..tasks.owner import partition_of
from ..tasks.record import is_task_id
from ..tasks.snapshot import TASKS, task_address
from .errors import AmbiguousId, TooShort
from .locators import Sealer
from .views import TAGS, NewerTask, Row, is_named

LEAST_PREFIX = 6
WHOLE_ID = 32
"""The letters of an id as perdure makes them: so many are no prefix."""

_position = msgspec.json.Decoder(tuple[int, str, str])


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list."""

    rows: tuple[Row, ...]
    corrupt: tuple[str, ...] = ()
    """Ids in its stretch under which something stands that is no task."""
    newer: tuple[NewerTask, ...] = ()
    """Tasks in its stretch that a newer version of perdure wrote, in the same order."""
    next: str | None = None
    """Give this as `after` to go on, if there may be more."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks to list. Statuses have an index; a page by name may be short and still have a next."""

    statuses: frozenset[Status] | None = None
    name: str | None = None

    @property
    def tags(self) -> list[Tag | None]:
        if self.statuses is None:
            return [None]
        return [tag for status in sorted(self.statuses) for tag in TAGS[status]]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at the list found."""

    snapshots: tuple[Snapshot, ...]
    corrupt: tuple[str, ...]
    newer: tuple[Record, ...]
    after: Position | None


async def stretch_of(
    storage: Storage,
    wanted: Wanted,
    *,
    after: Position | None = None,
    limit: int = DEFAULT_PAGE_SIZE,
    now: Micros,
) -> Stretch:
    """Up to `limit` tasks after a position, among at most 1 000 records, or fewer if they are large."""
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE_SIZE:
        raise InvalidValue("limit", f"must be 1 to {MAX_PAGE_SIZE}, not {limit}")
    page = _Page(wanted, limit)
    budget = Budget(MAX_RECORDS_EXAMINED, MAX_PAGE_SIZE)
    while not (page.is_full or budget.is_spent):
        size = limit + 1 if wanted.name is None else budget.size
        records, is_last = await page_of_tags(
            storage, wanted.tags, after=page.position or after, limit=size, descending=True, now=now
        )
        budget.take(records)
        page.take(records)
        if not page.is_full and is_last:
            return page.ended(None)
    return page.ended(page.position)


class _Page:
    """A page being filled. It is full when something came that has no room."""

    def __init__(self, wanted: Wanted, limit: int) -> None:
        self._wanted = wanted
        self._limit = limit
        self._found: list[Snapshot] = []
        self._corrupt: list[str] = []
        self._newer: list[Record] = []
        self.is_full = False
        self.position: Position | None = None

    def take(self, records: Sequence[Record]) -> None:
        for record in records:
            found = _read(record)
            if isinstance(found, Snapshot) and not self._admits(found):
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

    def _admits(self, snapshot: Snapshot) -> bool:
        return self._wanted.name is None or is_named(snapshot.task, self._wanted.name)

    def ended(self, after: Position | None) -> Stretch:
        return Stretch(
            snapshots=tuple(self._found),
            corrupt=tuple(self._corrupt),
            newer=tuple(self._newer),
            after=after,
        )


def read(record: Record) -> Snapshot | None:
    """The task, or none if its record is damaged or was written by a newer version."""
    found = _read(record)
    return found if isinstance(found, Snapshot) else None


def _read(record: Record) -> Snapshot | CorruptRecord | NewerFormat:
    try:
        return Snapshot.from_record(record)
    except (CorruptRecord, NewerFormat) as error:
        return error


def cursor_of(position: Position | None, sealer: Sealer) -> str | None:
    return None if position is None else sealer.seal(msgspec.json.encode(position).decode())


def position_of(cursor: str | None, sealer: Sealer) -> Position | None:
    if cursor is None:
        return None
    plain = sealer.unseal(cursor)
    if plain is None:
        raise InvalidCursor
    return Position(*_position.decode(plain))


# By id


async def find(storage: Storage, text: str, *, among: int | None = None, now: Micros) -> Snapshot:
    """The task whose id is this, or begins with it.

    A whole id of the local user, or of a caller without a name, costs one read. Any other is looked for among
    all tasks, the newest first; a part of one among all of them to the last, to be sure that it is the only
    one. `among` ends that after so many.
    """
    if not is_task_id(text) or len(text) < LEAST_PREFIX:
        raise TooShort(LEAST_PREFIX)
    is_whole = len(text) >= WHOLE_ID
    if is_whole and (direct := await _direct(storage, text, now)) is not None:
        return direct
    found: list[Record] = []
    async for record in _newest_of_all(storage, among, now):
        if record.key.startswith(text):
            found.append(record)
            if is_whole or len(found) > 1:
                break
    return Snapshot.from_record(_only(text, found))


def _only(text: str, found: Sequence[Record]) -> Record:
    if not found:
        raise NotFound
    if len(found) > 1:
        raise AmbiguousId(text, sorted(record.key for record in found))
    return found[0]


async def _direct(storage: Storage, text: str, now: Micros) -> Snapshot | None:
    if not is_task_id(text):
        return None
    owners = (Owner.local(), Owner.anonymous())
    places = [task_address(partition_of(owner, text), text) for owner in owners]
    records = await storage.get_many(places, now=now)
    return next((Snapshot.from_record(record) for record in records if record is not None), None)


async def _newest_of_all(storage: Storage, most: int | None, now: Micros) -> AsyncIterator[Record]:
    after: Position | None = None
    seen = 0
    while most is None or seen < most:
        size = MAX_PAGE_SIZE if most is None else min(MAX_PAGE_SIZE, most - seen)
        records = await storage.page(TASKS, after=after, limit=size, descending=True, now=now)
        for record in records:
            yield record
        if is_last_page(records, size):
            return
        seen += len(records)
        after = records[-1].position


MOST_LETTERS = 16 * 1024 * 1024
FIRST_PAGE = 20
"""Records that are read before anybody knows how large they are."""


class Budget:
    """What is left of it. Ask for `size` records, then say which came."""

    def __init__(self, records: int, page: int) -> None:
        self._records = records
        self._page = page
        self._read = 0
        self._letters = 0

    @property
    def is_spent(self) -> bool:
        return self._read >= self._records or self._letters >= MOST_LETTERS

    @property
    def size(self) -> int:
        """As many as there is room for, if the next ones are as large as those before."""
        if not self._read:
            return min(FIRST_PAGE, self._page)
        room = (MOST_LETTERS - self._letters) * self._read // max(1, self._letters)
        return max(1, min(self._page, room, self._records - self._read))

    def take(self, records: Sequence[Record]) -> None:
        self._read += len(records)
        self._letters += sum(len(each.body) for each in records)
