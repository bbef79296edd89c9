"""What operators do with a whole storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.operating import Operator
from perdure.operating.errors import MaintenanceError
from perdure.operating.maintenance import LiveClaims, copy_storage, inspect_records
from perdure.storage.copy import CopyProgress
from perdure.storage.kit import Subject
from perdure.tasks import TaskStore
from perdure.tasks.errors import CorruptRecord, InvalidCursor
from perdure.tasks.generated_keys import CURSOR_KEY, LOCATOR_KEY

from ..newer import newer, put, stored
from ..tasks.samples import ANA, Clock, created

pytestmark = pytest.mark.anyio


async def test_a_storage_is_not_copied_onto_itself(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    def ignore(_: CopyProgress | LiveClaims) -> None: ...

    with pytest.raises(MaintenanceError, match="source and target are the same storage"):
        await copy_storage(
            f"sqlite:///{tmp_path}/tasks.db",
            f"sqlite:///{tmp_path}/link/tasks.db",
            merge=True,
            on_progress=ignore,
            on_live_claims=ignore,
        )


async def test_a_repair_replaces_damaged_keys_so_that_lists_work_again(
    subject: Subject, store: TaskStore, operator: Operator, clock: Clock
) -> None:
    await created(store, 3)
    cursor = (await store.list(ANA, limit=2)).next_cursor
    await operator.tasks(limit=2)
    for address in (CURSOR_KEY, LOCATOR_KEY):
        key = await stored(subject.storage, address, now=clock.now)
        await put(subject.storage, key, '{"damaged"', now=clock.now)
    await subject.caught_up()
    later = TaskStore(subject.storage, store.config, clock=clock, application="tests")
    operators = Operator(subject.storage, clock)
    for listing in (later.list(ANA), operators.tasks()):
        with pytest.raises(CorruptRecord, match="perdure doctor --repair"):
            await listing
    found = await inspect_records(subject.storage, repair=True, now=clock.now)
    assert {each.key for each in found.damaged} == {CURSOR_KEY.key, LOCATOR_KEY.key}
    await subject.caught_up()
    assert (await inspect_records(subject.storage, repair=True, now=clock.now)).damaged == ()
    assert len((await later.list(ANA)).tasks) == len((await operators.tasks()).tasks) == 3
    with pytest.raises(InvalidCursor):
        await later.list(ANA, cursor=cursor)


async def test_a_repair_leaves_the_key_of_a_newer_version(
    subject: Subject, store: TaskStore, clock: Clock
) -> None:
    await store.list(ANA)
    key = await stored(subject.storage, CURSOR_KEY, now=clock.now)
    written = await put(subject.storage, key, newer(key.body), now=clock.now)
    await subject.caught_up()
    found = await inspect_records(subject.storage, repair=True, now=clock.now)
    assert (found.damaged, found.not_readable) == ((), 1)
    assert await stored(subject.storage, CURSOR_KEY, now=clock.now) == written
