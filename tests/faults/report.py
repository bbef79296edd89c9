"""The numbers of a storm: what was met often enough to mean something."""

from __future__ import annotations

from collections import Counter

from perdure.storage import Committed, Refused

from .checks import SortedEvidence
from .journal import Lost


def numbers(case: SortedEvidence) -> dict[str, int]:
    """What happened, how often. The order is that of the report."""
    journal = case.journal
    told = Counter(each.told if isinstance(each.told, Lost) else type(each.told) for each in journal.commits)
    return {
        **dict(sorted(case.evidence.met.items())),
        "records read": len(journal.got),
        "looks at a guarded count": len(journal.counted),
        "commits": len(journal.commits),
        "of several changes": sum(len(commit.changes) > 1 for commit in journal.commits),
        "acknowledged": told[Committed],
        "refused by what they met": told[Refused],
        "refused by a guard": sum(_is_over(commit.told) for commit in journal.commits),
        "of unknown outcome": told[Lost.UNKNOWN],
        "not taken": told[Lost.REFUSED],
        **{f"{name} raised": number for name, number in sorted(journal.errors.items())},
        "records at the end": len(case.records),
        "records whose history is linearizable": len(case.histories),
        "operations in these histories": sum(map(len, case.histories.values())),
    }


def _is_over(told: Committed | Refused | Lost) -> bool:
    return isinstance(told, Refused) and told.guard_count is not None
