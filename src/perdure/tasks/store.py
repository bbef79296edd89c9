"""`TaskStore`: tasks, kept in any storage.

Reading gives a `Snapshot`; every writing verb takes one and writes only if the task is still at that version,
else it raises ConcurrentModification. Nothing retries by itself; `update` does, a bounded number of times,
for edits that may be repeated on whatever is there. The rules are in `edits`, the pages in `listing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import uniform
from typing import TypeAlias, TypeVar

import anyio

from ..storage import (
    Accepted,
    Change,
    Committed,
    Conflict,
    Delete,
    Guard,
    Micros,
    Missing,
    Record,
    Refused,
    Storage,
)
from ..storage.body import check_number
from ..storage.clock import system_clock
from . import edits, idempotency, upkeep
from .codec import JsonLike
from .config import StoreConfig
from .edits import NewTask
from .errors import (
    AlreadyExists,
    AuthenticationRequired,
    ClaimLost,
    ConcurrentModification,
    CorruptRecord,
    NotFound,
    QuotaExceeded,
    TaskError,
)
from .inputs import InputRequest
from .lifecycle import ACTIVE_STATUSES, Status
from .listing import DEFAULT_PAGE_SIZE, Listing, TaskFilter, TaskPage
from .owner import Owner, partition_of
from .quota import ActiveTaskQuota
from .record import Outcome, Progress, TaskId, TaskRecord, is_task_id, new_task_id
from .snapshot import (
    LEASE_FORMAT,
    TASKS,
    Snapshot,
    lease_address,
    new_snapshot,
    tags_of,
    task_address,
)
from .upkeep import PurgeResult, Upkeep

T = TypeVar("T")

Edit: TypeAlias = Callable[[TaskRecord, Micros, StoreConfig], TaskRecord]
"""What makes a task of a task, at a time and within limits: one of `edits`, with its arguments."""

LeaseChange: TypeAlias = Callable[[Snapshot], Change | None]
"""What becomes of the lease, where there is one, when the task becomes this."""

MAX_UPDATE_ATTEMPTS = 10
"""How often `update` tries before it gives up."""


class TaskStore:
    """Durable tasks. Owners see their own, and cannot learn of others'."""

    def __init__(
        self,
        storage: Storage,
        config: StoreConfig = StoreConfig(),
        *,
        clock: Callable[[], Micros] = system_clock,
        new_id: Callable[[], TaskId] = new_task_id,
    ) -> None:
        self._storage = storage
        self._config = config
        self._clock = clock
        self._new_id = new_id
        self._listing = Listing(storage)
        self._active_quota = ActiveTaskQuota(storage)
        active = frozenset(status.value for status in ACTIVE_STATUSES)
        self._owner_guard = Guard(space=TASKS, tags=active, max_count=config.max_tasks_per_owner)

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def config(self) -> StoreConfig:
        return self._config

    @property
    def clock(self) -> Callable[[], Micros]:
        return self._clock

    # Creating and reading

    async def create(
        self, owner: Owner, new: NewTask, *, lease: Callable[[Snapshot], Change] | None = None
    ) -> Snapshot:
        """A new task, readable before this returns; or the first one of the same idempotency key.

        With a lease the task is born in work: `lease` makes the change that says who works on it.
        """
        self._check_owner_allowed(owner)
        if new.idempotency_key is not None:
            idempotency.check_key(new.idempotency_key, owner, self._config)
        now = self._clock()
        task = edits.create(new, owner=owner, task_id=self._new_id(), now=now, config=self._config)
        if lease is not None:
            task = edits.claim(task, now=now)
        snapshot = new_snapshot(task, self._config)
        also = () if lease is None else (lease(snapshot),)
        if new.idempotency_key is not None:
            return await self._create_idempotent(snapshot, new.idempotency_key, also, now)
        refused = await self._insert(snapshot, also, now)
        if refused is not None:
            raise AlreadyExists
        return snapshot

    async def get(self, owner: Owner, task_id: str) -> Snapshot:
        """The task, if this owner has such a one."""
        self._check_owner_allowed(owner)
        snapshot = await self._find(owner, task_id, self._clock())
        if snapshot is None:
            raise NotFound
        return snapshot

    async def list(
        self,
        owner: Owner,
        *,
        cursor: str | None = None,
        limit: int = DEFAULT_PAGE_SIZE,
        task_filter: TaskFilter = TaskFilter(),
        newest_first: bool = False,
    ) -> TaskPage:
        """A page of the owner's tasks, by creation. Anonymous callers are shown none."""
        self._check_owner_allowed(owner)
        if owner.is_anonymous:
            return TaskPage(tasks=())
        return await self._listing.page(
            partition_of(owner, ""),
            task_filter,
            cursor=cursor,
            limit=limit,
            newest_first=newest_first,
            now=self._clock(),
        )

    async def list_all(
        self,
        *,
        cursor: str | None = None,
        limit: int = DEFAULT_PAGE_SIZE,
        wanted: TaskFilter = TaskFilter(),
        newest_first: bool = False,
    ) -> TaskPage:
        """A page of everybody's tasks. For operators: nothing is checked here."""
        return await self._listing.page(
            None, wanted, cursor=cursor, limit=limit, newest_first=newest_first, now=self._clock()
        )

    async def counts(self, owner: Owner | None = None) -> dict[Status, int]:
        """How many tasks there are of each status: of an owner, or (for operators) of all."""
        if owner is not None:
            self._check_owner_allowed(owner)
            if owner.is_anonymous:
                return {}
        partition = None if owner is None else partition_of(owner, "")
        counts = await self._storage.counts(TASKS, partition, now=self._clock())
        summed = {status: sum(counts.get(tag, 0) for tag in tags_of(status)) for status in Status}
        return {status: count for status, count in summed.items() if count}

    # Writing. Each takes what was read, and raises ConcurrentModification if that is no longer true.

    async def edit(self, snapshot: Snapshot, edit: Edit, *, lease: LeaseChange | None = None) -> Snapshot:
        """Write what an edit makes of the task. The verbs below are the edits that there are.

        A worker gives the change of its lease, which is committed together with the task or not at all:
        ClaimLost where the lease is no longer what the worker thinks.
        """
        now = self._clock()
        edited = edit(snapshot.task, now, self._config)
        if edited is snapshot.task:
            return snapshot
        following, change = snapshot.replace_with(edited, self._config)
        also = None if lease is None else lease(following)
        result = await self._storage.commit([change] if also is None else [change, also], now=now)
        if isinstance(result, Refused):
            raise _error_for(result, snapshot)
        return following

    async def report(
        self, snapshot: Snapshot, *, message: str | None = None, progress: Progress | None = None
    ) -> Snapshot:
        """Say what is going on."""
        return await self.edit(
            snapshot,
            lambda task, now, config: edits.report(
                task, message=message, progress=progress, now=now, config=config
            ),
        )

    async def set_variables(self, snapshot: Snapshot, changes: Mapping[str, JsonLike]) -> Snapshot:
        """Merge into the variables: each name as a whole, null takes it away."""
        return await self.edit(
            snapshot, lambda task, now, config: edits.set_variables(task, changes, now=now, config=config)
        )

    async def finish(self, snapshot: Snapshot, outcome: Outcome, *, message: str | None = None) -> Snapshot:
        """End the task: a success completes it, a failure fails it."""
        return await self.edit(
            snapshot,
            lambda task, now, config: edits.finish(task, outcome, message=message, now=now, config=config),
        )

    async def cancel(
        self, snapshot: Snapshot, *, message: str | None = None, lease: LeaseChange | None = None
    ) -> Snapshot:
        """End the task as cancelled."""
        return await self.edit(
            snapshot,
            lambda task, now, config: edits.cancel(task, message=message, now=now, config=config),
            lease=lease,
        )

    async def request_cancel(self, snapshot: Snapshot) -> Snapshot:
        """Leave word that the task should end; whoever works on it ends it."""
        return await self.edit(snapshot, lambda task, now, _: edits.request_cancel(task, now=now))

    async def ask(self, snapshot: Snapshot, requests: Mapping[str, InputRequest]) -> Snapshot:
        """Ask the client, under keys that this task never used before."""
        return await self.edit(
            snapshot, lambda task, now, config: edits.ask(task, requests, now=now, config=config)
        )

    async def answer(self, snapshot: Snapshot, answers: Mapping[str, JsonLike]) -> Snapshot:
        """Answer what is outstanding; other keys are passed over. When all is answered, work goes on."""
        return await self.edit(
            snapshot, lambda task, now, config: edits.answer(task, answers, now=now, config=config)
        )

    async def hold(self, snapshot: Snapshot) -> Snapshot:
        """Claim the task: from now on its ttl does not end it."""
        return await self.edit(snapshot, lambda task, now, _: edits.claim(task, now=now))

    async def release(self, snapshot: Snapshot) -> Snapshot:
        """Give the task back unfinished."""
        return await self.edit(
            snapshot, lambda task, now, config: edits.release(task, now=now, config=config)
        )

    async def delete(self, owner: Owner, task_id: str) -> bool:
        """Remove a task, whatever its status. False where there is none.

        Raises NewerFormat if a newer version wrote the task or its lease.
        """
        self._check_owner_allowed(owner)
        now = self._clock()
        record = await self._find_record(owner, task_id, now)
        if record is None:
            return False
        with suppress(CorruptRecord):  # what is damaged can be deleted too
            Snapshot.from_record(record)
        lease = await self._storage.get(lease_address(record), now=now)
        if lease is not None:
            check_number(lease.key, lease.body, LEASE_FORMAT)
        found = (record,) if lease is None else (record, lease)
        match await self._storage.commit([Delete(before=each) for each in found], now=now):
            case Refused(results=(Conflict(actual=actual), *_)):
                raise ConcurrentModification(record.version, actual)
            case Refused(results=(Accepted(), *_)):  # the lease was extended meanwhile
                return await self.delete(owner, task_id)
            case result:
                return isinstance(result, Committed)

    async def update(
        self,
        owner: Owner,
        task_id: str,
        edit: Callable[[Snapshot], Awaitable[T]],
        *,
        attempts: int = MAX_UPDATE_ATTEMPTS,
    ) -> T:
        """Read and edit, again if somebody wrote in between: for edits that commute with others'."""
        for attempt in range(1, attempts):
            snapshot = await self.get(owner, task_id)
            try:
                return await edit(snapshot)
            except ConcurrentModification:
                pause = min(0.25, 0.001 * 2 ** min(attempt, 8))
                await anyio.sleep(uniform(0, pause))
        return await edit(await self.get(owner, task_id))

    # Upkeep

    async def purge(self, *, now: Micros | None = None, limit: int = upkeep.BATCH) -> PurgeResult:
        """Remove up to `limit` of what had expired by then, and tell which."""
        return await upkeep.sweep(self._storage, now=self._clock() if now is None else now, limit=limit)

    async def maintain(self) -> Upkeep:
        """Purge, compact and check. Quarantine what is damaged."""
        return await upkeep.maintain(self._storage, now=self._clock())

    # Within

    def _check_owner_allowed(self, owner: Owner) -> None:
        if owner.is_anonymous and not self._config.allow_anonymous:
            raise AuthenticationRequired

    async def _find(self, owner: Owner, task_id: str, now: Micros) -> Snapshot | None:
        record = await self._find_record(owner, task_id, now)
        return None if record is None else Snapshot.from_record(record)

    async def _find_record(self, owner: Owner, task_id: str, now: Micros) -> Record | None:
        if not is_task_id(task_id):
            return None  # as absent as any other
        return await self._storage.get(task_address(partition_of(owner, task_id), task_id), now=now)

    async def _insert(self, snapshot: Snapshot, also: Sequence[Change], now: Micros) -> Refused | None:
        """Store a new task within the quotas; the refusal, where another record is in the way."""
        await self._check_total(now)
        guard = None if snapshot.task.owner.is_anonymous else self._owner_guard
        result = await self._storage.commit([snapshot.to_insert(), *also], guard=guard, now=now)
        if isinstance(result, Committed):
            return None
        if result.guard_count is not None:
            raise QuotaExceeded("owner", self._config.max_tasks_per_owner)
        return result

    async def _check_total(self, now: Micros) -> None:
        most = self._config.max_tasks
        if most and not await self._active_quota.try_admit(most, now):
            raise QuotaExceeded("server", most)

    async def _create_idempotent(
        self, snapshot: Snapshot, key: str, also: Sequence[Change], now: Micros
    ) -> Snapshot:
        address = idempotency.key_address(snapshot.record.partition, key)
        while True:  # ends: a round fails only when another create with this key has just succeeded
            pointer = await self._storage.get(address, now=now)
            first = await self._existing_task(snapshot, pointer, now)
            if first is not None:
                return first
            change = idempotency.bind_key(address, snapshot.task, pointer, self._config)
            refused = await self._insert(snapshot, [*also, change], now)
            if refused is None:
                return snapshot
            if isinstance(refused.results[0], Conflict):
                raise AlreadyExists

    async def _existing_task(self, again: Snapshot, pointer: Record | None, now: Micros) -> Snapshot | None:
        """The task that an idempotency key stands for, if it still exists."""
        if pointer is None:
            return None
        task_id = idempotency.decode_task_id(pointer)
        first = None if task_id is None else await self._find(again.task.owner, task_id, now)
        if first is not None:
            idempotency.check_same_call(first.task, again.task)
        return first


def _error_for(result: Refused, snapshot: Snapshot) -> TaskError:
    met, *lease = result.results
    if any(isinstance(answer, (Conflict, Missing)) for answer in lease):
        return ClaimLost()
    match met:
        case Conflict(actual=actual):
            return ConcurrentModification(snapshot.version, actual)
        case _:
            return NotFound()
