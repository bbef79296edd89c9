"""`Operator`: everybody's tasks, for those who run the servers. Who may ask is checked by whoever calls it.

It needs no server: it reads and writes the storage, by the same rules as clients and workers do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing

from msgspec.structs import replace

from ..runtime import Functions, Runtime
from ..storage import Micros, Storage
from ..storage.clock import HOUR, system_clock
from ..tasks import Snapshot, Status, StoreConfig, TaskRecord, TaskStore, edits
from ..tasks.codec import JsonLike
from ..tasks.errors import NotFound
from ..tasks.lifecycle import ACTIVE_STATUSES
from ..tasks.listing import DEFAULT_PAGE_SIZE
from ..tasks.record import is_task_id
from ..tasks.snapshot import TASKS, lease_address, task_address
from . import listing, stats
from .errors import NotAsked
from .listing import Rows, Wanted
from .locators import Sealer, key_of
from .purge import Purge, purge
from .stats import Stats, Throughput
from .views import Detail, Held, Row, detail_of, newer_task_of, row_of
from .watch import USUAL, Changes, Pace, watch_one, watch_rows


class Operator:
    """Looks at all tasks of a storage, and cancels, answers and removes them.

    `config` is that of the servers, if it is not the default: an answer must fit its limits.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Callable[[], Micros] = system_clock,
        *,
        config: StoreConfig = StoreConfig(),
    ) -> None:
        self.storage = storage
        self.clock = clock
        self._store = TaskStore(storage, replace(config, allow_anonymous=True), clock=clock)
        self._runtime = Runtime(self._store, Functions())  # runs nothing
        self._sealers: tuple[Sealer, Sealer] | None = None

    # Looking

    async def tasks(
        self,
        *,
        statuses: Collection[Status] | None = None,
        name: str | None = None,
        after: str | None = None,
        limit: int = DEFAULT_PAGE_SIZE,
    ) -> Rows:
        """The newest tasks, or those after a cursor: of some statuses, or of one function, tool or method.

        By status each page is an index seek. By name at most 1 000 tasks are looked at, so that a page may be
        short, or empty, and still have a `next`.
        """
        handles, cursors = await self._seals()
        now = self.clock()
        wanted = Wanted(statuses=None if statuses is None else frozenset(statuses), name=name)
        position = listing.position_of(after, cursors)
        found = await listing.stretch_of(self.storage, wanted, after=position, limit=limit, now=now)
        return Rows(
            rows=tuple(row_of(each, now=now, handle_of=handles.seal) for each in found.snapshots),
            corrupt=found.corrupt,
            newer=tuple(newer_task_of(each, now=now, handle_of=handles.seal) for each in found.newer),
            next=listing.cursor_of(found.after, cursors),
        )

    async def get(self, handle: str, task_id: str) -> Detail:
        """One task in full: two reads. NotFound where it is gone."""
        return await self._detail(await self._snapshot(handle, task_id))

    async def find(self, text: str, *, among: int | None = None) -> Detail:
        """The task of this id, or of the only one that begins so (at least 6 letters).

        Costs up to a walk over all tasks, or over the newest so many: see `listing.find`. Who has a handle
        uses `get`.
        """
        return await self._detail(await listing.find(self.storage, text, among=among, now=self.clock()))

    async def counts(self) -> dict[Status, int]:
        """How many tasks there are of each status, none left out. Cheap."""
        return await stats.counts_of(self.storage, self.clock())

    async def held(self) -> int:
        """How many tasks a worker has. Cheap."""
        return await stats.held_in(self.storage, self.clock())

    async def leases(self) -> list[Held]:
        """Who holds which task, of the newest 1 000."""
        handles, _ = await self._seals()
        return await stats.leases_in(self.storage, self.clock(), handles.seal)

    async def throughput(
        self, window: Micros = HOUR, *, parts: int = 60, until: Micros | None = None
    ) -> Throughput:
        """What ended of late, in equal parts of the window, which ends now, or at a time that is said. Looks
        at up to 4 000 tasks.
        """
        return await stats.throughput_of(
            self.storage, window=window, parts=parts, now=self.clock(), until=until
        )

    async def oldest_waiting(self) -> Row | None:
        """Who has waited for a worker longest."""
        return await self._row_or_none(await stats.oldest_waiting(self.storage, self.clock()))

    async def oldest_asking(self) -> Row | None:
        """Who has waited for an answer longest."""
        return await self._row_or_none(await stats.oldest_asking(self.storage, self.clock()))

    async def stats(self, window: Micros = HOUR, *, parts: int = 60) -> Stats:
        """All figures at once."""
        now = self.clock()
        counts, leases = await self.counts(), await self.leases()
        held = await self.held()
        return Stats(
            counts=counts,
            held=held,
            waiting=max(0, sum(counts[status] for status in ACTIVE_STATUSES) - held),
            oldest_waiting=await self.oldest_waiting(),
            oldest_asking=await self.oldest_asking(),
            workers=stats.workers_of(leases, now),
            expired=await stats.expired_in(self.storage, now),
            throughput=await self.throughput(window, parts=parts),
        )

    def watch(
        self,
        *,
        statuses: Collection[Status] | None = None,
        name: str | None = None,
        limit: int = DEFAULT_PAGE_SIZE,
        pace: Pace = USUAL,
    ) -> AsyncGenerator[Changes]:
        """The newest tasks, then each change of that page as it is seen. For ever; close it."""
        return watch_rows(
            self.storage.watch(TASKS),
            lambda: self.tasks(statuses=statuses, name=name, limit=limit),
            pace,
        )

    async def watch_task(self, handle: str, task_id: str, *, pace: Pace = USUAL) -> AsyncGenerator[Detail]:
        """One task, and each newer state of it that is seen, up to its end. NotFound when it is gone."""
        place = (await self._snapshot(handle, task_id)).record.address
        watch = self.storage.watch(*place)
        async with aclosing(watch_one(watch, lambda: self.get(handle, task_id), pace)) as seen:
            async for detail in seen:
                yield detail

    # Acting

    async def cancel(self, handle: str, task_id: str) -> Row:
        """End a task that waits; ask the worker of one that runs to end it. TerminalTask if it has ended."""
        owner = (await self._snapshot(handle, task_id)).task.owner
        return await self._row(await self._runtime.cancel(owner, task_id))

    async def answer(self, handle: str, task_id: str, key: str, value: JsonLike) -> Row:
        """Answer an open question, in the shape of its kind: `{"action": "accept", "content": {...}}`.

        NotAsked where no such question is open; MalformedAnswer where it is not what was asked for.
        """
        from ..tasks.forms import check_form  # noqa: PLC0415 (its schemas take long to load, and few answer)

        def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
            if not task.is_terminal and key not in task.outstanding:
                raise NotAsked(key, task.outstanding)
            answered = edits.answer(task, {key: value}, now=now, config=config)  # bounds before forms
            check_form(key, task.inputs[key], value)
            return answered

        owner = (await self._snapshot(handle, task_id)).task.owner
        return await self._row(
            await self._store.update(owner, task_id, lambda read: self._store.edit(read, edit))
        )

    async def purge(self, *, ended_before: Micros | None = None, dry_run: bool = False) -> Purge:
        """Remove what has expired and, where a time is named, every task that had ended by then."""
        return await purge(self._store, ended_before=ended_before, dry_run=dry_run)

    # Within

    async def _seals(self) -> tuple[Sealer, Sealer]:
        """For handles, and for cursors."""
        if self._sealers is None:
            key = await key_of(self.storage, self.clock())
            self._sealers = Sealer(key, "handle"), Sealer(key, "cursor")
        return self._sealers

    async def _snapshot(self, handle: str, task_id: str) -> Snapshot:
        handles, _ = await self._seals()
        partition = handles.unseal(handle)
        if partition is None or not is_task_id(task_id):
            raise NotFound
        record = await self.storage.get(task_address(partition, task_id), now=self.clock())
        if record is None:
            raise NotFound
        return Snapshot.from_record(record)

    async def _row(self, snapshot: Snapshot) -> Row:
        handles, _ = await self._seals()
        return row_of(snapshot, now=self.clock(), handle_of=handles.seal)

    async def _row_or_none(self, snapshot: Snapshot | None) -> Row | None:
        return None if snapshot is None else await self._row(snapshot)

    async def _detail(self, snapshot: Snapshot) -> Detail:
        lease = await self.storage.get(lease_address(snapshot.record), now=self.clock())
        return detail_of(snapshot, await self._row(snapshot), lease)
