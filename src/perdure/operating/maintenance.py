"""Copies a whole storage to another one, and checks a storage for damage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from secrets import token_hex
from urllib.parse import urlsplit

import msgspec

from ..feeds.account import ACCOUNTS, StoredAccount
from ..feeds.errors import CorruptFeedRecord
from ..feeds.item import ITEMS, parse_item
from ..feeds.link_invalidation import LINKS
from ..feeds.link_rollup_store import parse_link_record
from ..runtime import RuntimeConfig
from ..runtime import lease as leases
from ..storage import Delete, Insert, Micros, Record, Space, Storage, open_storage
from ..storage.copy import COPIES, ProgressCallback, copy_records
from ..storage.errors import NewerFormat
from ..storage.inspection_and_quarantine import Inspection, inspect
from ..storage.time_types import MINUTE, system_clock, to_seconds
from ..tasks.body_encryption import key_ids
from ..tasks.encryption import Keyring
from ..tasks.errors import CorruptRecord
from ..tasks.generated_keys import CURSOR_KEY, LOCATOR_KEY, SETTINGS, decode_key
from ..tasks.idempotency import IDEMPOTENCY_KEYS, decode_task_id
from ..tasks.task_snapshot import LEASES, NO_KEYS, TASKS, Snapshot
from .applications import ApplicationSummary, count_applications
from .encryption_keys import count_by_key
from .errors import MaintenanceError
from .listing import iterate_records

PROBE_LIFETIME = 10 * MINUTE
PROBE_BODY = f'{{"format":1,"padding":"{"x" * 8192}"}}'
"""The body of a test record. It is larger than a database page, so that a full storage rejects it."""


def _decode_setting(record: Record) -> object:
    return decode_key(record) if record.address in (CURSOR_KEY, LOCATOR_KEY) else None


DECODERS: Mapping[Space, Callable[[Record], object]] = {
    SETTINGS: _decode_setting,
    IDEMPOTENCY_KEYS: decode_task_id,
    TASKS: Snapshot.head_of,
    LEASES: leases.read,
    ACCOUNTS: StoredAccount.from_record,
    ITEMS: parse_item,
    LINKS: parse_link_record,
}
"""The decoder for each space. The decoders for leases, idempotency keys and link summaries do not report
damage, because damaged records of these kinds are replaced at their next use.
"""
ALL_SPACES = tuple(DECODERS)
QUARANTINED_SPACES = frozenset({TASKS, ACCOUNTS, ITEMS})
"""Damaged records in these spaces are quarantined: kept for inspection, but not used. Other spaces need no
quarantine. For example, `SETTINGS` contains the keys of cursors and locators: a damaged key is deleted, and
the next process that needs the key generates a new one.
"""


# Copying


class LiveClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The number of running tasks, and the number of accounts that are being polled."""

    tasks: int
    accounts: int


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a copy."""

    records: Mapping[Space, int]
    """Number of records in each space of the source. All of them were copied and verified."""
    live_tasks: int
    """Number of tasks in the source that were running when the copy started."""
    live_accounts: int
    """Number of accounts in the source that were being polled when the copy started."""


async def copy_storage(
    source: str,
    target: str,
    *,
    merge: bool,
    on_progress: ProgressCallback,
    on_live_claims: Callable[[LiveClaims], None],
) -> CopyReport:
    """Copy all records from one storage URL to another, and verify the copy.

    If tasks of the source are still running, or accounts are still being polled, call `on_live_claims` before
    the copy starts. Raise MaintenanceError if both URLs lead to the same storage, and TargetNotEmpty if the
    target contains other records and `merge` is not set.
    """
    async with await open_storage(source) as source_storage:
        live = await count_live_claims(source_storage, now=system_clock())
        if live.tasks or live.accounts:
            on_live_claims(live)
        async with await open_storage(target) as target_storage:
            if await _is_same_storage(source_storage, target_storage):
                raise MaintenanceError("source and target are the same storage; choose another target")
            name = _source_id(source_storage.name, source)
            counts = await copy_records(
                source_storage, target_storage, ALL_SPACES, name=name, merge=merge, on_progress=on_progress
            )
    return CopyReport(records=counts, live_tasks=live.tasks, live_accounts=live.accounts)


async def count_live_claims(storage: Storage, *, now: Micros) -> LiveClaims:
    claimed = iterate_records(storage, LEASES, tag=leases.HELD, now=now)
    tasks = [each async for each in claimed if (each.wake_at or 0) > now]
    accounts = [each async for each in iterate_records(storage, ACCOUNTS, now=now) if _is_polled(each, now)]
    return LiveClaims(tasks=len(tasks), accounts=len(accounts))


def _is_polled(record: Record, now: Micros) -> bool:
    """Return whether an account is being polled. An unreadable record counts as not polled."""
    try:
        return StoredAccount.from_record(record).account.is_leased(now)
    except (CorruptFeedRecord, NewerFormat):
        return False


async def _is_same_storage(source: Storage, target: Storage) -> bool:
    """Write a test record to the target, and return whether it appears in the source."""
    now = system_clock()
    probe = _probe(COPIES, "copy", now)
    await target.commit([Insert(record=probe)], now=now)
    try:
        return await source.get(probe.address, now=now) is not None
    finally:
        await target.commit([Delete(before=probe)], now=now)


def _source_id(engine: str, url: str) -> str:
    """Return a string that identifies the source without revealing its password."""
    parts = urlsplit(url)
    location = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return f"{engine} {blake2b(location.encode(), digest_size=6).hexdigest()}"


# Checking


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The version and the clock of the server behind a storage."""

    version: str
    clock_offset: float | None = None
    """Seconds by which the clock of the database server is ahead of the local clock. `None` if unknown."""
    offset_error: float = 0.0
    """Maximum error of `clock_offset` in seconds: half the duration of the request."""

    def has_clock_skew(self, limit: float) -> bool:
        """Return whether the clocks differ by more than `limit` seconds plus the measurement error."""
        return self.clock_offset is not None and abs(self.clock_offset) - self.offset_error > limit


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a storage."""

    findings: tuple[str, ...]
    """The problems that were found, one sentence each."""
    remaining: tuple[str, ...]
    """The problems that remain after the repair, or all findings if nothing was repaired."""
    records: int
    newer: int
    """Number of records that this version of perdure cannot read, because a newer version wrote them. They do
    not count as damaged."""
    quarantined: int
    """Number of damaged records in quarantine."""
    encrypted: Mapping[str, int]
    """Number of tasks that are encrypted with each key, by the id of the key."""
    missing_keys: tuple[str, ...]
    """The ids of keys that are needed to read tasks but were not passed to the check."""
    engine: str
    server: ServerInfo
    applications: tuple[ApplicationSummary, ...]
    """The applications that have tasks in the storage, and the number of tasks of each."""
    write_seconds: float
    """Number of seconds that it took to write and delete a test record."""

    @property
    def has_clock_skew(self) -> bool:
        """Whether the server's clock and the local clock differ by more than workers tolerate."""
        return self.server.has_clock_skew(to_seconds(RuntimeConfig().clock_skew))

    @property
    def is_ok(self) -> bool:
        return not (self.remaining or self.has_clock_skew)


async def check_storage(url: str, *, repair: bool, keys: Keyring) -> HealthReport:
    """Check a storage and all its records.

    For a task whose keys are all in `keys`, also check that its encrypted fields can be decrypted.

    With `repair`, correct wrong counters, quarantine damaged records, replace damaged keys, and check again.
    """
    async with await open_storage(url) as storage:
        findings, inspection = await _check(storage, repair=repair, keys=keys)
        remaining = findings
        if repair and findings:
            remaining, inspection = await _check(storage, repair=False, keys=keys)
        encrypted = await count_by_key(storage, now=0)
        write_seconds = await measure_write(storage, "doctor")
        counts = [await storage.counts(space, now=0) for space in ALL_SPACES]
        applications = (await count_applications(storage, now=system_clock())).applications
        return HealthReport(
            findings=findings,
            remaining=remaining,
            records=sum(sum(each.values()) for each in counts),
            newer=inspection.not_readable,
            quarantined=inspection.quarantined,
            encrypted=encrypted,
            missing_keys=tuple(key_id for key_id in encrypted if key_id not in keys.key_ids),
            engine=storage.name,
            server=await server_info(storage),
            applications=applications,
            write_seconds=write_seconds,
        )


async def _check(storage: Storage, *, repair: bool, keys: Keyring) -> tuple[tuple[str, ...], Inspection]:
    """Return the problems, one sentence each, and the result of inspecting the records."""
    engine = await storage.maintain(repair=repair)
    records = await inspect_records(storage, repair=repair, keys=keys, now=system_clock())
    return (*engine.findings, *(str(each) for each in records.damaged)), records


async def inspect_records(
    storage: Storage, *, repair: bool, keys: Keyring = NO_KEYS, now: Micros
) -> Inspection:
    """Decode all records.

    With `repair`, quarantine damaged records in `QUARANTINED_SPACES`, and delete damaged keys of cursors and
    locators. The next process that needs such a key generates a new one. Older cursors and locators are then
    invalid, so clients must list their tasks again, and operators must reload their pages.
    """
    decoders: Mapping[Space, Callable[[Record], object]] = {**DECODERS, TASKS: partial(_decode_task, keys)}
    found = [
        await inspect(storage, space, decode, repair=repair and space in QUARANTINED_SPACES, now=now)
        for space, decode in decoders.items()
    ]
    if repair:
        await _delete_damaged_keys(storage, now)
    return Inspection(
        examined=sum(each.examined for each in found),
        damaged=tuple(damage for each in found for damage in each.damaged),
        not_readable=sum(each.not_readable for each in found),
        quarantined=sum(each.quarantined for each in found),
    )


async def _delete_damaged_keys(storage: Storage, now: Micros) -> None:
    for record in await storage.get_many((CURSOR_KEY, LOCATOR_KEY), now=now):
        if record is not None:
            try:
                decode_key(record)
            except CorruptRecord:
                await storage.commit([Delete(before=record)], now=now)
            except NewerFormat:
                pass


def _decode_task(keys: Keyring, record: Record) -> Snapshot:
    """Decode a task. If `keys` contains all keys that it needs, also decrypt its encrypted fields."""
    head = Snapshot.head_of(record)
    return Snapshot.from_record(record, keys) if key_ids(head.task) <= set(keys.key_ids) else head


async def server_info(storage: Storage) -> ServerInfo:
    """Return the version of the server behind a storage, and measure the offset of its clock."""
    await storage.info()  # opens the connection, so that the measured time contains only the request
    before = system_clock()
    info = await storage.info()
    after = system_clock()
    if info.time is None:
        return ServerInfo(version=info.server)
    offset = info.time - (before + after) / 2
    return ServerInfo(version=info.server, clock_offset=offset / 1e6, offset_error=(after - before) / 2e6)


async def measure_write(storage: Storage, purpose: str) -> float:
    """Write and delete a test record, and return how many seconds that took."""
    now = system_clock()
    probe = _probe(SETTINGS, purpose, now)
    started = time.monotonic()
    await storage.commit([Insert(record=probe)], now=now)
    await storage.commit([Delete(before=probe)], now=now)
    return time.monotonic() - started


def _probe(space: Space, purpose: str, now: Micros) -> Record:
    """Return a test record with a unique key. It expires, in case this process fails to delete it."""
    return Record(
        space=space,
        partition="perdure",
        key=f"{purpose}-{token_hex(8)}",
        order=now,
        body=PROBE_BODY,
        expires_at=now + PROBE_LIFETIME,
    )
