"""Calls that share a round trip: who goes together, who gets which answer, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import given

from perdure.storage.errors import CopyMismatch, StorageBusy, StorageClosed
from perdure.storage.request_batcher import Batcher

pytestmark = pytest.mark.anyio

TURNS = 5
"""Turns of the event loop in which everything that waits for no one is done."""
TIMEOUT = 10.0
"""Seconds after which an answer that never comes fails the test instead of hanging it."""
T = TypeVar("T")


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class ToolDashboard:
    """Answers a question with ten times itself, and each group only when it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self._gates: list[asyncio.Future[None]] = []

    async def answer(self, questions: Sequence[int]) -> list[int | Exception]:
        gate = asyncio.get_running_loop().create_future()
        self.groups.append(list(questions))
        self._gates.append(gate)
        await gate
        return [question * 10 for question in questions]

    @property
    def running(self) -> int:
        return sum(not gate.done() for gate in self._gates)

    async def let_go(self, which: int = 0) -> None:
        """The first of the running batches, or another."""
        waiting = [gate for gate in self._gates if not gate.done()]
        waiting[which % len(waiting)].set_result(None)
        await turns()

    async def let_all_go(self) -> None:
        while self.running:
            await self.let_go()


async def asked(batcher: Batcher[int, int], *questions: int) -> list[asyncio.Task[int]]:
    """Callers that wait for their answers."""
    callers = [asyncio.create_task(batcher.submit(question)) for question in questions]
    await turns()
    return callers


async def in_time(caller: Awaitable[T]) -> T:
    """Return the result, or fail after a time."""
    async with asyncio.timeout(TIMEOUT):
        return await caller


async def test_a_single_request_is_sent_immediately() -> None:
    desk = ToolDashboard()
    batcher = Batcher(desk.answer, max_items=100)
    (caller,) = await asked(batcher, 1)
    assert desk.groups == [[1]]
    await desk.let_go()
    assert await in_time(caller) == 10


async def test_those_who_ask_in_the_same_turn_go_together() -> None:
    desk = ToolDashboard()
    callers = await asked(Batcher(desk.answer, max_items=100), 1, 2, 3)
    assert desk.groups == [[1, 2, 3]]
    await desk.let_go()
    assert await in_time(asyncio.gather(*callers)) == [10, 20, 30]


async def test_requests_that_arrive_during_a_batch_join_the_next() -> None:
    desk = ToolDashboard()
    batcher = Batcher(desk.answer, max_items=100)
    callers = await asked(batcher, 1)
    for question in (2, 3, 4):
        callers += await asked(batcher, question)
    assert desk.groups == [[1]]
    await desk.let_go()
    assert desk.groups == [[1], [2, 3, 4]]
    await desk.let_go()
    assert await in_time(asyncio.gather(*callers)) == [10, 20, 30, 40]


async def test_a_group_has_no_more_than_the_most() -> None:
    desk = ToolDashboard()
    await asked(Batcher(desk.answer, max_items=2), 1, 2, 3, 4, 5)
    await desk.let_all_go()
    assert desk.groups == [[1, 2], [3, 4], [5]]


async def test_a_group_is_no_heavier_than_the_heaviest_unless_one_question_alone_is() -> None:
    desk = ToolDashboard()
    batcher = Batcher(desk.answer, max_items=100, weight=lambda question: question, max_weight=10)
    await asked(batcher, 4, 6, 1, 20, 3, 3, 11)
    await desk.let_all_go()
    assert desk.groups == [[4, 6], [1], [20], [3, 3], [11]]


async def test_no_more_batches_are_in_flight_than_allowed() -> None:
    desk = ToolDashboard()
    await asked(Batcher(desk.answer, max_items=1, max_concurrent=2), 1, 2, 3, 4)
    assert desk.groups == [[1], [2]]
    await desk.let_go(1)
    assert desk.groups == [[1], [2], [3]]
    await desk.let_all_go()
    assert desk.groups == [[1], [2], [3], [4]]


async def test_a_group_that_comes_back_first_answers_its_own_callers() -> None:
    desk = ToolDashboard()
    first, second = await asked(Batcher(desk.answer, max_items=1, max_concurrent=2), 1, 2)
    await desk.let_go(1)
    assert (first.done(), second.done()) == (False, True)
    assert await in_time(second) == 20
    await desk.let_go()
    assert await in_time(first) == 10


# Errors


async def test_an_error_goes_to_the_caller_whose_question_it_answers() -> None:
    async def refuse_odd_ones(questions: Sequence[int]) -> list[int | Exception]:
        return [StorageBusy(str(each)) if each % 2 else each for each in questions]

    callers = await asked(Batcher(refuse_odd_ones, max_items=100), 1, 2, 3)
    assert await in_time(callers[1]) == 2
    for caller, words in ((callers[0], "1"), (callers[2], "3")):
        with pytest.raises(StorageBusy, match=words):
            await in_time(caller)


async def test_an_error_of_the_whole_group_is_raised_to_each_caller_as_its_own() -> None:
    cause = OSError(5, "the line broke")

    async def fail(_: Sequence[int]) -> list[int | Exception]:
        raise CopyMismatch("space", "partition", "key") from cause

    callers = await asked(Batcher(fail, max_items=100), 1, 2, 3)
    errors = await in_time(asyncio.gather(*callers, return_exceptions=True))
    assert len({id(error) for error in errors}) == 3
    for error in errors:
        assert type(error) is CopyMismatch
        assert (
            str(error)
            == "space/partition/key: the copy differs from the source; empty the target and copy again"
        )
        assert (error.space, error.partition, error.key) == ("space", "partition", "key")
        assert error.__cause__ is cause


async def test_an_error_of_one_alone_is_the_very_one() -> None:
    raised = ValueError("so it is")

    async def fail(_: Sequence[int]) -> list[int | Exception]:
        raise raised

    (caller,) = await asked(Batcher(fail, max_items=100), 1)
    with pytest.raises(ValueError, match="so it is") as caught:
        await in_time(caller)
    assert caught.value is raised


async def test_after_an_error_the_next_group_goes_all_the_same() -> None:
    calls: list[list[int]] = []

    async def fail_once(questions: Sequence[int]) -> list[int | Exception]:
        calls.append(list(questions))
        if len(calls) == 1:
            raise StorageBusy("not now")
        return list(questions)

    first, second = await asked(Batcher(fail_once, max_items=1), 1, 2)
    with pytest.raises(StorageBusy):
        await in_time(first)
    assert await in_time(second) == 2


# Callers that stop waiting


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_cancelled_caller_affects_no_other_and_its_request_is_sent(gone: int) -> None:
    desk = ToolDashboard()
    batcher = Batcher(desk.answer, max_items=100)
    callers = await asked(batcher, 1)
    callers += await asked(batcher, 2, 3)  # these wait for a group; the first is in one
    callers[gone].cancel()
    await turns()
    await desk.let_all_go()
    assert desk.groups == [[1], [2, 3]]
    results = await in_time(asyncio.gather(*callers, return_exceptions=True))
    assert isinstance(results.pop(gone), asyncio.CancelledError)
    assert results == [answer for at, answer in enumerate((10, 20, 30)) if at != gone]


async def test_an_error_without_a_waiting_caller_is_dropped() -> None:
    desk = ToolDashboard()

    async def fail(questions: Sequence[int]) -> list[int | Exception]:
        await desk.answer(questions)
        raise StorageBusy("not now")

    gone, stays = await asked(Batcher(fail, max_items=100), 1, 2)
    gone.cancel()
    await desk.let_go()
    with pytest.raises(StorageBusy):
        await in_time(stays)
    assert gone.cancelled()


# Closing


async def test_close_answers_what_was_asked_and_then_refuses() -> None:
    desk = ToolDashboard()
    batcher = Batcher(desk.answer, max_items=1)
    callers = await asked(batcher, 1, 2, 3)
    closing = asyncio.create_task(batcher.close())
    await turns()
    with pytest.raises(StorageClosed):
        await in_time(batcher.submit(4))
    await desk.let_go()
    await desk.let_go()
    assert not closing.done()
    await desk.let_go()
    await in_time(closing)
    assert [caller.result() for caller in callers] == [10, 20, 30]
    assert desk.groups == [[1], [2], [3]]
    with pytest.raises(StorageClosed):
        await in_time(batcher.submit(5))


async def test_close_waits_for_what_was_asked_in_the_same_turn() -> None:
    desk = ToolDashboard()
    batcher = Batcher(desk.answer, max_items=100)
    caller, *closing = (
        asyncio.create_task(each) for each in (batcher.submit(1), batcher.close(), batcher.close())
    )
    await turns()
    assert not any(each.done() for each in closing)
    await desk.let_go()
    assert await in_time(asyncio.gather(caller, *closing)) == [10, None, None]


async def test_close_with_nothing_asked_returns() -> None:
    desk = ToolDashboard()
    batcher = Batcher(desk.answer, max_items=100)
    await batcher.close()
    await batcher.close()
    assert desk.groups == []


# Any order of arrivals

Step: TypeAlias = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask together", "let go", "cancel"]), st.integers(0, 9)),
    max_size=40,
)


class Crowd:
    """Callers that come, go and are answered; and what must be so after each step. Questions count up from
    zero; a question weighs what `weights` says.
    """

    def __init__(self, most: int, at_once: int, heaviest: int) -> None:
        self._desk = ToolDashboard()
        self._most = most
        self._at_once = at_once
        self._heaviest = heaviest
        self._weights: list[int] = []
        self._callers: list[asyncio.Task[int]] = []
        self._cancelled: set[int] = set()
        self._batcher = Batcher(
            self._desk.answer,
            max_items=most,
            max_concurrent=at_once,
            weight=self._weights.__getitem__,
            max_weight=heaviest,
        )

    async def do(self, step: str, number: int) -> None:
        does: dict[str, Callable[[int], Awaitable[None]]] = {
            "ask": self._ask,
            "ask together": self._ask_together,
            "let go": self._let_go,
            "cancel": self._cancel,
        }
        await does[step](number)
        self._check()

    async def _ask(self, weight: int) -> None:
        self._weights.append(weight)
        self._callers += await asked(self._batcher, len(self._callers))

    async def _ask_together(self, weight: int) -> None:
        self._weights += [weight, 1, weight]
        count = len(self._callers)
        self._callers += await asked(self._batcher, *range(count, count + 3))

    async def _let_go(self, which: int) -> None:
        if self._desk.running:
            await self._desk.let_go(which)

    async def _cancel(self, which: int) -> None:
        if which < len(self._callers) and self._callers[which].cancel():
            self._cancelled.add(which)
        await turns()

    def _check(self) -> None:
        gone = [question for group in self._desk.groups for question in group]
        assert gone == list(range(len(gone))), "asked in order, each once"
        assert self._desk.running <= self._at_once
        if len(gone) < len(self._callers):
            assert self._desk.running == self._at_once, "no call waits while there is room"
        for group in self._desk.groups:
            assert len(group) <= self._most
            weight = sum(self._weights[question] for question in group)
            assert len(group) == 1 or weight <= self._heaviest

    async def leave(self) -> None:
        """Close, and check that every waiting call got its result."""
        closing = asyncio.create_task(self._batcher.close())
        await turns()
        await self._desk.let_all_go()
        await in_time(closing)
        self._check()
        assert sum(map(len, self._desk.groups)) == len(self._callers)
        for question, caller in enumerate(self._callers):
            assert caller.cancelled() if question in self._cancelled else caller.result() == question * 10


@given(steps, st.integers(1, 4), st.integers(1, 3), st.integers(0, 20))
def test_whatever_the_order_of_arrivals_everyone_is_asked_once_in_order_within_the_bounds(
    arrivals: list[Step], most: int, at_once: int, heaviest: int
) -> None:
    async def live() -> None:
        crowd = Crowd(most, at_once, heaviest)
        for step in arrivals:
            await crowd.do(*step)
        await crowd.leave()

    asyncio.run(live())
