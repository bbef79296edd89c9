"""A source whose people are made up. They post for ever, each at a pace of their own, and need no network.

A post follows from its author and its number alone, so that whoever reads it again, in whatever process,
reads the same bytes; and there is always something new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from random import Random

import anyio
import msgspec

from ..feeds import Item, Link, Page, Profile
from ..feeds.errors import AccountUnavailable, CursorRefused
from ..storage import Micros
from ..storage.clock import MINUTE, system_clock

METHOD = "did:example:"
"""How the ids of made-up accounts begin: this kind of DID is set aside for examples."""
BEGAN: Micros = 1_767_225_600 * 1_000_000
"""The first of January 2026, when everybody began to post."""


class Person(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    every_minutes: int

    @property
    def account_id(self) -> str:
        return METHOD + self.name

    @property
    def handle(self) -> str:
        return f"{self.name}.example"

    def time_of(self, number: int) -> Micros:
        return BEGAN + number * self.every_minutes * MINUTE

    def newest(self, now: Micros) -> int:
        """The number of the last post; before the first one, -1."""
        return max((now - BEGAN) // (self.every_minutes * MINUTE), -1)


class Told(msgspec.Struct, frozen=True):
    url: str
    title: str


class World(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who posts, and what they have to say."""

    people: tuple[Person, ...]
    thoughts: tuple[str, ...]
    reading: tuple[Told, ...]
    """What they share; the first ones more often."""


def packaged_world() -> World:
    return msgspec.json.decode(files("perdure.samples").joinpath("people.json").read_bytes(), type=World)


class SampleSource:
    """Keeps `perdure.feeds.FeedSource`."""

    name = "sample feeds"

    def __init__(self, *, latency: float = 0.0, clock: Callable[[], Micros] = system_clock) -> None:
        """`latency` is how many seconds an answer takes."""
        self._world = packaged_world()
        self._people = {person.account_id: person for person in self._world.people}
        self._latency = latency
        self._clock = clock

    @property
    def handles(self) -> tuple[str, ...]:
        return tuple(person.handle for person in self._world.people)

    async def page(
        self, account_id: str, *, limit: int, cursor: str | None = None, etag: str | None = None
    ) -> Page | None:
        await anyio.sleep(self._latency)
        person = self._people.get(account_id)
        if person is None:
            raise AccountUnavailable(f"nobody made up {account_id}")
        newest = person.newest(self._clock())
        if cursor is None and etag == str(newest):
            return None
        last = newest if cursor is None else _number_in(cursor) - 1
        numbers = range(last, max(last - limit, -1), -1)
        below = None if not numbers or numbers[-1] == 0 else str(numbers[-1])
        items = tuple(self._post(person, number) for number in numbers)
        return Page(items=items, cursor=below, etag=None if cursor else str(newest))

    async def profiles(self, actors: Sequence[str]) -> list[Profile]:
        await anyio.sleep(self._latency)
        wanted, now = set(actors), self._clock()
        return [
            Profile(account_id=person.account_id, handle=person.handle, posts=person.newest(now) + 1)
            for person in self._world.people
            if wanted & {person.account_id, person.handle}
        ]

    def _post(self, person: Person, number: int) -> Item:
        chance = Random(f"{person.name} {number}")
        uri = f"at://{person.account_id}/app.bsky.feed.post/{number}"
        return Item(
            uri=uri,
            time=person.time_of(number),
            kind="post",
            post=uri,
            author=person.account_id,
            handle=person.handle,
            text=chance.choice(self._world.thoughts),
            links=self._links(chance),
        )

    def _links(self, chance: Random) -> tuple[Link, ...]:
        """In every other post; of two that come to mind, the one that more people share."""
        if chance.random() < 0.5:
            return ()
        read = self._world.reading
        told = read[min(chance.randrange(len(read)), chance.randrange(len(read)))]
        return (Link(url=told.url, via="card", title=told.title),)


def _number_in(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit():
        raise CursorRefused(f"{cursor!r} is no number of a post")
    return int(cursor)
