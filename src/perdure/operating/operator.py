"""`Operator` reads and changes the tasks of all owners. The caller must check permissions.

It follows the same rules as clients and workers, and accesses the storage directly, so no server needs to
run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing

from msgspec.structs import replace

from ..runtime import Functions, Runtime
from ..runtime.lease import HELD
from ..storage import Micros, Storage
from ..storage.time_types import HOUR, system_clock
from ..tasks import Snapshot, Status, StoreConfig, TaskRecord, TaskStore, edits
from ..tasks.canonical_json import JsonLike
from ..tasks.encryption import Keyring
from ..tasks.errors import CorruptRecord, KeyMissing, NotFound
from ..tasks.generated_keys import LOCATOR_KEY, load_key
from ..tasks.lifecycle import ACTIVE_STATUSES
from ..tasks.listing import DEFAULT_PAGE_SIZE, scan_tasks
from ..tasks.task_record import is_task_id
from ..tasks.task_snapshot import LEASES, TASKS, lease_address, task_address
from . import listing, stats
from .applications import ApplicationCounts, count_applications
from .errors import NoOpenQuestion
from .listing import TaskSummaryPage
from .locators import Sealer
from .purge import PurgeReport, purge
from .stats import MAX_READ_CHARS, Stats, Throughput
from .views import (
    TAGS,
    ClaimSummary,
    Question,
    TaskDetail,
    TaskSummary,
    describe_task,
    matches_filter,
    open_questions,
    parse_claim,
    summarize_newer,
    summarize_task,
)
from .watch import DEFAULT_WATCH, TaskChanges, WatchConfig, watch_page, watch_task

MAX_CLAIMS = 1000


class Operator:
    """Reads the tasks of all owners and applications, cancels them, answers their questions, and purges them.

    If the servers use a custom `config`, pass it here too, so that the same limits apply to answers. Views of
    tasks show only unencrypted data and need no keys. To change an encrypted task, or to see those of its
    questions that operators may answer, pass the keys that it needs as `keys`.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Callable[[], Micros] = system_clock,
        *,
        config: StoreConfig = StoreConfig(),
        keys: Keyring | None = None,
    ) -> None:
        self.storage = storage
        self.clock = clock
        self._config = replace(config, allow_anonymous=True, encrypt="credentials")
        self._keys = keys
        self._sealers: tuple[Sealer, Sealer] | None = None

    # Reading

    async def tasks(
        self,
        *,
        statuses: Collection[Status] | None = None,
        name: str | None = None,
        application: str | None = None,
        after: str | None = None,
        limit: int = DEFAULT_PAGE_SIZE,
    ) -> TaskSummaryPage:
        """Return a page of tasks, newest first. `after` is the `next_cursor` of the previous page.

        `name` selects tasks by their function, tool or method, and `application` by their application.
        Neither of them has an index. A call reads up to about 1,000 tasks, so a page can be short or empty
        although further pages follow. In that case, `next_cursor` is set.
        """
        locators, cursors = await self._load_sealers()
        now = self.clock()
        scan = await scan_tasks(
            self.storage,
            [None] if statuses is None else [tag for status in sorted(set(statuses)) for tag in TAGS[status]],
            matches=None
            if name is None and application is None
            else lambda task: matches_filter(task, name, application),
            after=listing.decode_cursor(after, cursors),
            limit=limit,
            max_chars=MAX_READ_CHARS,
            descending=True,
            read=Snapshot.head_of,
            now=now,
        )
        return TaskSummaryPage(
            tasks=tuple(summarize_task(each, now=now, locate=locators.seal) for each in scan.found),
            corrupt=tuple(each.key for each in scan.corrupt),
            newer=tuple(
                summarize_newer(each, now=now, locate=locators.seal) for each, _ in scan.not_readable
            ),
            next_cursor=listing.encode_cursor(scan.next_position, cursors),
        )

    async def get(self, locator: str, task_id: str) -> TaskDetail:
        """Return one task with all details. Raise NotFound if it does not exist.

        `locator` is `TaskSummary.locator`. It identifies the part of the storage that contains the task.
        """
        return await self._describe(await self._snapshot(locator, task_id))

    async def find(self, text: str, *, max_scanned: int | None = None) -> TaskDetail:
        """Return the task with this id, or the only task whose id starts with `text` (at least 6 characters).

        This may read all tasks or, if `max_scanned` is set, up to that many of the newest tasks. If you have
        a locator, `get` is faster.
        """
        now = self.clock()
        return await self._describe(await listing.find(self.storage, text, max_scanned=max_scanned, now=now))

    async def counts(self) -> dict[Status, int]:
        """Return the number of tasks in each status. This query is cheap."""
        return await stats.count_tasks(self.storage, self.clock())

    async def applications(self) -> ApplicationCounts:
        """Count the tasks of each application.

        This reads up to 6,000 tasks, so the counts may be incomplete; `check_storage` reads all tasks.
        """
        return await count_applications(
            self.storage, max_records=stats.MAX_SCANNED, max_chars=MAX_READ_CHARS, now=self.clock()
        )

    async def claimed_count(self) -> int:
        """Return the number of tasks that workers have claimed. This query is cheap."""
        return (await self.storage.counts(LEASES, now=self.clock())).get(HELD, 0)

    async def claims(self) -> list[ClaimSummary]:
        """Return up to 1,000 claims, of all workers. Claims on the newest tasks come first."""
        locators, _ = await self._load_sealers()
        now = self.clock()
        records = await self.storage.page(LEASES, limit=MAX_CLAIMS, tag=HELD, descending=True, now=now)
        claims = [parse_claim(record, locators.seal(record.partition)) for record in records]
        return [claim for claim in claims if claim is not None]

    async def throughput(
        self, window: Micros = HOUR, *, buckets: int = 60, until: Micros | None = None
    ) -> Throughput:
        """Return the throughput in the `window` that ends at `until` (default: now).

        This reads up to 4,000 tasks.
        """
        return await stats.measure_throughput(
            self.storage, window=window, buckets=buckets, now=self.clock(), until=until
        )

    async def oldest_queued(self) -> TaskSummary | None:
        """Return the oldest queued task among the 1,000 oldest tasks that are queued or running.

        Tasks that are waiting to be retried count as queued.
        """
        return await self._summarize_or_none(await stats.oldest_queued(self.storage, self.clock()))

    async def oldest_open_question(self) -> TaskSummary | None:
        """Return the oldest task that is waiting for the answer to a question."""
        return await self._summarize_or_none(await stats.oldest_open_question(self.storage, self.clock()))

    async def stats(self, window: Micros = HOUR, *, buckets: int = 60) -> Stats:
        """Return statistics about all tasks, including the throughput in the `window` that ends now."""
        now = self.clock()
        counts, claims = await self.counts(), await self.claims()
        claimed = await self.claimed_count()
        return Stats(
            counts=counts,
            claimed=claimed,
            unclaimed=max(0, sum(counts[status] for status in ACTIVE_STATUSES) - claimed),
            oldest_queued=await self.oldest_queued(),
            oldest_open_question=await self.oldest_open_question(),
            workers=stats.group_by_worker(claims, now),
            expired=await stats.count_expired(self.storage, now),
            throughput=await self.throughput(window, buckets=buckets),
        )

    def watch(
        self,
        *,
        statuses: Collection[Status] | None = None,
        name: str | None = None,
        application: str | None = None,
        limit: int = DEFAULT_PAGE_SIZE,
        config: WatchConfig = DEFAULT_WATCH,
    ) -> AsyncGenerator[TaskChanges]:
        """Yield the newest tasks, and then the changes to that list, until the generator is closed."""
        return watch_page(
            self.storage.watch(TASKS),
            lambda: self.tasks(statuses=statuses, name=name, application=application, limit=limit),
            config,
        )

    async def watch_task(
        self, locator: str, task_id: str, *, config: WatchConfig = DEFAULT_WATCH
    ) -> AsyncGenerator[TaskDetail]:
        """Yield the task, and then its new versions until it finishes. Raise NotFound if it is deleted."""
        address = (await self._snapshot(locator, task_id)).record.address
        watch = self.storage.watch(*address)
        async with aclosing(watch_task(watch, lambda: self.get(locator, task_id), config)) as versions:
            async for detail in versions:
                yield detail

    # Changing

    async def cancel(self, locator: str, task_id: str) -> TaskSummary:
        """Cancel a task that is not running, or request that the worker of a running task stops it.

        Raise TerminalTask if the task has already finished, and KeyMissing if it is encrypted with a key
        that this process does not have.
        """
        task = (await self._snapshot(locator, task_id)).task
        runtime = Runtime(self._store(task.application), Functions())  # it runs no tasks
        return await self._summarize(await runtime.cancel(task.owner, task_id))

    async def answer(self, locator: str, task_id: str, key: str, value: JsonLike) -> TaskSummary:
        """Answer an open question. For a form, `value` is `{"action": "accept", "content": {...}}`.

        Operators can answer the questions of an encrypted task only if its tool allows that. Raise
        NoOpenQuestion if no question with this key is open for operators, and MalformedAnswer if the answer
        is invalid.
        """

        def edit(task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
            asked = () if task.is_encrypted and not task.operators_answer else task.outstanding
            if not task.is_terminal and key not in asked:
                raise NoOpenQuestion(key, asked)
            return edits.answer(task, {key: value}, now=now, config=config)

        task = (await self._snapshot(locator, task_id)).task
        store = self._store(task.application)
        return await self._summarize(
            await store.update(task.owner, task_id, lambda read: store.edit(read, edit))
        )

    async def purge(self, *, finished_before: Micros | None = None, dry_run: bool = False) -> PurgeReport:
        """Delete expired records and, if `finished_before` is set, all tasks that finished by that time."""
        return await purge(
            self.storage,
            self._store,
            finished_before=finished_before,
            dry_run=dry_run,
            now=self.clock(),
        )

    # Internal

    def _store(self, application: str) -> TaskStore:
        return TaskStore(
            self.storage, self._config, application=application, keys=self._keys, clock=self.clock
        )

    async def _load_sealers(self) -> tuple[Sealer, Sealer]:
        """Return the sealer for locators and the sealer for cursors."""
        if self._sealers is None:
            key = await load_key(self.storage, LOCATOR_KEY, self.clock())
            self._sealers = Sealer(key, "locator"), Sealer(key, "cursor")
        return self._sealers

    async def _snapshot(self, locator: str, task_id: str) -> Snapshot:
        locators, _ = await self._load_sealers()
        partition = locators.unseal(locator)
        if partition is None or not is_task_id(task_id):
            raise NotFound
        record = await self.storage.get(task_address(partition, task_id), now=self.clock())
        if record is None:
            raise NotFound
        return Snapshot.head_of(record)

    async def _summarize(self, snapshot: Snapshot) -> TaskSummary:
        locators, _ = await self._load_sealers()
        # A task that was changed has been decrypted, but summaries show only unencrypted data.
        head = Snapshot.head_of(snapshot.record)
        return summarize_task(head, now=self.clock(), locate=locators.seal)

    async def _summarize_or_none(self, snapshot: Snapshot | None) -> TaskSummary | None:
        return None if snapshot is None else await self._summarize(snapshot)

    async def _describe(self, snapshot: Snapshot) -> TaskDetail:
        lease = await self.storage.get(lease_address(snapshot.record), now=self.clock())
        detail = describe_task(snapshot, await self._summarize(snapshot), lease)
        if snapshot.task.is_encrypted and snapshot.task.operators_answer:
            return replace(detail, questions=self._questions_to_operators(snapshot))
        return detail

    def _questions_to_operators(self, head: Snapshot) -> tuple[Question, ...]:
        """Return the open questions of an encrypted task. Its operators must be allowed to answer them.

        If the key is missing or the task is damaged, return no questions.
        """
        try:
            return open_questions(Snapshot.from_record(head.record, self._keys).task)
        except (KeyMissing, CorruptRecord):
            return ()
