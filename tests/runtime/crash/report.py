"""The numbers of a storm: what was met often enough to mean something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .checks import SortedEvidence, is_release
from .journal import Began, Cancelled, Created, Denied, Dropped, Event, Heard, Look, Struck, Wrote


def numbers(case: SortedEvidence) -> dict[str, int]:
    """What happened, how often. The order is that of the report."""
    events = case.evidence.events
    kinds = Counter(type(event) for event in events)
    return {
        **_blows(events),
        **_tasks(case),
        "attempts begun": kinds[Began],
        "tasks taken from lost workers": sum(_recovered(case)),
        "attempts given back by workers asked to end": sum(_given_back(case)),
        "attempts whose end was refused, the lease being lost": kinds[Dropped],
        "writes refused to functions": kinds[Denied],
        "writes acknowledged to functions": kinds[Wrote],
        "answers heard": kinds[Heard],
        "creates acknowledged": kinds[Created],
        "creates that found the task of their key": _repeated(case),
        "cancels that ended a waiting task": sum(told.is_ended for told in case.all(Cancelled)),
        "cancels passed on to a worker": sum(not told.is_ended for told in case.all(Cancelled)),
        "attempts begun late, after the task was cancelled": _begun_late(case),
        "commits": len(case.commits),
        "commits of which nobody was told": sum(commit.told is None for commit in case.commits),
        "records whose history is linearizable": len(case.histories),
        "operations in these histories": sum(map(len, case.histories.values())),
    }


def _blows(events: list[Event]) -> dict[str, int]:
    blows = Counter(event.how for event in events if isinstance(event, Struck))
    return {
        "processes killed at a random moment": blows["killed"],
        "processes killed at a commit of their own": blows["doomed"],
        "processes frozen beyond their leases": blows["frozen"],
        "processes asked to end": blows["dismissed"],
    }


def _tasks(case: SortedEvidence) -> dict[str, int]:
    statuses = Counter(task.status.value for task in case.tasks.values())
    several = sum(task.attempts > 1 for task in case.tasks.values())
    return {"tasks": len(case.tasks), **dict(sorted(statuses.items())), "of several attempts": several}


def _given_back(case: SortedEvidence) -> Iterator[bool]:
    return (is_release(edit) for _, edit in case.written())


def _recovered(case: SortedEvidence) -> Iterator[bool]:
    """A held lease that another process put an end to, or left free."""
    for commit, edit in case.written():
        holder = None if edit.before is None else edit.before.holder
        yield holder is not None and _process(holder) != commit.asked.who and not _is_held(edit.after)


def _process(holder: str) -> str:
    return holder.rpartition("-")[0]


def _is_held(lease: Look | None) -> bool:
    return lease is not None and lease.holder is not None


def _repeated(case: SortedEvidence) -> int:
    keyed = [made.key for made in case.all(Created) if made.key is not None]
    return len(keyed) - len({*keyed})


def _begun_late(case: SortedEvidence) -> int:
    """By a worker that was held up between its claim and the function, and lost the lease meanwhile."""
    ended = {told.task: told.at for told in case.all(Cancelled) if told.is_ended}
    return sum(began.at > ended[began.task] for began in case.all(Began) if began.task in ended)
