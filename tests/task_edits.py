"""Edits of tasks as single calls on a store, and reads across all owners."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.storage.inspection_and_quarantine import Inspection, inspect
from perdure.tasks import (
    InputRequest,
    Outcome,
    Owner,
    Progress,
    Snapshot,
    Status,
    TaskStore,
    edits,
)
from perdure.tasks.canonical_json import JsonLike
from perdure.tasks.task_snapshot import TASKS, tags_of


async def report(
    store: TaskStore, snapshot: Snapshot, *, message: str | None = None, progress: Progress | None = None
) -> Snapshot:
    return await store.edit(
        snapshot,
        lambda task, now, config: edits.report(
            task, message=message, progress=progress, now=now, config=config
        ),
    )


async def set_variables(store: TaskStore, snapshot: Snapshot, changes: Mapping[str, JsonLike]) -> Snapshot:
    return await store.edit(
        snapshot, lambda task, now, config: edits.set_variables(task, changes, now=now, config=config)
    )


async def finish(
    store: TaskStore, snapshot: Snapshot, outcome: Outcome, *, message: str | None = None
) -> Snapshot:
    return await store.edit(
        snapshot,
        lambda task, now, config: edits.finish(task, outcome, message=message, now=now, config=config),
    )


async def cancel(store: TaskStore, snapshot: Snapshot, *, message: str | None = None) -> Snapshot:
    return await store.edit(
        snapshot, lambda task, now, config: edits.cancel(task, message=message, now=now, config=config)
    )


async def ask(store: TaskStore, snapshot: Snapshot, requests: Mapping[str, InputRequest]) -> Snapshot:
    return await store.edit(
        snapshot, lambda task, now, config: edits.ask(task, requests, now=now, config=config)
    )


async def answer(store: TaskStore, snapshot: Snapshot, answers: Mapping[str, JsonLike]) -> Snapshot:
    return await store.edit(
        snapshot, lambda task, now, config: edits.answer(task, answers, now=now, config=config)
    )


async def claim(store: TaskStore, snapshot: Snapshot) -> Snapshot:
    return await store.edit(snapshot, lambda task, now, _: edits.claim(task, now=now))


async def release(store: TaskStore, snapshot: Snapshot, reason: str | None = None) -> Snapshot:
    return await store.edit(
        snapshot, lambda task, now, config: edits.release(task, reason=reason, now=now, config=config)
    )


async def all_tasks(store: TaskStore, status: Status | None = None) -> list[Snapshot]:
    """Return up to 200 tasks of all owners, oldest first; only those of a status, if one is given."""
    records = await store.storage.page(TASKS, limit=200, tag=status, now=store.clock())
    return [Snapshot.from_record(record) for record in records]


async def counts(store: TaskStore, owner: Owner | None = None) -> dict[Status, int]:
    """Return the number of tasks of each status that occurs: of one owner, or of all."""
    partition = None if owner is None else store.partition_of(owner)
    by_tag = await store.storage.counts(TASKS, partition, now=store.clock())
    by_status = {status: sum(by_tag.get(tag, 0) for tag in tags_of(status)) for status in Status}
    return {status: count for status, count in by_status.items() if count}


async def quarantine_damaged(store: TaskStore) -> Inspection:
    return await inspect(store.storage, TASKS, Snapshot.from_record, repair=True, now=store.clock())
