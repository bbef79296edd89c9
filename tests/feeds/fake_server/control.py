"""How tests in other processes turn the knobs: `POST /_fake/...`, with a JSON object.

world/<verb>   a method of the world, by its arguments' names: {"did": ..., "text": ...} -> its result
advance        {"by": micros}; for a world without a clock
knobs          the world's knobs
server         latency, requires_auth, gives_etags
limit          most, seconds, tells
password       {"did": ..., "password": ...}
expire         {} or {"scope": "access"}; tokens run out
fail           a Fault
heal           no faults any more
populate       {"accounts": 342, "posts": 100, "every": micros} -> the DIDs; the last post is just now
log            -> the requests so far
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ..simulation import Json, World
from .faults import Fault
from .http import Request

if TYPE_CHECKING:
    from .server import FakeBluesky

Verb: TypeAlias = "Callable[[FakeBluesky, Json], object]"

VERBS = {
    *("account", "rename", "deactivate", "take_down", "come_back", "follow", "unfollow", "block", "unblock"),
    *("publish", "repost", "quote", "reply", "pin", "spoil", "delete", "make_list"),
    *("everything_of", "ever_of", "posts_of"),
}
"""The methods of a world that may be called from outside."""


def done(fake: FakeBluesky, request: Request) -> object:
    """What an order's result is. KeyError: no such order."""
    order = request.path.removeprefix("/_fake/")
    told: Json = msgspec.json.decode(request.body or b"{}", type=dict[str, Any])
    if order.startswith("world/") and order[6:] in VERBS:
        return {"result": getattr(fake.world, order[6:])(**told)}
    return {"result": _ORDERS[order](fake, told)}


def populate(world: World, *, accounts: int, posts: int, every: int) -> list[str]:
    """Accounts that have each posted at a steady pace until now."""
    dids = [world.account() for _ in range(accounts)]
    now = world.now
    for number in range(posts):
        for place, did in enumerate(dids):
            at = now - (posts - 1 - number) * every - place * 1000
            world.publish(did, f"post {number} of {place}: https://example.com/{number % 50}", at=at)
    return dids


def _knobs(fake: FakeBluesky, told: Json) -> None:
    for name, value in told.items():
        setattr(fake.world.knobs, name, value)


def _server(fake: FakeBluesky, told: Json) -> None:
    for name in told.keys() & {"latency", "requires_auth", "gives_etags"}:
        setattr(fake, name, told[name])


def _password(fake: FakeBluesky, told: Json) -> None:
    fake.sessions.passwords[told["did"]] = told["password"]


_ORDERS: dict[str, Verb] = {
    "advance": lambda fake, told: fake.world.advance(told["by"]),
    "knobs": _knobs,
    "server": _server,
    "limit": lambda fake, told: fake.limit.set(**told),
    "password": _password,
    "expire": lambda fake, told: fake.sessions.expire(told.get("scope")),
    "fail": lambda fake, told: fake.fail(msgspec.convert(told, Fault)),
    "heal": lambda fake, told: fake.faults.clear(),
    "populate": lambda fake, told: populate(fake.world, **told),
    "warm": lambda fake, told: fake.warm(),
    "log": lambda fake, told: fake.log,
}
