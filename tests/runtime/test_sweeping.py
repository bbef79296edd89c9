"""Workers sweep what has expired, and leave alone what is in work."""

from __future__ import annotations

import pytest

from perdure.tasks import NewTask

from ..conditions import wait_until
from ..markers import row
from .apps import counted, hanging
from .faulty_storage import ME
from .replicas import Replicas, new_app, value_of

pytestmark = pytest.mark.anyio


@row(59)
async def test_a_worker_sweeps_what_has_expired_and_nobody_calls_it(replicas: Replicas) -> None:
    app = hanging()
    creator = await replicas.start(app, work=False)
    new = NewTask(method="tools/call", function="hang", ttl_ms=1)
    made = [await creator.create(ME, new) for _ in range(3)]
    addresses = [each.record.address for each in made]
    stored = await creator.store.storage.get_many(addresses, now=0)  # as it was before they expired
    assert stored == [each.record for each in made]
    await replicas.start(new_app())

    async def are_gone() -> bool:
        return await creator.store.storage.get_many(addresses, now=0) == [None] * 3

    await wait_until(are_gone)


@row(59, 57)
async def test_the_sweeper_leaves_alone_what_is_in_work(replicas: Replicas) -> None:
    app, go_on, _ = counted()
    runtime = await replicas.start(app)
    made = await runtime.create(ME, NewTask(method="tools/call", function="work", ttl_ms=1))
    gone = await (await replicas.start(new_app(), work=False)).store.create(
        ME, NewTask(method="tools/call", ttl_ms=1)
    )

    async def is_gone() -> bool:
        return await runtime.store.storage.get(gone.record.address, now=0) is None

    await wait_until(is_gone)
    go_on.set()
    assert value_of(await runtime.wait(ME, made.task.task_id, 60)) == 1
