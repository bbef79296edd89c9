"""Virtual time: an event loop that does not wait. When nothing can run, its clock jumps to the next timer.

So hours of polling take seconds, and the pauses are exact. Only for code that waits for timers alone: no
sockets, no threads.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import ParamSpec, TypeVar

from perdure.storage import Micros

P = ParamSpec("P")
T = TypeVar("T")

EPOCH: Micros = 1_794_000_000_000_000
"""What the clock shows when a loop begins."""


class _Jumping(selectors.SelectSelector):
    """Asked to wait, it says that the time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and not for time")
        self.now += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(work: Coroutine[None, None, T]) -> T:
    """Run this to its end, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def virtual_clock() -> Callable[[], Micros]:
    """The clock of the loop that runs now."""
    loop = asyncio.get_running_loop()
    return lambda: EPOCH + round(loop.time() * 1e6)


def in_virtual_time(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """For an asynchronous test that is to be run by a virtual loop."""

    @functools.wraps(test)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapped
