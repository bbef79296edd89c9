"""`@feature`: the test proves a row of the table in docs/guides/fastmcp.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


class Feature(NamedTuple):
    """A row of the table."""

    name: str
    peer: str
    """What fastmcp-tasks does."""
    here: str
    """What perdure does."""


def feature(name: str, *, peer: str, here: str = "the same") -> Callable[[T], T]:
    def mark(test: T) -> T:
        test.__dict__.setdefault("features", []).append(Feature(name, peer, here))
        return test

    return mark
