"""The figures and the alarms of all accounts together. Pure, over what was read."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..storage import Micros
from .account import Account, Status
from .alarms import Alarm, find_alarms


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    accounts: int
    active: int
    unavailable: int
    suspended: int
    with_mark: int
    with_gaps: int
    failing: int
    posts_fetched_count: int
    set_aside: int
    last_polled_at: Micros | None
    next_at: Micros | None
    alarms: tuple[Alarm, ...]

    @property
    def marked_share(self) -> float:
        """Accounts with a mark. Below 95 %, something is wrong, or many have never posted."""
        return self.with_mark / self.accounts if self.accounts else 0.0


def summary_of(accounts: Iterable[Account], *, now: Micros) -> Summary:
    everybody = list(accounts)
    by_status = {status: sum(each.status is status for each in everybody) for status in Status}
    return Summary(
        accounts=len(everybody),
        active=by_status[Status.ACTIVE],
        unavailable=by_status[Status.UNAVAILABLE],
        suspended=by_status[Status.SUSPENDED],
        with_mark=sum(each.mark is not None for each in everybody),
        with_gaps=sum(bool(each.gaps) for each in everybody),
        failing=sum(each.failures > 0 and each.status is not Status.SUSPENDED for each in everybody),
        posts_fetched_count=sum(each.posts_fetched_count for each in everybody),
        set_aside=sum(each.set_aside for each in everybody),
        last_polled_at=max((each.last_polled_at for each in everybody if each.last_polled_at), default=None),
        next_at=min(
            (each.next_at for each in everybody if each.status is not Status.SUSPENDED), default=None
        ),
        alarms=find_alarms(everybody, now=now),
    )
