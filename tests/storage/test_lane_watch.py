"""A watch of lanes: the queue is read only if a commit put something into it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from perdure.storage import Delete, Insert, open_storage
from perdure.storage.kit.sample_records import NOW, SPACE, make_record

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("engine", ["memory:", "sqlite"])
async def test_a_watch_of_lanes_ignores_commits_of_its_own_engine_that_use_no_lane(
    engine: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'lanes.db'}" if engine == "sqlite" else engine
    plain = make_record("plain")
    timed = make_record("timed", lane="l", wake_at=NOW)
    claimed = timed.replace_with(body="2", tag="", lane=None, wake_at=None)
    woken: list[str] = []

    async with await open_storage(url) as storage, storage.watch(SPACE, only_lanes=True) as watch:
        if engine == "sqlite":
            await watch.changed()  # the first watch of a file wakes at once

        async def is_woken() -> bool:
            with anyio.move_on_after(0):
                await watch.changed()
                return True
            return False

        for name, change in {
            "insert": Insert(record=plain),
            "insert into a lane": Insert(record=timed),
            "take out of the lane": claimed,
            "delete": Delete(before=plain),
        }.items():
            await storage.commit([change], now=NOW)
            if await is_woken():
                woken.append(name)
    assert woken == ["insert into a lane"]
