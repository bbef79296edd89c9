"""Calls that share a round trip: whoever comes while one is under way goes with the next.

A call alone leaves at the end of the event loop's turn, so nobody waits for company; under load groups grow
by themselves. Each caller gets an answer or an error of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from .errors import StorageClosed

Q = TypeVar("Q")
A = TypeVar("A")
E = TypeVar("E", bound=Exception)


class Grouping(Generic[Q, A]):
    """Gathers questions and hands them to `answer` in groups. Belongs to one event loop.

    `answer` returns one answer, or the exception to be raised, for each question, in order. If it raises, the
    error is that of every question in the group. At most `at_once` groups are under way; a group has at most
    `most` questions, and no more weight than `heaviest`, unless one question alone has.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]],
        *,
        most: int,
        at_once: int = 1,
        weight: Callable[[Q], int] = lambda _: 0,
        heaviest: int = 0,
    ) -> None:
        self._answer = answer
        self._most = most
        self._at_once = at_once
        self._weight = weight
        self._heaviest = heaviest
        self._waiting: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_called = False
        self._closed = False

    async def ask(self, question: Q) -> A:
        """The answer to this question. It is asked even if the caller stops waiting."""
        if self._closed:
            raise StorageClosed("this storage was closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self._waiting.append((question, future))
        if not self._is_called:
            self._is_called = True
            loop.call_soon(self._leave)
        return await future

    async def close(self) -> None:
        """Answer what was asked, then refuse."""
        self._closed = True
        self._leave()
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _leave(self) -> None:
        self._is_called = False
        while self._waiting and len(self._under_way) < self._at_once:
            task = asyncio.get_running_loop().create_task(self._go(self._next_group()))
            self._under_way.add(task)
            task.add_done_callback(self._came_back)

    def _came_back(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._leave()

    def _next_group(self) -> list[tuple[Q, asyncio.Future[A]]]:
        group = [self._waiting.popleft()]
        weight = self._weight(group[0][0])
        while self._waiting and len(group) < self._most:
            weight += self._weight(self._waiting[0][0])
            if weight > self._heaviest:
                break
            group.append(self._waiting.popleft())
        return group

    async def _go(self, group: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._answer([question for question, _ in group])
            for (_, future), answer in zip(group, answers, strict=True):
                _settle(future, answer)
        except Exception as error:  # whatever it is, somebody waits for it
            for _, future in group:
                _settle(future, error if len(group) == 1 else own_copy(error))
        except BaseException:
            for _, future in group:
                future.cancel()
            raise


def _settle(future: asyncio.Future[A], answer: A | Exception) -> None:
    if future.done():
        return  # the caller has stopped waiting
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def own_copy(error: E) -> E:
    """Each caller raises its own: an exception collects the traceback of whoever raises it."""
    copy = error.__class__.__new__(error.__class__, *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__ or error
    return copy
