"""What the commands do to whole storages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from secrets import token_hex
from urllib.parse import urlsplit

import msgspec

from ..operating.maintenance import READERS, LiveClaims, inspect_records, live_claims
from ..runtime import RuntimeConfig
from ..storage import Delete, Insert, Micros, Record, Space, Storage, open_storage
from ..storage.clock import system_clock
from ..storage.copy import COPIES, ProgressCallback, copy_records
from ..storage.errors import TargetNotEmpty
from ..storage.quarantine import Inspection
from ..tasks.listing import SETTINGS
from .backends import redact_url, require_existing, require_shared
from .errors import CommandError
from .servers import Place, place_of

SPACES = tuple(READERS)
"""Everything that perdure stores."""
LONGEST_PROBE: Micros = 600 * 1_000_000
PROBE_BODY = f'{{"format":1,"padding":"{"x" * 8192}"}}'
"""Longer than a page of any engine: a short record may still fit into a storage that is full."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    records: Mapping[Space, int]
    """How many there are of each space, in both storages."""
    live_tasks: int
    """Tasks of the source that workers were running when the copy started."""
    live_accounts: int
    """Accounts of the source that pollers were reading then."""


async def copy_all(
    source: str, target: str, *, merge: bool, tell: ProgressCallback, warn: Callable[[LiveClaims], None]
) -> Copied:
    """Copy every space, and compare. `warn` is called first if processes still work on the source."""
    require_shared(target)
    require_existing(source, hint="name the storage to copy with --url or PERDURE_URL")
    async with await open_storage(source) as read:
        live = await live_claims(read, now=system_clock())
        if live:
            warn(live)
        async with await open_storage(target) as written:
            if await _are_the_same(read, written):
                raise CommandError(
                    f"{redact_url(target)} is the storage that is to be copied; name another to copy it to"
                )
            try:
                name = _name(read.name, source)
                counts = await copy_records(read, written, SPACES, name=name, merge=merge, on_progress=tell)
            except TargetNotEmpty as error:
                raise CommandError(f"cannot copy into {redact_url(target)}: {error} (--merge)") from error
    return Copied(records=counts, live_tasks=live.tasks, live_accounts=live.accounts)


async def _are_the_same(read: Storage, written: Storage) -> bool:
    """Whether what is written to one stands in the other: a storage may have several names."""
    now = system_clock()
    probe = _probe(COPIES, "copy", now)
    await written.commit([Insert(record=probe)], now=now)
    try:
        return await read.get(probe.address, now=now) is not None
    finally:
        await written.commit([Delete(before=probe)], now=now)


def _name(engine: str, url: str) -> str:
    """What tells one source from another, and does not tell a password."""
    parts = urlsplit(url)
    where = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return f"{engine} {blake2b(where.encode(), digest_size=6).hexdigest()}"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    findings: tuple[str, ...]
    """What was wrong with the storage, one sentence each."""
    remaining: tuple[str, ...]
    """What still is."""
    records: int
    newer: int
    """Records that a newer version of perdure wrote. They are left as they are, and nothing is wrong."""
    quarantined: int
    """Damaged records that are kept in quarantine."""
    engine: str
    server: Place
    """What the server tells of itself."""
    write: float
    """Seconds that writing a record and removing it took: so it may write."""

    @property
    def is_apart(self) -> bool:
        """Whether the server's clock is further from ours than workers allow for."""
        return self.server.is_apart(RuntimeConfig().clock_skew)

    @property
    def is_well(self) -> bool:
        return not (self.remaining or self.is_apart)


async def examine(url: str, *, repair: bool) -> Health:
    """Check a storage and all its records. With `repair`, set counters right and quarantine damaged records,
    and then check again.
    """
    require_existing(url)
    async with await open_storage(url) as storage:
        found, records = await _check(storage, repair=repair)
        remaining = found
        if repair and found:
            remaining, records = await _check(storage, repair=False)
        write = await try_to_write(storage, "doctor")
        counts = [await storage.counts(space, now=0) for space in SPACES]
        engine, place = storage.name, await place_of(storage)
    return Health(
        findings=found,
        remaining=remaining,
        records=sum(sum(each.values()) for each in counts),
        newer=records.newer,
        quarantined=records.quarantined,
        engine=engine,
        server=place,
        write=write,
    )


async def _check(storage: Storage, *, repair: bool) -> tuple[tuple[str, ...], Inspection]:
    """Return what is wrong, one sentence each."""
    engine = await storage.maintain(repair=repair)
    records = await inspect_records(storage, repair=repair, now=system_clock())
    return (*engine.findings, *(str(each) for each in records.damaged)), records


async def try_to_write(storage: Storage, who: str) -> float:
    """Write a record, remove it again, and return how many seconds that took."""
    now = system_clock()
    probe = _probe(SETTINGS, who, now)
    began = time.monotonic()
    await storage.commit([Insert(record=probe)], now=now)
    await storage.commit([Delete(before=probe)], now=now)
    return time.monotonic() - began


def _probe(space: Space, who: str, now: Micros) -> Record:
    """A record of ours alone. It expires, in case that nobody lives to remove it."""
    return Record(
        space=space,
        partition="perdure",
        key=f"{who}-{token_hex(8)}",
        order=now,
        body=PROBE_BODY,
        expires_at=now + LONGEST_PROBE,
    )


def lines_of_health(health: Health, *, repair: bool) -> Iterator[str]:
    """How the storage is, for people."""
    yield from _lines_of_place(health)
    yield from health.findings
    if health.remaining:
        yield (
            "some of it cannot be repaired"
            if repair
            else "repair counters and quarantine damage with --repair"
        )
    if health.newer:
        yield f"written by a newer version, and left as they are: {health.newer} records"
    if health.quarantined:
        yield f"quarantined, and kept: {health.quarantined} damaged records"
    if health.is_apart:
        yield "the clocks are further apart than workers allow for (clock_skew); set them by NTP"
    if health.is_well:
        what = "set right, among" if health.findings else "all is well with"
        yield f"{what} {health.records} records"


def _lines_of_place(health: Health) -> Iterator[str]:
    server = health.server
    yield f"storage {health.engine}{server.version and f', {server.version}'}; its schema is ours"
    yield f"writing a record and removing it took {health.write * 1000:.0f} ms"
    if server.ahead is not None:
        word = "ahead of" if server.ahead > 0 else "behind"
        yield f"its clock is {abs(server.ahead):.3f} s {word} ours (within {server.margin:.3f} s)"
