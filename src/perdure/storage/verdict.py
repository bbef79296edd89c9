"""The result of a commit that a server decided: its decision is compared with our own.

PostgreSQL and Redis judge a commit by their own copy of the rule in `record`. If the two copies ever
disagree, the caller must not hear that something was written which was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .errors import StorageFailed
from .record import Change, Committed, Refused, Standing, accepted, judge


def result_of(
    changes: Sequence[Change],
    found: Iterable[Standing | None],
    *,
    over: int | None,
    was_written: bool,
) -> Committed | Refused | StorageFailed:
    """Return the result of a commit whose changes met these records, or the error to raise.

    `over` is the count that the guard refused, `was_written` is the server's decision.
    """
    answers = tuple(judge(change, stands) for change, stands in zip(changes, found, strict=True))
    done = accepted(answers)
    is_accepted = done is not None and over is None
    if is_accepted != was_written:
        return StorageFailed(_disagreement(changes[0], was_written=was_written))
    return Refused(answers, over=over) if done is None or over is not None else Committed(done)


def _disagreement(first: Change, *, was_written: bool) -> str:
    server, client = ("wrote", "refuses") if was_written else ("refused", "accepts")
    return (
        f"the server {server} a commit that this client {client} (its first record is {first.address}); "
        "read before writing again, and report this as a bug of perdure"
    )
