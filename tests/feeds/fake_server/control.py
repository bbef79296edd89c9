"""How tests in other processes turn the knobs: `POST /_fake/...`, with a JSON object.

world/<verb>   a method of the world, by its arguments' names: {"did": ..., "text": ...} -> its result
advance        {"by": micros}; for a world without a clock
knobs          the world's knobs
server         latency, requires_auth, gives_etags
limit          most, seconds, sends_headers
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
    arguments: Json = msgspec.json.decode(request.body or b"{}", type=dict[str, Any])
    if order.startswith("world/") and order[6:] in VERBS:
        return {"result": getattr(fake.world, order[6:])(**arguments)}
    return {"result": _ORDERS[order](fake, arguments)}


def populate(world: World, *, accounts: int, posts: int, every: int) -> list[str]:
    """Accounts that have each posted at a steady pace until now."""
    dids = [world.account() for _ in range(accounts)]
    now = world.now
    for number in range(posts):
        for place, did in enumerate(dids):
            at = now - (posts - 1 - number) * every - place * 1000
            world.publish(did, f"post {number} of {place}: https://example.com/{number % 50}", at=at)
    return dids


def _knobs(fake: FakeBluesky, arguments: Json) -> None:
    for name, value in arguments.items():
        setattr(fake.world.knobs, name, value)


def _server(fake: FakeBluesky, arguments: Json) -> None:
    for name in arguments.keys() & {"latency", "requires_auth", "gives_etags"}:
        setattr(fake, name, arguments[name])


def _password(fake: FakeBluesky, arguments: Json) -> None:
    fake.sessions.passwords[arguments["did"]] = arguments["password"]


_ORDERS: dict[str, Verb] = {
    "advance": lambda fake, arguments: fake.world.advance(arguments["by"]),
    "knobs": _knobs,
    "server": _server,
    "limit": lambda fake, arguments: fake.limit.set(**arguments),
    "password": _password,
    "expire": lambda fake, arguments: fake.sessions.expire(arguments.get("scope")),
    "fail": lambda fake, arguments: fake.fail(msgspec.convert(arguments, Fault)),
    "heal": lambda fake, arguments: fake.faults.clear(),
    "populate": lambda fake, arguments: populate(fake.world, **arguments),
    "warm": lambda fake, arguments: fake.warm(),
    "log": lambda fake, arguments: fake.log,
}
