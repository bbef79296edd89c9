"""No room and no rights: errors have a type for each cause, and what was acknowledged stays."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.storage import Committed, Delete, Storage, open_storage
from perdure.storage.errors import StorageFull
from perdure.storage.kit.sample_records import NOW, PARTITION, SPACE, commit_changes, insert_each, make_record

from ..markers import server
from .helpers import inserting, keys_of, outcomes
from .sqlite_helpers import contents, locked, output_of_process, padded, queued, url_of
from .sqlite_process import fill

pytestmark = pytest.mark.anyio

ROOM = 400_000


# The size that was allowed


async def full_storage(url: str) -> tuple[Storage, int]:
    """A storage filled with records of a kilobyte until none fits, and their number."""
    storage = await open_storage(url)
    count, error = await fill(storage, "first")
    assert isinstance(error, StorageFull), error
    assert not error.retryable
    assert count > 50
    return storage, count


async def test_a_commit_that_does_not_fit_raises_and_everything_before_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    storage, count = await full_storage(url_of(path, max_bytes=ROOM))
    await storage.close()
    assert path.stat().st_size <= ROOM
    async with await open_storage(url_of(path, max_bytes=ROOM)) as storage:
        assert dict(await storage.counts(SPACE, PARTITION, now=NOW)) == {"": count}
        assert len(await keys_of(storage)) == count
        assert (await storage.maintain()).findings == ()


async def test_a_commit_that_does_not_fit_leaves_nothing_of_itself(tmp_path: Path) -> None:
    async with await open_storage(url_of(tmp_path / "records.db", max_bytes=ROOM)) as storage:
        small, large = make_record("small"), padded("large", 2 * ROOM)
        with pytest.raises(StorageFull):
            await commit_changes(storage, *inserting(small), *inserting(large))
        assert await keys_of(storage) == []
        assert dict(await storage.counts(SPACE, now=NOW)) == {}
        await insert_each(storage, small)


async def test_one_that_does_not_fit_fails_alone_in_its_group(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path, max_bytes=ROOM)) as storage:
        records = [make_record(f"k{n:02}") for n in range(30)]
        records[17] = padded("large", 2 * ROOM)
        with locked(path) as release:
            tasks = await queued(storage, [inserting(record) for record in records])
            release()
            results = await outcomes(tasks)
        assert isinstance(results.pop(17), StorageFull)
        assert all(isinstance(result, Committed) for result in results)
        del records[17]
        assert await keys_of(storage) == [record.key for record in records]


async def test_after_deleting_there_is_room_again(tmp_path: Path) -> None:
    storage, count = await full_storage(url_of(tmp_path / "records.db", max_bytes=ROOM))
    async with storage:
        for n in range(20):
            await commit_changes(storage, Delete(before=padded(f"first-{n}", 1000)))
        for n in range(15):
            await insert_each(storage, padded(f"second-{n}", 1000))
        assert len(await keys_of(storage)) == count - 5
        assert (await storage.maintain()).findings == ()


async def test_after_purging_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with await open_storage(url_of(path, max_bytes=ROOM)) as storage:
        for n in range(20):
            await insert_each(storage, replace(padded(f"passing-{n}", 1000), expires_at=NOW + 1))
        _, error = await fill(storage, "first")
        assert isinstance(error, StorageFull)
        assert len(await storage.purge(until=NOW + 1, limit=100)) == 20
        for n in range(15):
            await insert_each(storage, padded(f"second-{n}", 1000))
        assert (await storage.maintain()).findings == ()


async def test_maintain_gives_room_back_to_the_file_system(tmp_path: Path) -> None:
    storage, count = await full_storage(url_of(tmp_path / "records.db", max_bytes=ROOM))
    async with storage:
        await storage.maintain()
        for n in range(count):
            await commit_changes(storage, Delete(before=padded(f"first-{n}", 1000)))
        assert (await storage.maintain()).reclaimed_bytes > ROOM / 2
        assert (await storage.maintain()).reclaimed_bytes == 0


# The file system


@pytest.mark.parametrize("max_bytes", [200_000, 1_000_000])
@server
async def test_a_full_file_system_raises_by_type_and_nothing_acknowledged_is_lost(
    tmp_path: Path, max_bytes: int
) -> None:
    url = url_of(tmp_path / "records.db")
    [result, findings] = map(json.loads, await output_of_process("outgrow", url, max_bytes))
    count, error = result
    assert error == "StorageFailed"  # a limit of the process is not a full disk to SQLite
    assert count > 5
    assert findings == 0
    async with await open_storage(url) as storage:
        expected = {*[f"before-{n}" for n in range(count)], "after"}
        assert {*await keys_of(storage)} == expected
        assert dict(await storage.counts(SPACE, now=NOW)) == {"": len(expected)}
        assert (await storage.maintain()).findings == ()


# Rights


@pytest.fixture
def open_to_all() -> Generator[Path]:
    """A folder that every user can reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def allow(path: Path, mode: int) -> None:
    path.chmod(mode)


async def make_file(path: Path) -> str:
    async with await open_storage(url_of(path)) as storage:
        await insert_each(storage, make_record())
    return url_of(path)


@server
async def test_a_new_file_in_a_read_only_directory_raises_by_type(open_to_all: Path) -> None:
    allow(open_to_all, 0o555)
    assert await output_of_process("without_rights", url_of(open_to_all / "records.db")) == ["CannotOpen"]
    assert contents(open_to_all) == {}


@server
async def test_a_file_in_a_read_only_directory_raises_by_type_and_is_unchanged(open_to_all: Path) -> None:
    path = open_to_all / "records.db"
    url = await make_file(path)
    before = contents(open_to_all)
    allow(path, 0o666)
    allow(open_to_all, 0o555)
    [result] = await output_of_process("without_rights", url)
    assert result in ("StorageReadOnly", "CannotOpen")
    assert contents(open_to_all) == before


@server
async def test_a_read_only_file_in_a_writable_directory_raises_by_type(open_to_all: Path) -> None:
    path = open_to_all / "records.db"
    url = await make_file(path)
    before = contents(open_to_all)["records.db"]
    allow(path, 0o444)
    allow(open_to_all, 0o777)
    [result] = await output_of_process("without_rights", url)
    assert result in ("StorageReadOnly", "CannotOpen")
    assert contents(open_to_all)["records.db"] == before


@server
async def test_an_unreadable_file_raises_by_type(open_to_all: Path) -> None:
    path = open_to_all / "records.db"
    url = await make_file(path)
    allow(path, 0)
    assert await output_of_process("without_rights", url) == ["CannotOpen"]


@server
async def test_an_inaccessible_directory_raises_by_type(open_to_all: Path) -> None:
    folder = open_to_all / "closed" / "inner"
    folder.mkdir(parents=True)
    allow(folder.parent, 0)
    result = await output_of_process("without_rights", url_of(folder / "records.db"))
    allow(folder.parent, 0o755)
    assert result == ["CannotOpen"]
