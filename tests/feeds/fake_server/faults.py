"""What goes wrong with answers: when, how often, and how."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from random import Random
from typing import Literal, TypeAlias

import msgspec

from perdure.storage import Micros

from ..simulation import Refusal
from .http import Request, Response

How: TypeAlias = Literal["refused", "slow", "trickling", "cut", "truncated", "nonsense", "dropped"]


class Fault(msgspec.Struct, kw_only=True):
    """Befalls the next requests that it fits."""

    how: How
    """refused: an error of the API. slow: late. trickling: half of it late. cut: the connection ends within
    the answer. truncated: half of the JSON, as if that were all. nonsense: a page of HTML. dropped: none.
    """
    times: int | None = 1
    """How many requests it befalls. None: all of them."""
    chance: float = 1.0
    path: str | None = None
    """How the path ends. None: any."""
    actor: str | None = None
    with_cursor: bool | None = None
    """Only requests with a cursor, or without one."""
    status: int = 503
    error: str = "UpstreamFailure"
    message: str = "Upstream failure"
    seconds: float = 0.0

    def fits(self, request: Request, actor: str | None) -> bool:
        has_cursor = "cursor" in request.query
        return (
            self.times != 0
            and (self.path is None or request.path.endswith(self.path))
            and (self.actor is None or self.actor == actor)
            and (self.with_cursor is None or self.with_cursor == has_cursor)
        )


class Faults:
    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def befalling(self, request: Request, actor: str | None) -> Fault | None:
        for fault in self._faults:
            if fault.fits(request, actor) and self._chance.random() < fault.chance:
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None


def broken(response: Response, fault: Fault) -> Response:
    """An answer as it is after the fault."""
    replace = msgspec.structs.replace
    match fault.how:
        case "refused" | "slow":
            return response
        case "trickling":
            return replace(response, pauses=fault.seconds)
        case "cut":
            return replace(response, stops_after=0.5)
        case "truncated":
            return replace(response, body=response.body[: len(response.body) // 2])
        case "nonsense":
            page = b"<!doctype html><title>Bad gateway</title>"
            return Response(status=fault.status, body=page, headers={"content-type": "text/html"})
        case "dropped":
            return replace(response, stops_after=0.0)


class Limit:
    """So many requests in a window; the next window begins when this one ends."""

    def __init__(self, clock: Callable[[], Micros]) -> None:
        self.most: int | None = None
        self.seconds = 300.0
        self.sends_headers = True
        """Whether answers carry headers about it."""
        self.refused = 0
        self._clock = clock
        self._used = 0
        self._ends: Micros = 0

    def set(self, most: int | None, *, seconds: float = 300.0, sends_headers: bool = True) -> None:
        """From now on, in a fresh window."""
        self.most, self.seconds, self.sends_headers = most, seconds, sends_headers
        self._ends = 0

    def take(self) -> None:
        """Count a request. Refusal: it is one too many."""
        if self.most is None:
            return
        now = self._clock()
        if now >= self._ends:
            self._used = 0
            self._ends = ceil(now / 1e6 + self.seconds) * 1_000_000
        self._used += 1
        if self._used > self.most:
            self.refused += 1
            raise Refusal(429, "RateLimitExceeded", "Rate Limit Exceeded")

    def headers(self, *, is_refusal: bool) -> dict[str, str]:
        if self.most is None or not self.sends_headers:
            return {}
        headers = {
            "ratelimit-limit": str(self.most),
            "ratelimit-remaining": str(max(0, self.most - self._used)),
            "ratelimit-reset": str(self._ends // 1_000_000),
            "ratelimit-policy": f"{self.most};w={ceil(self.seconds)}",
        }
        wait = max(0, ceil((self._ends - self._clock()) / 1e6))
        return {**headers, "retry-after": str(wait)} if is_refusal else headers
