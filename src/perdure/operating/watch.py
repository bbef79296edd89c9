"""Watches the newest tasks, or one task, for changes.

Notifications from the storage can be lost, so the storage is also polled. At least `min_interval` seconds
pass between two queries, no matter how many changes there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from random import uniform
from typing import TypeVar

import msgspec

from ..runtime.waits import changed_within
from ..storage import Watch
from ..storage.errors import StorageBusy, StorageUnavailable
from .listing import TaskSummaryPage
from .views import TaskDetail, TaskSummary

T = TypeVar("T")


class TaskChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes since the previous query. The first query reports all tasks on the page in `changed`."""

    page: TaskSummaryPage
    """The page of the newest tasks, after the changes."""
    changed: tuple[TaskSummary, ...]
    """The tasks that are new on the page or have changed."""
    removed: tuple[TaskSummary, ...]
    """The tasks that left the page. They were deleted or displaced by newer tasks, or no longer match
    the filters."""


class WatchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How often the storage is queried for changes."""

    min_interval: float = 0.5
    """Minimum number of seconds between two queries."""
    poll_interval: float = 2.0
    """Average number of seconds to wait for a notification before the storage is polled."""


DEFAULT_WATCH = WatchConfig()


async def watch_page(
    watch: Watch, query: Callable[[], Awaitable[TaskSummaryPage]], config: WatchConfig
) -> AsyncGenerator[TaskChanges]:
    """Yield the newest tasks, and then their changes, indefinitely. Wait while the storage is unavailable."""
    before: dict[tuple[str, str], TaskSummary] | None = None
    async with watch:
        while True:
            page = await _none_if_busy(query)
            if page is not None:
                now = {(task.locator, task.task_id): task for task in page.tasks}
                changes = _diff(before or {}, now, page)
                if before is None or changes.changed or changes.removed:
                    yield changes
                before = now
            await _wait_for_change(watch, config)


async def watch_task(
    watch: Watch, query: Callable[[], Awaitable[TaskDetail]], config: WatchConfig
) -> AsyncGenerator[TaskDetail]:
    """Yield a task, and then its new versions until it finishes. Raise NotFound if it is deleted."""
    version = 0
    async with watch:
        while True:
            detail = await _none_if_busy(query)
            if detail is not None and detail.summary.version > version:
                version = detail.summary.version
                yield detail
                if detail.summary.status.is_terminal:
                    return
            await _wait_for_change(watch, config)


def _diff(
    before: dict[tuple[str, str], TaskSummary],
    now: dict[tuple[str, str], TaskSummary],
    page: TaskSummaryPage,
) -> TaskChanges:
    return TaskChanges(
        page=page,
        changed=tuple(
            task for key, task in now.items() if key not in before or before[key].version != task.version
        ),
        removed=tuple(task for key, task in before.items() if key not in now),
    )


async def _none_if_busy(query: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of a query, or None if the storage is temporarily unavailable."""
    try:
        return await query()
    except (StorageBusy, StorageUnavailable):
        return None


async def _wait_for_change(watch: Watch, config: WatchConfig) -> None:
    await asyncio.sleep(config.min_interval)
    await changed_within(watch, config.poll_interval * uniform(0.5, 1.5))
