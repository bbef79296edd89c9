"""Watching tasks: what the newest of them are, and each change of it, as it is seen.

Wake-ups of the storage tell that something changed, and a look now and then finds what no wake-up told. Looks
are kept apart, so that a busy storage is looked at as seldom as a quiet one is often.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from random import uniform
from typing import TypeVar

import msgspec

from ..runtime.waiting import changed_within
from ..storage import Watch
from ..storage.errors import StorageBusy, StorageUnavailable
from .listing import Rows
from .views import Detail, Row

T = TypeVar("T")


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What is new since the last of these. The first has everything in `changed`."""

    page: Rows
    """All rows as they are now."""
    changed: tuple[Row, ...]
    """Those that are new here, or changed."""
    gone: tuple[Row, ...]
    """Those that are no longer among the newest: removed, of another status, or pushed out."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often to look, in seconds."""

    apart: float = 0.5
    """Between two looks, at least."""
    poll_interval: float = 2.0
    """Between two looks where no wake-up came, about."""


USUAL = Pace()


async def watch_rows(
    watch: Watch, look: Callable[[], Awaitable[Rows]], pace: Pace
) -> AsyncGenerator[Changes]:
    """The newest rows, then what changes of them. For ever; a storage that is away is waited for."""
    before: dict[tuple[str, str], Row] | None = None
    async with watch:
        while True:
            page = await _patiently(look)
            if page is not None:
                now = {(row.handle, row.task_id): row for row in page.rows}
                changes = _between(before or {}, now, page)
                if before is None or changes.changed or changes.gone:
                    yield changes
                before = now
            await _next(watch, pace)


async def watch_one(
    watch: Watch, look: Callable[[], Awaitable[Detail]], pace: Pace
) -> AsyncGenerator[Detail]:
    """One task as it is, then each newer state, up to its end. NotFound when it is gone."""
    seen = 0
    async with watch:
        while True:
            detail = await _patiently(look)
            if detail is not None and detail.row.version > seen:
                seen = detail.row.version
                yield detail
                if detail.row.status.is_terminal:
                    return
            await _next(watch, pace)


def _between(before: dict[tuple[str, str], Row], now: dict[tuple[str, str], Row], page: Rows) -> Changes:
    def is_new(place: tuple[str, str], row: Row) -> bool:
        return place not in before or before[place].version != row.version

    return Changes(
        page=page,
        changed=tuple(row for place, row in now.items() if is_new(place, row)),
        gone=tuple(row for place, row in before.items() if place not in now),
    )


async def _patiently(look: Callable[[], Awaitable[T]]) -> T | None:
    """What is seen, or none where the storage cannot say just now; the next look may succeed."""
    try:
        return await look()
    except (StorageBusy, StorageUnavailable):
        return None


async def _next(watch: Watch, pace: Pace) -> None:
    await asyncio.sleep(pace.apart)
    await changed_within(watch, pace.poll_interval * uniform(0.5, 1.5))
