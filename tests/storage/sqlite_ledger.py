"""A process that commits until it is killed, and a check that it left no partial commit.

Commit n of a partition enters n in two spaces, removes what is 20 entries old, and replaces the head, whose
body says n. So the head alone says what else must be there.
"""

from __future__ import annotations

import asyncio
import sys

from perdure.storage import Change, Delete, Insert, Record, Space, Storage, open_storage
from perdure.storage.kit.sample_records import NOW, commit_changes, insert_each, make_record

SPACES = Space("debit"), Space("credit")
HEAD = Space("head")
PARTITIONS: tuple[str, ...] = ("a", "b", "c", "d")
KEPT = 20


def entry(space: Space, partition: str, n: int) -> Record:
    return make_record(f"{n:06}", space=space, partition=partition, order=n, body=str(n), tag=f"t{n % 3}")


def head(partition: str, n: int) -> Record:
    return make_record("head", space=HEAD, partition=partition, body=str(n), version=n + 1, tag=f"t{n % 3}")


async def enter(storage: Storage, partition: str, n: int) -> None:
    changes: list[Change] = [head(partition, n - 1).replace_with(body=str(n), tag=f"t{n % 3}")]
    for space in SPACES:
        changes.append(Insert(record=entry(space, partition, n)))
        if n > KEPT:
            changes.append(Delete(before=entry(space, partition, n - KEPT)))
    await commit_changes(storage, *changes)


async def last(storage: Storage, partition: str) -> int:
    """The number of the newest commit."""
    found = await storage.get(head(partition, 0).address, now=NOW)
    if found is None:
        await insert_each(storage, head(partition, 0))
        return 0
    return int(found.body)


async def commit_until_killed(storage: Storage, partition: str) -> None:
    n = await last(storage, partition)
    while True:
        n += 1
        await enter(storage, partition, n)
        print(partition, n, flush=True)  # acknowledged


async def expect_whole_commits(storage: Storage, acknowledged: dict[str, int]) -> None:
    for partition, least in acknowledged.items():
        n = await last(storage, partition)
        assert n >= least, f"{partition}: {least} was acknowledged, {n} is there"
        assert await storage.page(HEAD, partition, limit=9, now=NOW) == [head(partition, n)]
        for space in SPACES:
            expected = [entry(space, partition, each) for each in range(max(1, n - KEPT + 1), n + 1)]
            assert await storage.page(space, partition, limit=99, now=NOW) == expected


async def main(url: str) -> None:
    async with await open_storage(url) as storage:
        await asyncio.gather(*[commit_until_killed(storage, partition) for partition in PARTITIONS])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
