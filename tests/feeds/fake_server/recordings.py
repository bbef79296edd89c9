"""The recorded answers of a real server, and a world in which a recorded page is what the fake answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..simulation import REPOSTS, Json, World, parsed

FOLDER = Path(__file__).parent.parent / "fixtures"


def recorded(name: str) -> Json:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())


def account_of(page: Json) -> str:
    """Whose feed a page shows."""
    for item in page["feed"]:
        reason = item.get("reason", {})
        if "by" in reason:
            return reason["by"]["did"]
    return page["feed"][0]["post"]["author"]["did"]


def load(world: World, page: Json) -> None:
    """Make everything that a page shows exist."""
    posts = {post["uri"]: post for item in page["feed"] for post in _posts_in(item)}
    for post in posts.values():
        _meet(world, post["author"])
    for post in sorted(posts.values(), key=lambda post: post["record"]["createdAt"]):
        if post["uri"] not in world.rows:
            world.insert(post["uri"], post["cid"], post["record"], _time(post["indexedAt"]))
    for item in page["feed"]:
        _load_reason(world, item)


def _load_reason(world: World, item: Json) -> None:
    reason, post = item.get("reason", {}), item["post"]
    if reason.get("$type", "").endswith("#reasonPin"):
        world.pin(post["author"]["did"], post["uri"])
    elif "uri" in reason and reason["uri"] not in world.rows:
        _meet(world, reason["by"])
        subject = {"uri": post["uri"], "cid": post["cid"]}
        record = {"$type": REPOSTS, "subject": subject, "createdAt": reason["indexedAt"]}
        world.insert(reason["uri"], reason["cid"], record, _time(reason["indexedAt"]))


def _posts_in(item: Json) -> Iterator[Json]:
    """Those that are shown, answered or quoted."""
    for post in (item["post"], *item.get("reply", {}).values()):
        yield post
        quoted = post.get("embed", {}).get("record", {})
        quoted = quoted.get("record", quoted)
        if "value" in quoted:
            yield {**quoted, "record": quoted["value"]}


def _meet(world: World, author: Json) -> None:
    if author["did"] not in world.accounts:
        world.account(author["handle"], did=author["did"], display_name=author.get("displayName"))


def _time(text: str) -> int:
    time = parsed(text)
    assert time is not None, text
    return time
