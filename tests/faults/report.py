"""The numbers of a scenario: how often everything happened."""

from __future__ import annotations

from collections import Counter

from perdure.storage import Committed, Refused

from .checks import SortedEvidence
from .journal import Lost


def numbers(case: SortedEvidence) -> dict[str, int]:
    """What happened, how often. The order is that of the report."""
    journal = case.journal
    results = Counter(
        each.result if isinstance(each.result, Lost) else type(each.result) for each in journal.commits
    )
    return {
        **dict(sorted(case.evidence.met.items())),
        "records read": len(journal.got),
        "looks at a guarded count": len(journal.counted),
        "commits": len(journal.commits),
        "of several changes": sum(len(commit.changes) > 1 for commit in journal.commits),
        "acknowledged": results[Committed],
        "refused by what they met": results[Refused],
        "refused by a guard": journal.guard_refusals,
        "of unknown outcome": results[Lost.UNKNOWN],
        "not taken": results[Lost.REFUSED],
        **{f"{name} raised": number for name, number in sorted(journal.errors.items())},
        "records at the end": len(case.records),
        "records whose history is linearizable": len(case.histories),
        "operations in these histories": sum(map(len, case.histories.values())),
    }
