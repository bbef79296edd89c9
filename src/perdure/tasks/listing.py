"""Listing tasks, a page at a time, for their owner or for an operator."""

from __future__ import annotations

import secrets

import msgspec

from ..storage import MAX_PAGE_BYTES, Address, Keep, Micros, Position, Record, Space, Storage, is_last_page
from . import codec
from .cursor import Scope, seal, unseal
from .errors import CorruptRecord, InvalidValue
from .lifecycle import Status
from .snapshot import TASKS, Snapshot

DEFAULT_LIMIT = 50
MOST_LIMIT = 200
MOST_EXAMINED = 1000
"""Records that one call looks at, so that a filter without an index cannot hold up the server."""

SETTINGS = Space("settings")
_KEY = Address(SETTINGS, "perdure", "cursor-key")


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks to list. Status has an index; for the others a page may be short and still have a next."""

    status: Status | None = None
    method: str | None = None
    session_id: str | None = None

    def check(self) -> None:
        for field, name in (("method", self.method), ("session_id", self.session_id)):
            if name is not None:
                codec.check_text(field, name)

    @property
    def is_indexed(self) -> bool:
        return self.method is None and self.session_id is None

    def admits(self, snapshot: Snapshot) -> bool:
        task = snapshot.task
        return self.method in (None, task.original_method) and self.session_id in (None, task.session_id)


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some tasks, and the cursor to go on with, if there may be more."""

    tasks: tuple[Snapshot, ...]
    corrupt: tuple[CorruptRecord, ...] = ()
    """What stands among them and cannot be read."""
    next_cursor: str | None = None


class Listing:
    """Pages through a storage. Keeps the key that seals cursors, which all replicas share."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._key: bytes | None = None

    async def page(
        self,
        partition: str | None,
        wanted: TaskFilter,
        *,
        cursor: str | None,
        limit: int,
        newest_first: bool,
        now: Micros,
    ) -> TaskPage:
        if type(limit) is not int or not 1 <= limit <= MOST_LIMIT:
            raise InvalidValue("limit", f"must be 1 to {MOST_LIMIT}, not {limit}")
        wanted.check()
        scope = Scope(
            partition=partition,
            status=wanted.status,
            method=wanted.method,
            session_id=wanted.session_id,
            newest_first=newest_first,
        )
        key = await self._cursor_key(now)
        after = None if cursor is None else unseal(cursor, scope, key)
        page = _Page(wanted, limit)
        while page.wants_more:
            records = await self._storage.page(
                TASKS,
                partition,
                after=page.position or after,
                limit=(size := page.next_size),
                tag=wanted.status,
                descending=newest_first,
                now=now,
            )
            page.take(records, is_last=is_last_page(records, size))
        following = page.next_position
        return TaskPage(
            tasks=tuple(page.found),
            corrupt=tuple(page.corrupt),
            next_cursor=None if following is None else seal(following, scope, key),
        )

    async def _cursor_key(self, now: Micros) -> bytes:
        """The key, made by whoever is first and kept in the storage itself."""
        if self._key is None:
            body = codec.encode({"key": secrets.token_hex(32)}).decode()
            space, partition, key = _KEY
            record = Record(space=space, partition=partition, key=key, order=now, body=body)
            await self._storage.commit([Keep(record=record)], now=now)
            kept = await self._storage.get(_KEY, now=now) or record
            self._key = _read_key(kept)
        return self._key


def _read_key(record: Record) -> bytes:
    try:
        return bytes.fromhex(msgspec.json.decode(record.body, type=dict[str, str])["key"])
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise CorruptRecord(
            record.key, "it is not the key of cursors; delete it, and a new one is made"
        ) from error


class _Page:
    """A page being filled: it takes records until it is full, has looked at enough, or none are left."""

    def __init__(self, wanted: TaskFilter, limit: int) -> None:
        self._wanted = wanted
        self._limit = limit
        self._examined = 0
        self._bytes = 0
        self._exhausted = False
        self._overflowing = False
        self.position: Position | None = None
        """Of the last record that was looked at and either taken or passed over."""
        self.found: list[Snapshot] = []
        self.corrupt: list[CorruptRecord] = []

    @property
    def wants_more(self) -> bool:
        is_enough = self._examined >= MOST_EXAMINED or self._bytes >= MAX_PAGE_BYTES
        return not (self._exhausted or self._overflowing or is_enough)

    @property
    def next_size(self) -> int:
        """One more than fits: if it comes, there is a next page. Where most may be passed over, many."""
        left = self._limit + 1 - len(self.found) - len(self.corrupt)
        return min(left if self._wanted.is_indexed else MOST_LIMIT, MOST_EXAMINED - self._examined)

    @property
    def next_position(self) -> Position | None:
        return None if self._exhausted and not self._overflowing else self.position

    def take(self, records: list[Record], *, is_last: bool) -> None:
        self._exhausted = is_last
        for record in records:
            self._examined += 1
            self._bytes += len(record.body)
            taken = self._read(record)
            if taken and len(self.found) + len(self.corrupt) == self._limit:
                self._overflowing = True
                return
            self._keep(taken)
            self.position = record.position

    def _read(self, record: Record) -> Snapshot | CorruptRecord | None:
        try:
            snapshot = Snapshot.read(record)
        except CorruptRecord as error:
            return error
        return snapshot if self._wanted.admits(snapshot) else None

    def _keep(self, taken: Snapshot | CorruptRecord | None) -> None:
        if isinstance(taken, Snapshot):
            self.found.append(taken)
        elif taken is not None:
            self.corrupt.append(taken)
