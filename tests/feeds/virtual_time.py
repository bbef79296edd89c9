"""Tests in simulated time: hours of polling take seconds, and the pauses are exact."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec, TypeVar

from perdure.storage import Micros
from perdure.testing import SimulatedTime

P = ParamSpec("P")
T = TypeVar("T")


def run(work: Coroutine[None, None, T]) -> T:
    """Run this to its end, in simulated time."""
    return SimulatedTime().run(lambda: work)


def virtual_clock() -> Callable[[], Micros]:
    """The clock of the loop that runs now."""
    time = SimulatedTime.current()
    assert time is not None
    return time.clock


def in_virtual_time(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """For an asynchronous test that is to be run in simulated time."""

    @functools.wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapped
