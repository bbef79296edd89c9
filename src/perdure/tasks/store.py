"""`TaskStore` creates, reads and changes tasks in any storage.

Reading a task returns a `Snapshot`. A method that changes a task takes a snapshot, and raises
ConcurrentModification if the task has changed since it was read. `update` reads the task again and retries, a
limited number of times. The rules for how a task may change are in `edits`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import uniform
from typing import TypeAlias, TypeVar

import anyio
import msgspec

from ..storage import (
    Accepted,
    Change,
    Committed,
    Conflict,
    Delete,
    Guard,
    Insert,
    Micros,
    Missing,
    Purged,
    Record,
    Refused,
    Storage,
)
from ..storage.body_format import check_number
from ..storage.time_types import system_clock
from . import edits, idempotency
from .application_name import escape_application
from .config import StoreConfig
from .edits import NewTask
from .encryption import Keyring
from .errors import (
    AlreadyExists,
    AuthenticationRequired,
    ClaimLost,
    ConcurrentModification,
    CorruptRecord,
    InvalidValue,
    NotFound,
    QuotaExceeded,
    TaskError,
)
from .generated_keys import CURSOR_KEY, load_key
from .global_task_limit import GlobalTaskLimit
from .lifecycle import ACTIVE_STATUSES
from .listing import DEFAULT_PAGE_SIZE, TaskFilter, TaskPage, list_tasks
from .owner import Owner, partition_of
from .task_record import TaskId, TaskRecord, is_task_id, new_task_id
from .task_snapshot import LEASE_FORMAT, TASKS, Snapshot, lease_address, new_snapshot, task_address

T = TypeVar("T")

Edit: TypeAlias = Callable[[TaskRecord, Micros, StoreConfig], TaskRecord]
"""A function that takes a task, the current time and the configuration, and returns the changed task."""

LeaseChange: TypeAlias = Callable[[Snapshot], Change | None]
"""A function that takes the edited task and returns a change to its lease, or None for no change.

The lease is the record that a worker renews while it runs the task.
"""

MAX_UPDATE_ATTEMPTS = 10
PURGE_BATCH_SIZE = 500


class PurgeResult(msgspec.Struct, frozen=True):
    """The records that one purge deleted."""

    purged: tuple[Purged, ...]
    more: bool
    """Whether there may be more expired records to delete."""


class TaskStore:
    """Stores the durable tasks of one application, in a storage that other applications can share.

    An owner can access only its own tasks, and cannot find out whether a task of another owner exists.
    """

    def __init__(
        self,
        storage: Storage,
        config: StoreConfig = StoreConfig(),
        *,
        application: str,
        keys: Keyring | None = None,
        clock: Callable[[], Micros] = system_clock,
        new_id: Callable[[], TaskId] = new_task_id,
    ) -> None:
        self.storage = storage
        self.config = config
        escape_application(application)  # raises an error if the name is invalid
        self.application = application
        self.keys = Keyring() if keys is None else keys
        """The keys to encrypt and decrypt tasks with."""
        check_can_encrypt(config, self.keys)
        self._can_encrypt = bool(self.keys)
        self.clock = clock
        self.new_id = new_id
        self._cursor_key: bytes | None = None
        self._global_limit = GlobalTaskLimit(storage)
        active = frozenset(status.value for status in ACTIVE_STATUSES)
        self._owner_guard = Guard(space=TASKS, tags=active, max_count=config.max_tasks_per_owner)

    async def create(
        self,
        owner: Owner,
        new: NewTask,
        *,
        lease: Callable[[Snapshot], Change] | None = None,
        worker: str | None = None,
    ) -> Snapshot:
        """Create a task, or return the existing task with the same idempotency key.

        If `lease` is given, `worker` claims the new task from the start. `lease` is a function that takes the
        new task and returns the change that stores its lease. The task and the lease are stored in the same
        commit.
        """
        self._check_owner_allowed(owner)
        if new.idempotency_key is not None:
            idempotency.check_key(new.idempotency_key, owner, self.config)
        now = self.clock()
        task = edits.create(
            new,
            application=self.application,
            owner=owner,
            task_id=new.task_id or self.new_id(),
            now=now,
            config=self.config,
            can_encrypt=self._can_encrypt,
        )
        if lease is not None:
            task = edits.claim(task, worker=worker, now=now)
        snapshot = new_snapshot(task, self.config, self.keys)
        extra_changes = () if lease is None else (lease(snapshot),)
        if new.idempotency_key is not None:
            return await self._create_idempotent(snapshot, new.idempotency_key, extra_changes, now)
        refused = await self._insert(snapshot, extra_changes, now)
        if refused is not None:
            raise AlreadyExists
        return snapshot

    async def get(self, owner: Owner, task_id: str) -> Snapshot:
        """Return the task. Raise NotFound if this owner has no task with this id."""
        self._check_owner_allowed(owner)
        snapshot = await self._find(owner, task_id, self.clock())
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
        """Return a page of the owner's tasks, sorted by creation time. Anonymous tasks are never listed."""
        self._check_owner_allowed(owner)
        if owner.is_anonymous:
            return TaskPage(tasks=())
        now = self.clock()
        if self._cursor_key is None:
            self._cursor_key = await load_key(self.storage, CURSOR_KEY, now)
        return await list_tasks(
            self.storage,
            self.partition_of(owner),
            task_filter,
            cursor=cursor,
            cursor_key=self._cursor_key,
            limit=limit,
            newest_first=newest_first,
            keys=self.keys,
            now=now,
        )

    async def edit(self, snapshot: Snapshot, edit: Edit, *, lease: LeaseChange | None = None) -> Snapshot:
        """Apply an edit to the task and store the result.

        If the edit changes nothing, write nothing. If `lease` is given, the lease change that it returns is
        stored in the same commit. Raise ClaimLost if the lease has changed since it was read.
        """
        now = self.clock()
        edited = edit(snapshot.task, now, self.config)
        if edited is snapshot.task:
            return snapshot
        next_snapshot, change = snapshot.replace_with(edited, self.config, self.keys)
        lease_change = None if lease is None else lease(next_snapshot)
        changes = [change] if lease_change is None else [change, lease_change]
        result = await self.storage.commit(changes, now=now)
        if isinstance(result, Refused):
            raise _error_for(result, snapshot)
        return next_snapshot

    async def request_cancel(self, snapshot: Snapshot) -> Snapshot:
        """Record a request to cancel the task. The worker that is running the task then cancels it."""
        return await self.edit(snapshot, lambda task, now, _: edits.request_cancel(task, now=now))

    async def delete(self, owner: Owner, task_id: str) -> bool:
        """Delete a task, whatever its status. Return False if it does not exist.

        Raise NewerFormat if a newer version of perdure wrote the task or its lease. An encrypted task can be
        deleted without its key.
        """
        self._check_owner_allowed(owner)
        now = self.clock()
        record = await self._find_record(owner, task_id, now)
        if record is None:
            return False
        with suppress(CorruptRecord):  # a damaged task can be deleted too
            Snapshot.head_of(record)
        lease = await self.storage.get(lease_address(record), now=now)
        if lease is not None:
            check_number(lease.key, lease.body, LEASE_FORMAT)
        found = (record,) if lease is None else (record, lease)
        match await self.storage.commit([Delete(before=each) for each in found], now=now):
            case Refused(results=(Conflict(actual=actual), *_)):
                raise ConcurrentModification(record.version, actual)
            case Refused(results=(Accepted(), *_)):  # only the lease has changed
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
        """Read the task and call `edit` with it. Retry if another caller changed the task in the meantime.

        `edit` is called at most `attempts` times. It must be correct no matter what the other caller changed.
        """
        for attempt in range(1, attempts):
            snapshot = await self.get(owner, task_id)
            try:
                return await edit(snapshot)
            except ConcurrentModification:
                pause = min(0.25, 0.001 * 2 ** min(attempt, 8))
                await anyio.sleep(uniform(0, pause))
        return await edit(await self.get(owner, task_id))

    async def purge(self, *, now: Micros | None = None, limit: int = PURGE_BATCH_SIZE) -> PurgeResult:
        """Delete up to `limit` records that expired at or before `now` (default: the current time)."""
        purged = await self.storage.purge(until=self.clock() if now is None else now, limit=limit)
        return PurgeResult(tuple(purged), more=len(purged) == limit)

    def partition_of(self, owner: Owner, task_id: str = "") -> str:
        """Return the partition of the owner's tasks.

        Each anonymous task has its own partition, whose name contains the id of the task.
        """
        return partition_of(self.application, owner, task_id)

    def _check_owner_allowed(self, owner: Owner) -> None:
        if owner.is_anonymous and not self.config.allow_anonymous:
            raise AuthenticationRequired

    async def _find(self, owner: Owner, task_id: str, now: Micros) -> Snapshot | None:
        record = await self._find_record(owner, task_id, now)
        return None if record is None else Snapshot.from_record(record, self.keys)

    async def _find_record(self, owner: Owner, task_id: str, now: Micros) -> Record | None:
        if not is_task_id(task_id):
            return None
        return await self.storage.get(task_address(self.partition_of(owner, task_id), task_id), now=now)

    async def _insert(
        self, snapshot: Snapshot, extra_changes: Sequence[Change], now: Micros
    ) -> Refused | None:
        """Store a new task together with other changes. Return None if they were stored.

        If one of the changes conflicts, store nothing, and return the `Refused` result that shows which one.

        Raise QuotaExceeded if the server or the owner already has the maximum number of active tasks.
        """
        maximum = self.config.max_tasks
        if maximum and not await self._global_limit.try_admit(maximum, now):
            raise QuotaExceeded("server", maximum)
        guard = None if snapshot.task.owner.is_anonymous else self._owner_guard
        result = await self.storage.commit(
            [Insert(record=snapshot.record), *extra_changes], guard=guard, now=now
        )
        if isinstance(result, Committed):
            return None
        if result.guard_count is not None:
            raise QuotaExceeded("owner", self.config.max_tasks_per_owner)
        return result

    async def _create_idempotent(
        self, snapshot: Snapshot, key: str, extra_changes: Sequence[Change], now: Micros
    ) -> Snapshot:
        address = idempotency.key_address(snapshot.record.partition, key)
        while True:  # it ends: a refusal means that another call with this key has just succeeded
            key_record = await self.storage.get(address, now=now)
            existing = await self._existing_task(snapshot, key_record, now)
            if existing is not None:
                return existing
            change = idempotency.bind_key(address, snapshot.task, key_record, self.config)
            refused = await self._insert(snapshot, [*extra_changes, change], now)
            if refused is None:
                return snapshot
            if isinstance(refused.results[0], Conflict):
                raise AlreadyExists

    async def _existing_task(self, new: Snapshot, key_record: Record | None, now: Micros) -> Snapshot | None:
        """Return the stored task to which the idempotency key is bound, or None if there is none.

        Raise IdempotencyKeyReused if that task was created by a different call than `new`.
        """
        if key_record is None:
            return None
        task_id = idempotency.decode_task_id(key_record)
        existing = None if task_id is None else await self._find(new.task.owner, task_id, now)
        if existing is not None:
            idempotency.check_same_call(existing.task, new.task)
        return existing


def check_can_encrypt(config: StoreConfig, keys: Keyring) -> None:
    """Raise InvalidValue if the configuration requires encryption of everything, but there is no key."""
    if config.encrypt == "everything" and not keys:
        remedy = "set PERDURE_ENCRYPTION_KEY to a key from `perdure key`"
        raise InvalidValue("encrypt", f"'everything' needs a key; {remedy}")


def _error_for(result: Refused, snapshot: Snapshot) -> TaskError:
    task_result, *lease_results = result.results
    if any(isinstance(each, (Conflict, Missing)) for each in lease_results):
        return ClaimLost()
    match task_result:
        case Conflict(actual=actual):
            return ConcurrentModification(snapshot.version, actual)
        case _:
            return NotFound()
