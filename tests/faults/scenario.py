"""The scenario: clients work during faults, then without them, and then the evidence is collected.

One seed decides what the clients do and which faults occur. It does not decide which calls a fault meets.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TypeAlias, TypeVar

import msgspec

from perdure.storage import Address, Record, Space, Storage, Tag
from perdure.storage.errors import StorageUnavailable
from perdure.storage.kit.sample_records import NOW

from .clients import LANE, SPACES, THINGS, WITNESSES, Client, SharedState
from .journal import Journal

REVIVAL = "revival"
"""The partition that is written to when the faults are over."""
CALL_TIMEOUT = 60.0
PAGE = 500
ADDRESSES = 100
MAX_DUE = 1000

T = TypeVar("T")
Disturbance: TypeAlias = Callable[[Random], Awaitable[None]]
"""Something bad that happens, and is over when it returns."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float
    answers: int = 0
    """The minimum number of commits that are answered before the scenario ends, even if it takes longer."""
    guard_refusals: int = 0
    """The minimum number of commits that a guard refuses, likewise."""
    clients: int = 12
    hangs: float = 30.0
    """Seconds after which a call is said to hang."""
    recovers: float = 20.0
    """Seconds after the last fault within which every client must work again."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The storages of a scenario, and its faults."""

    storages: Sequence[Storage]
    """The storages that the clients share. Faults affect them."""
    reopen: Callable[[], Awaitable[Storage]]
    """Opens another storage, which faults do not affect."""
    disturbance: Disturbance
    met: Counter[str]
    """How often each fault happened."""


class Listing(msgspec.Struct, frozen=True):
    """Of a space, or of one partition of it, by two verbs."""

    records: Sequence[Record]
    counts: Mapping[Tag, int]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks examine."""

    journal: Journal
    met: Counter[str]
    records: dict[Address, Record]
    """Every record at the end, by address."""
    spaces: dict[Space, Listing]
    partitions: dict[tuple[Space, str], Listing]
    due: Sequence[Record]
    """What waits in the lane."""
    findings: tuple[str, ...]
    """Of the storage about itself."""


async def run(plan: Plan, stage: Setup) -> Evidence:
    """Everything, in its order."""
    company = SharedState(plan.hangs)
    listeners = [
        Client(f"listener {n}", storage, company, Random(n)) for n, storage in enumerate(stage.storages)
    ]
    listening = [asyncio.create_task(listener.listen()) for listener in listeners]
    try:
        await disturb(plan, stage, company)
        async with await retry(stage.reopen) as direct:
            healthy = Client("healthy", direct, company, Random(plan.seed))
            await asyncio.gather(
                *[wait_for_recovery(listener, healthy, company, plan.recovers) for listener in listeners]
            )
            return await retry(lambda: collect_evidence(direct, company, stage.met))
    finally:
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)


async def disturb(plan: Plan, stage: Setup, company: SharedState) -> None:
    clock = asyncio.get_running_loop().time
    started = clock()

    def is_running() -> bool:
        lasted = clock() - started
        return lasted < plan.seconds or (not has_met_enough(plan, company.journal) and lasted < CALL_TIMEOUT)

    async with asyncio.TaskGroup() as group:
        for n in range(plan.clients):
            storage = stage.storages[n % len(stage.storages)]
            client = Client(f"client {n}", storage, company, Random(f"client {n} {plan.seed}"))
            group.create_task(client.act(is_running))
        group.create_task(apply_disturbance(stage.disturbance, Random(f"fault {plan.seed}"), is_running))


def has_met_enough(plan: Plan, journal: Journal) -> bool:
    return journal.answered >= plan.answers and journal.guard_refusals >= plan.guard_refusals


async def apply_disturbance(disturbance: Disturbance, chance: Random, is_running: Callable[[], bool]) -> None:
    while is_running():
        await disturbance(chance)


# When it is over


async def retry(call: Callable[[], Awaitable[T]]) -> T:
    """Again, until the servers are well: the nodes of a cluster may take a while to agree that they are."""
    async with asyncio.timeout(CALL_TIMEOUT):
        while True:
            try:
                return await call()
            except StorageUnavailable:
                await asyncio.sleep(0.1)


async def wait_for_recovery(client: Client, healthy: Client, company: SharedState, seconds: float) -> None:
    """Check that a client of the scenario can write, read and be woken again, without being opened anew."""
    what = "work"
    try:
        async with asyncio.timeout(seconds):
            while not await client.insert(Address(WITNESSES, REVIVAL, f"by {client.name}")):  # noqa: ASYNC110 - tried again
                await asyncio.sleep(0.05)
            what = "wake"
            before = client.wakings
            while client.wakings == before:  # a watch may miss a change
                await healthy.insert(Address(THINGS, REVIVAL, f"for {client.name}"))
                await asyncio.sleep(0.2)
    except TimeoutError:
        company.journal.complaints.append(f"{client.name} does not {what} again")


async def collect_evidence(storage: Storage, company: SharedState, met: Counter[str]) -> Evidence:
    """Collect the evidence once nothing changes any more: a commit may still be running."""
    await asyncio.sleep(storage.lag)
    spaces = await _spaces(storage)
    while spaces != (again := await _spaces(storage)):
        spaces = again
    places = [(space, partition) for space in SPACES for partition in (*company.partitions, REVIVAL)]
    return Evidence(
        journal=company.journal,
        met=met,
        records=await _found(storage, company.journal, spaces),
        spaces=spaces,
        partitions={place: await _listing(storage, *place) for place in places},
        due=await storage.due(LANE, until=NOW, limit=MAX_DUE, now=NOW),
        findings=(await storage.maintain()).findings,
    )


async def _spaces(storage: Storage) -> dict[Space, Listing]:
    return {space: await _listing(storage, space) for space in SPACES}


async def _listing(storage: Storage, space: Space, partition: str | None = None) -> Listing:
    records: list[Record] = []
    while page := await storage.page(
        space, partition, limit=PAGE, now=NOW, after=records[-1].position if records else None
    ):
        records += page
    return Listing(records, dict(await storage.counts(space, partition, now=NOW)))


async def _found(
    storage: Storage, journal: Journal, spaces: Mapping[Space, Listing]
) -> dict[Address, Record]:
    """What stands at every address that was ever used."""
    used = {change.address for commit in journal.commits for change in commit.changes}
    listed = {record.address for listing in spaces.values() for record in listing.records}
    addresses = sorted(used | listed)
    found: list[Record | None] = []
    for start in range(0, len(addresses), ADDRESSES):
        found += await storage.get_many(addresses[start : start + ADDRESSES], now=NOW)
    return {record.address: record for record in found if record is not None}
