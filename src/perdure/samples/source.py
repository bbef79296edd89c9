"""Defines a source that simulates feeds without a network, and one that adds them to another source.

Posts are computed from the author and a sequence number, so every process reads the same posts. Each author
writes a new post at a fixed interval.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.resources import files
from random import Random
from typing import Protocol

import anyio
import msgspec

from ..feeds import FeedPage, FeedSource, Item, Link, Profile
from ..feeds.errors import AccountUnavailable, CursorRejected
from ..feeds.source import FollowSource, HintSource
from ..storage import Micros
from ..storage.time_types import MINUTE, system_clock

DID_PREFIX = "did:example:"
"""The prefix of the ids of simulated accounts. The DID method `example` is reserved for examples."""
FIRST_POST_AT: Micros = 1_767_225_600 * 1_000_000
"""The time at which each simulated account wrote its first post: 1 January 2026."""


class Person(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A simulated account that writes a post every `every_minutes` minutes."""

    name: str
    every_minutes: int

    @property
    def account_id(self) -> str:
        return DID_PREFIX + self.name

    @property
    def handle(self) -> str:
        return f"{self.name}.example"

    def time_of(self, number: int) -> Micros:
        return FIRST_POST_AT + number * self.every_minutes * MINUTE

    def newest(self, now: Micros) -> int:
        """Return the sequence number of the newest post at the time `now`, or -1 if there is no post yet."""
        return max((now - FIRST_POST_AT) // (self.every_minutes * MINUTE), -1)


class SampleData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of people.json: the simulated accounts, and the texts and links of their posts."""

    people: tuple[Person, ...]
    texts: tuple[str, ...]
    links: tuple[Link, ...]
    """The links that posts share. Links near the start are shared more often."""


def load_sample_data() -> SampleData:
    data = files("perdure.samples").joinpath("people.json").read_bytes()
    return msgspec.json.decode(data, type=SampleData)


class SimulatedSource:
    """A `FeedSource` that computes the posts of simulated accounts."""

    name = "sample feeds"

    def __init__(self, *, latency: float = 0.0, clock: Callable[[], Micros] = system_clock) -> None:
        """Create a source whose requests take `latency` seconds each."""
        self._data = load_sample_data()
        self._people = {person.account_id: person for person in self._data.people}
        self._latency = latency
        self._clock = clock

    @property
    def handles(self) -> tuple[str, ...]:
        return tuple(person.handle for person in self._data.people)

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        await anyio.sleep(self._latency)
        person = self._people.get(account_id)
        if person is None:
            raise AccountUnavailable(f"there is no simulated account {account_id}")
        newest = person.newest(self._clock())
        if cursor is None and etag == str(newest):
            return None
        last = newest if cursor is None else _parse_cursor(cursor) - 1
        numbers = range(last, max(last - limit, -1), -1)
        below = None if not numbers or numbers[-1] == 0 else str(numbers[-1])
        items = tuple(self._post(person, number) for number in numbers)
        return FeedPage(items=items, cursor=below, etag=None if cursor else str(newest))

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        await anyio.sleep(self._latency)
        requested, now = set(actors), self._clock()
        return [
            Profile(account_id=person.account_id, handle=person.handle, post_count=person.newest(now) + 1)
            for person in self._data.people
            if requested & {person.account_id, person.handle}
        ]

    def _post(self, person: Person, number: int) -> Item:
        chance = Random(f"{person.name} {number}")
        uri = f"at://{person.account_id}/app.bsky.feed.post/{number}"
        return Item(
            uri=uri,
            time=person.time_of(number),
            kind="post",
            post_uri=uri,
            author_id=person.account_id,
            author_handle=person.handle,
            text=chance.choice(self._data.texts),
            links=self._links(chance),
        )

    def _links(self, chance: Random) -> tuple[Link, ...]:
        """Return one link, or none for half of the posts. Links near the start are more likely."""
        if chance.random() < 0.5:
            return ()
        links = self._data.links
        return (links[min(chance.randrange(len(links)), chance.randrange(len(links)))],)


def _parse_cursor(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit():
        raise CursorRejected(f"invalid cursor {cursor!r}")
    return int(cursor)


# Simulated accounts together with the accounts of another source


class _FollowingSource(FeedSource, FollowSource, Protocol):
    """A source of feeds that also provides follow lists."""


def with_simulated(source: _FollowingSource) -> FeedSource:
    """Return a source that serves simulated accounts itself, and reads all other accounts from `source`."""
    if isinstance(source, HintSource):
        return _CombinedHintSource(source, hints=source)
    return _CombinedSource(source)


class _CombinedSource:
    def __init__(self, others: _FollowingSource) -> None:
        self._others = others
        self._simulated = SimulatedSource()

    @property
    def name(self) -> str:
        return self._others.name

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> FeedPage | None:
        source: FeedSource = self._simulated if account_id.startswith(DID_PREFIX) else self._others
        return await source.page(account_id, limit=limit, cursor=cursor, etag=etag)

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        simulated = [each for each in actors if each.startswith(DID_PREFIX)]
        others = [each for each in actors if not each.startswith(DID_PREFIX)]
        found = await self._simulated.profiles(simulated) if simulated else []
        return [*found, *(await self._others.profiles(others) if others else ())]

    def follows(self, actor: str) -> AsyncIterator[Profile]:
        return self._others.follows(actor)

    async def unfollowed(self, actor: str, account_ids: Sequence[str]) -> set[str]:
        return await self._others.unfollowed(actor, account_ids)


class _CombinedHintSource(_CombinedSource):
    def __init__(self, others: _FollowingSource, *, hints: HintSource) -> None:
        super().__init__(others)
        self._hints = hints

    async def latest_activity(self) -> Mapping[str, Micros]:
        return await self._hints.latest_activity()
