"""Links: which of them most accounts share. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterable

import msgspec

from ..storage import Micros
from .item import Item


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """A link, and who shared it."""

    url: str
    title: str
    sharers: tuple[str, ...]
    """Accounts, the first to share it first."""
    times: int
    first_at: Micros
    last_at: Micros


async def most_shared(items: AsyncIterable[tuple[str, Item]], *, limit: int) -> list[Shared]:
    """The links of these items, those of most distinct sharers first, and then the newest."""
    gathered: dict[str, _Shares] = {}
    async for account_id, item in items:
        for link in item.links:
            gathered.setdefault(link.url, _Shares()).add(account_id, item.time, link.title)
    ranked = sorted(gathered.items(), key=lambda each: each[1].rank(each[0]))
    return [shares.told(url) for url, shares in ranked[:limit]]


class _Shares:
    def __init__(self) -> None:
        self._first_by: dict[str, Micros] = {}
        self._times: list[Micros] = []
        self._title = ""

    def add(self, account_id: str, time: Micros, title: str) -> None:
        self._first_by[account_id] = min(time, self._first_by.get(account_id, time))
        self._times.append(time)
        self._title = self._title or title

    def rank(self, url: str) -> tuple[int, Micros, str]:
        return -len(self._first_by), -max(self._times), url

    def told(self, url: str) -> Shared:
        return Shared(
            url=url,
            title=self._title,
            sharers=tuple(sorted(self._first_by, key=lambda account: (self._first_by[account], account))),
            times=len(self._times),
            first_at=min(self._times),
            last_at=max(self._times),
        )
