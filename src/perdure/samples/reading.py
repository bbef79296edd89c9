"""From where the feeds of the sample tools are read. Made-up people and those of Bluesky may stand in the
same storage: each reader leaves the other's alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from ..feeds import FeedSource, Polling
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
