"""The weak memory engine as the runtime must stand it: the answers to writes of workers get lost too."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.runtime import lease as leases
from perdure.storage import Change, Delete, Engine, Insert, Replace, register_engine
from perdure.storage.body_format import number_of
from perdure.tasks.task_snapshot import LEASE_FORMAT, LEASES, TASKS

from ..storage.weak import WeakMemoryEngine


def is_repeated(changes: Sequence[Change]) -> bool:
    """Whether a worker repeats this commit by itself if its answer is lost: heartbeats, claims and ends."""
    tasks = [each for each in changes if each.address.space == TASKS]
    if not all(isinstance(each, Replace) for each in tasks):
        return False
    match [each for each in changes if each.address.space == LEASES]:
        case [Insert()]:
            return True
        case [Replace(before=before, after=after)]:
            is_heartbeat = not tasks and number_of(after.body) == LEASE_FORMAT  # else a test changes it
            return (is_heartbeat and leases.holder_of(after) is not None) or before.tag != after.tag
        case [Delete(before=before)]:
            return before.tag == leases.HELD
        case _:
            return False


async def open_engine(url: str) -> Engine:
    """`weak:SEED`, for servers that open their storage themselves."""
    return WeakMemoryEngine(url, may_lose=is_repeated)


register_engine("weak", f"{__name__}:open_engine", package="perdure", is_shared=False)
