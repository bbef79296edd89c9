"""Counts the tasks of each application in a storage."""

from __future__ import annotations

from collections import Counter

import msgspec

from ..storage import Micros, Storage
from ..tasks import Status
from ..tasks.application_name import application_of
from ..tasks.lifecycle import ACTIVE_STATUSES
from ..tasks.task_snapshot import TASKS
from .listing import iterate_records
from .views import TAGS


class ApplicationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tasks of one application."""

    name: str
    counts: dict[Status, int]
    """Number of tasks in each status. A task whose result reports an error counts as failed."""

    @property
    def active(self) -> int:
        return sum(self.counts[status] for status in ACTIVE_STATUSES)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class ApplicationCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The applications that have tasks in a storage, sorted by name."""

    applications: tuple[ApplicationSummary, ...]
    is_complete: bool
    """Whether all tasks were counted. If not, counts may be too low, and applications may be missing."""


async def count_applications(
    storage: Storage, *, max_records: int | None = None, max_chars: int | None = None, now: Micros
) -> ApplicationCounts:
    """Count the tasks of each application.

    Applications have no index, so tasks must be read to count them. `max_records` and `max_chars` limit how
    many tasks and characters are read for each storage tag (roughly, each status). `None` means no limit.
    Of the active tasks, the oldest are read first, because a server that is renamed leaves old tasks behind.
    Of the finished tasks, the newest are read first.
    """
    found: dict[str, Counter[Status]] = {}
    is_complete = True
    for status in Status:
        for tag in TAGS[status]:
            records = chars = 0
            async for record in iterate_records(
                storage, TASKS, tag=tag, descending=status.is_terminal, max_records=max_records, now=now
            ):
                found.setdefault(application_of(record.partition), Counter())[status] += 1
                records += 1
                chars += len(record.body)
                if max_chars is not None and chars >= max_chars:
                    break
            is_complete &= records != max_records and (max_chars is None or chars < max_chars)
    return ApplicationCounts(
        applications=tuple(
            ApplicationSummary(name=name, counts={status: counts[status] for status in Status})
            for name, counts in sorted(found.items())
        ),
        is_complete=is_complete,
    )
