"""From where the feeds of the sample tools are read. Made-up people and those of Bluesky may stand in the
same storage: each reader leaves the other's alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from ..feeds import FeedSource, Page, Polling, Profile
from ..feeds.source import FollowSource, HintSource
from ..storage import Micros
from .source import METHOD, SampleSource


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A source that is opened when it is needed, and how it is read."""

    opened: Callable[[], AbstractAsyncContextManager[FeedSource]]
    polling: Polling
    usual: tuple[str, ...] = ()
    """Whose feeds are read where nobody is named."""
    is_made_up: bool = False

    def reads(self, account_id: str) -> bool:
        """Whether this account is one of its source's."""
        return account_id.startswith(METHOD) == self.is_made_up


def sample_reader(*, latency: float = 0.3) -> Reader:
    """Of the people who are made up. A page takes as long as it does over a network."""
    source = SampleSource(latency=latency)

    @asynccontextmanager
    async def opened() -> AsyncGenerator[FeedSource]:
        yield source

    return Reader(opened=opened, polling=Polling(), usual=source.handles, is_made_up=True)


class _FollowingSource(FeedSource, FollowSource, Protocol):
    """A source of feeds that knows who follows whom."""


def with_made_up(source: _FollowingSource) -> FeedSource:
    """Return a source of the same accounts and of the made-up people, by their ids."""
    if isinstance(source, HintSource):
        return _HintingBoth(source, hints=source)
    return _Both(source)


class _Both:
    """Reads made-up people from the sample source, and all other accounts from another one."""

    def __init__(self, others: _FollowingSource) -> None:
        self._others = others
        self._made_up = SampleSource()

    @property
    def name(self) -> str:
        return self._others.name

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> Page | None:
        source: FeedSource = self._made_up if account_id.startswith(METHOD) else self._others
        return await source.page(account_id, limit=limit, cursor=cursor, etag=etag)

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        made_up = [each for each in actors if each.startswith(METHOD)]
        others = [each for each in actors if not each.startswith(METHOD)]
        found = await self._made_up.profiles(made_up) if made_up else []
        return [*found, *(await self._others.profiles(others) if others else ())]

    def follows(self, actor: str) -> AsyncIterator[Profile]:
        return self._others.follows(actor)

    async def unfollowed(self, actor: str, account_ids: Sequence[str]) -> set[str]:
        return await self._others.unfollowed(actor, account_ids)


class _HintingBoth(_Both):
    def __init__(self, others: _FollowingSource, *, hints: HintSource) -> None:
        super().__init__(others)
        self._hints = hints

    async def recent(self) -> Mapping[str, Micros]:
        return await self._hints.recent()
