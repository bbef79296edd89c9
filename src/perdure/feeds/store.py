"""`FeedStore` reads and writes accounts and items. An account and its items are in the same partition."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from ..storage import (
    Accepted,
    Address,
    Change,
    Committed,
    Delete,
    InsertIfAbsent,
    Micros,
    Position,
    Record,
    Refused,
    Replace,
    Storage,
    is_last_page,
)
from ..storage.errors import NewerFormat, PerdureError, StorageCorrupt
from ..storage.inspection_and_quarantine import CORRUPT_TAG
from ..storage.limits import MAX_PAGE_RECORDS
from ..storage.request_batcher import batched
from ..storage.time_types import system_clock
from .account import ACCOUNTS, POLLS, Account, AccountStatus, StoredAccount, account_address, insertion
from .errors import AmbiguousHandle, CorruptFeedRecord, EditConflict, UnknownAccount
from .item import ITEMS, Item, ItemKind, item_record, parse_item
from .link_invalidation import MARK_LIFETIME, DirtyHours

log = logging.getLogger("perdure.feeds")

AccountEdit: TypeAlias = Callable[[Account], Account]

MAX_EDIT_ATTEMPTS = 20
ITEMS_PER_COMMIT = 25
ADDRESSES_PER_READ = 100
"""Maximum number of records that are read by address in one call."""
PAGE_SIZE = 500
FIRST_NAME = "\x01"
"""A name that sorts before the names of all keys and partitions."""


class FeedStore:
    """Reads and writes the accounts and items in a storage. The caller must close the storage."""

    def __init__(self, storage: Storage, *, clock: Callable[[], Micros] = system_clock) -> None:
        self.storage = storage
        self.clock = clock
        self.dirty_hours = DirtyHours(storage, clock)
        self._reported: set[tuple[Address, int]] = set()
        """The addresses and versions of the invalid records that were already logged."""

    # Accounts

    async def add(self, account: Account) -> bool:
        """Store a new account. Return False if the account is already stored."""
        return isinstance(await self.storage.commit([insertion(account)], now=self.clock()), Committed)

    async def get(self, account_id: str) -> StoredAccount:
        record = await self.storage.get(account_address(account_id), now=self.clock())
        if record is None:
            raise UnknownAccount(account_id)
        return StoredAccount.from_record(record)

    async def find(self, name: str) -> StoredAccount:
        """Find an account by its id or its stored handle.

        Raise UnknownAccount if no account is found, or AmbiguousHandle if several accounts have the handle.
        """
        name = name.removeprefix("@")
        if name.startswith("did:"):
            return await self.get(name)
        found = [each async for each in self.accounts() if each.account.handle.lower() == name.lower()]
        if len(found) > 1:  # one account was renamed, and another now has its old handle
            raise AmbiguousHandle(name, [each.account.account_id for each in found])
        if not found:
            raise UnknownAccount(name)
        return found[0]

    async def accounts(self, status: AccountStatus | None = None) -> AsyncGenerator[StoredAccount]:
        """Yield all accounts, or only accounts with `status`, in the order in which they were added."""
        tag = None if status is None else status.value
        after: Position | None = None
        while records := await self.storage.page(
            ACCOUNTS, after=after, limit=PAGE_SIZE, now=self.clock(), tag=tag
        ):
            for stored in self._valid_accounts(records):
                yield stored
            after = records[-1].position

    async def account_page(
        self, before: StoredAccount | None, limit: int
    ) -> tuple[list[StoredAccount], bool]:
        """Return up to `limit` accounts, and whether more exist. Start after the account `before`, if set."""
        after = None if before is None else before.record.position
        found: list[StoredAccount] = []
        while records := await self.storage.page(ACCOUNTS, after=after, limit=limit + 1, now=self.clock()):
            found += self._valid_accounts(records)
            if len(found) > limit:
                break
            after = records[-1].position
        return found[:limit], len(found) > limit

    async def handles(self, account_ids: Iterable[str]) -> dict[str, str]:
        """Return the handles of the accounts in `account_ids`, by id. Omit accounts that are not stored."""
        found: dict[str, str] = {}
        for batch in batched(
            [account_address(each) for each in dict.fromkeys(account_ids)], ADDRESSES_PER_READ
        ):
            records = await self._get_many(batch)
            read = self._valid_accounts([record for record in records if isinstance(record, Record)])
            found |= {stored.account.account_id: stored.account.handle for stored in read}
        return found

    async def due(self, limit: int) -> list[StoredAccount]:
        """Return up to `limit` due accounts, most overdue first."""
        now, after = self.clock(), None
        found: list[StoredAccount] = []
        while True:
            records = await self.storage.due(POLLS, after=after, until=now, limit=limit, now=now)
            found += self._valid_accounts(records)
            if len(found) >= limit or is_last_page(records, limit):
                return found[:limit]
            after = records[-1].lane_position  # some records are invalid

    async def update(self, account_id: str, edit: AccountEdit) -> Account:
        """Apply `edit` to an account, and store the result.

        Raise EditConflict if other processes keep changing the account.
        """
        for _ in range(MAX_EDIT_ATTEMPTS):
            stored = await self.get(account_id)
            if (written := await self.replace(stored, edit(stored.account))) is not None:
                return written.account
        raise EditConflict(account_id)

    async def replace(
        self, stored: StoredAccount, account: Account, extra_changes: Sequence[Change] = ()
    ) -> StoredAccount | None:
        """Replace `stored` with `account`, and make the changes in `extra_changes`.

        If `stored` is outdated, change nothing and return None.
        """
        after, change = stored.replace_with(account)
        committed = await self._commit([change, *extra_changes])
        return after if isinstance(committed, Committed) else None

    async def remove(self, account_id: str, *, with_items: bool = False) -> None:
        """Delete an account. With `with_items`, also delete its items, except those in a newer format."""
        for _ in range(MAX_EDIT_ATTEMPTS):
            stored = await self.get(account_id)
            if await self._delete([stored.record]):
                break
        else:
            raise EditConflict(account_id)
        if with_items:
            await self._remove_items(account_id)

    async def _remove_items(self, account_id: str) -> None:
        after: Position | None = None
        while records := await self.storage.page(
            ITEMS, account_id, after=after, limit=ITEMS_PER_COMMIT, now=self.clock()
        ):
            deletable = [record for record in records if not self._is_newer(record)]
            if not deletable or await self._delete(deletable):
                after = records[-1].position

    async def _delete(self, records: Sequence[Record]) -> bool:
        """Delete all of the records. If one has changed since it was read, delete none and return False."""
        return isinstance(await self._commit([Delete(before=record) for record in records]), Committed)

    async def _commit(self, changes: Sequence[Change]) -> Committed | Refused:
        """Commit changes to accounts and items.

        First mark the hours of the items as dirty, so that their links are counted again (see
        `link_invalidation`).
        """
        times = [_order_of(change) for change in changes if change.address.space == ITEMS]
        started = self.clock()
        await self.dirty_hours.mark(times)
        answer = await self.storage.commit(changes, now=self.clock())
        if self.clock() - started > MARK_LIFETIME // 2:  # the marks may have expired before the commit
            await self.dirty_hours.mark(times)
        return answer

    # Items

    async def add_items(self, account_id: str, found: Sequence[Item]) -> list[Item]:
        """Store the items in `found` that are not stored yet, and return the new items."""
        new: list[Item] = []
        for batch in batched(found, ITEMS_PER_COMMIT):
            part = list({item.uri: item for item in batch}.values())
            committed = await self._commit(
                [InsertIfAbsent(record=item_record(item, account_id)) for item in part]
            )
            new += [
                item
                for item, answer in zip(part, committed.results, strict=True)
                if isinstance(answer, Accepted)
            ]
        return new

    async def remove_items(self, account_id: str, removed: Sequence[Item]) -> int:
        """Delete items, and return how many were deleted. Keep items in a newer format."""
        count = 0
        for batch in batched([Address(ITEMS, account_id, item.uri) for item in removed], ITEMS_PER_COMMIT):
            records = await self._get_many(batch)
            deletable = [each for each in records if isinstance(each, Record) and not self._is_newer(each)]
            if deletable and await self._delete(deletable):
                count += len(deletable)
        return count

    async def remove_items_before(self, time: Micros, *, limit: int) -> int:
        """Delete items older than `time`, oldest first, until about `limit` items are deleted.

        Return the number of deleted items. Keep items in a newer format.
        """
        after: Position | None = None
        count = 0
        while count < limit and (
            records := await self.storage.page(ITEMS, after=after, limit=PAGE_SIZE, now=self.clock())
        ):
            old = [record for record in records if record.order < time]
            by_account: defaultdict[str, list[Record]] = defaultdict(list)
            for record in old:
                if not self._is_newer(record):
                    by_account[record.partition].append(record)
            for deletable in by_account.values():
                for batch in batched(deletable, ITEMS_PER_COMMIT):
                    if await self._delete(batch):
                        count += len(batch)
            if len(old) < len(records):
                break
            after = records[-1].position
        return count

    async def missing_items(self, account_id: str, found: Sequence[Item]) -> list[Item]:
        """Return the items in `found` that are not stored yet."""
        addresses = [Address(ITEMS, account_id, item.uri) for item in found]
        known: set[Address] = set()
        for batch in batched(addresses, ADDRESSES_PER_READ):
            records = await self._get_many(batch)
            known |= {address for address, found in zip(batch, records, strict=True) if found is not None}
        return [item for item, address in zip(found, addresses, strict=True) if address not in known]

    async def item_page(
        self,
        account_id: str | None = None,
        *,
        since: Micros = 0,
        after: Position | None = None,
        kind: ItemKind | None = None,
        with_links: bool = False,
        limit: int,
        max_scanned: int | None = None,
        keep_ties: bool = False,
    ) -> tuple[list[tuple[str, Item]], Position | None]:
        """Return (account id, item) pairs, newest first, and the position after which the next page starts.

        The position is None if there are no more items. `Feeds.items` describes the parameters.
        """
        found: list[tuple[str, Item]] = []
        scanned, last_time = 0, -1
        async with aclosing(self.item_records(account_id, after=after, kind=kind)) as records:
            async for record in records:
                if record.order < since:
                    break
                is_full = len(found) >= limit and not (keep_ties and record.order == last_time)
                if is_full or scanned == max_scanned:
                    return found, after
                scanned, after = scanned + 1, record.position
                item = self.parse_item(record)
                if item is not None and (item.links or not with_links):
                    found.append((record.partition, item))
                    last_time = record.order
        return found, None

    async def newest_items(
        self, account_id: str | None = None, *, since: Micros = 0, kind: ItemKind | None = None
    ) -> AsyncGenerator[tuple[str, Item]]:
        """Yield (account id, item) pairs, newest first. Log and skip invalid items."""
        async with aclosing(self.item_records(account_id, kind=kind)) as records:
            async for record in records:
                if record.order < since:
                    return
                if (item := self.parse_item(record)) is not None:
                    yield record.partition, item

    async def item_records(
        self, account_id: str | None = None, *, after: Position | None = None, kind: str | None = None
    ) -> AsyncGenerator[Record]:
        """Yield the records of items, newest first, starting after the position `after`."""
        while records := await self.storage.page(
            ITEMS, account_id, after=after, limit=PAGE_SIZE, now=self.clock(), tag=kind, descending=True
        ):
            for record in records:
                yield record
            after = records[-1].position

    async def count_items(self, account_id: str | None = None) -> int:
        counts = await self.storage.counts(ITEMS, account_id, now=self.clock())
        return sum(counts.values())

    # Invalid records

    def _valid_accounts(self, records: Sequence[Record]) -> Iterator[StoredAccount]:
        """Yield the accounts in `records`. Log and skip records that cannot be decoded."""
        for record in records:
            try:
                yield StoredAccount.from_record(record)
            except (CorruptFeedRecord, NewerFormat) as error:
                self._report(record.address, record.version, error)

    def parse_item(self, record: Record) -> Item | None:
        """Decode the record of an item. If that fails, log the error and return None."""
        if record.tag == CORRUPT_TAG:  # it was reported when it was quarantined
            return None
        try:
            return parse_item(record)
        except (CorruptFeedRecord, NewerFormat) as error:
            self._report(record.address, record.version, error)
            return None

    async def _get_many(self, addresses: Sequence[Address]) -> list[Record | StorageCorrupt | None]:
        """Read the records at `addresses`. For a damaged record, return the error in its place."""
        try:
            return [*await self.storage.get_many(addresses, now=self.clock())]
        except StorageCorrupt:
            return [await self._get(address) for address in addresses]

    async def _get(self, address: Address) -> Record | StorageCorrupt | None:
        try:
            return await self.storage.get(address, now=self.clock())
        except StorageCorrupt as error:
            self._report(address, 0, error)
            return error

    def _is_newer(self, record: Record) -> bool:
        """Return whether a newer version of perdure has written the record of an item."""
        try:
            parse_item(record)
        except NewerFormat as error:
            self._report(record.address, record.version, error)
            return True
        except CorruptFeedRecord:
            pass
        return False

    def _report(self, address: Address, version: int, error: PerdureError) -> None:
        """Log an invalid record, but only once per record version, because records are read repeatedly."""
        if len(self._reported) >= MAX_PAGE_RECORDS:
            self._reported.clear()
        if (reported := (address, version)) not in self._reported:
            self._reported.add(reported)
            log.warning("skipped a stored record: %s", error)


def older_than(time: Micros, account_id: str | None = None) -> Position:
    """Return the position to start from when reading the items older than `time`, newest first."""
    return Position(time, FIRST_NAME, account_id or FIRST_NAME)


def _order_of(change: Change) -> Micros:
    return (change.before if isinstance(change, Replace | Delete) else change.record).order
