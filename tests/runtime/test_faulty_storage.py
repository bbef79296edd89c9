"""The doubles do what their names say."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from .. import task_edits
from ..markers import strong_memory
from .faulty_storage import ME, FaultyLink, open_faulty
from .replicas import UNHURRIED, Replicas, new_app, value_of

pytestmark = pytest.mark.anyio


@strong_memory("it counts commits")
async def test_a_wire_changes_nothing_unless_it_is_told_to(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def double(number: int) -> int:
        return 2 * number

    wire = FaultyLink()
    async with open_faulty(replicas, wire, app, replace(UNHURRIED, heartbeat_interval=10.0)) as runtime:
        made = await runtime.submit("double", {"number": 4})
        assert value_of(await runtime.wait(ME, made.task.task_id, 120)) == 8
        assert wire.calls["commit"] == 2


async def test_calls_on_a_cut_wire_hang_until_it_is_mended(replicas: Replicas) -> None:
    wire = FaultyLink()
    async with open_faulty(replicas, wire, new_app(), work=False) as runtime:
        wire.cut()
        counting = asyncio.create_task(task_edits.counts(runtime.store))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(counting), 0.05)
        wire.mend()
        assert await counting == {}
