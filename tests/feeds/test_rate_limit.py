"""All requests together stay within the rate limit of a source, and failed ones are retried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from perdure.feeds.errors import AuthenticationFailed, RateLimited, SourceUnavailable
from perdure.feeds.rate_limit import RESERVE_FRACTION, RateLimiter, Retrier
from perdure.feeds.settings import PollSettings
from perdure.storage.time_types import SECOND

from .virtual_time import in_virtual_time, run, virtual_clock

PATIENT = PollSettings(max_retries=3, retry_backoff_ms=1000)


def failing(*errors: Exception) -> tuple[list[float], Callable[[], Awaitable[str]]]:
    """An attempt that fails with each of these in turn, and the seconds at which it was made."""
    left = list(errors)
    at: list[float] = []

    async def attempt() -> str:
        at.append(asyncio.get_running_loop().time())
        if left:
            raise left.pop(0)
        return "answer"

    return at, attempt


@in_virtual_time
async def test_a_failure_is_tried_again_after_one_two_and_four_seconds() -> None:
    at, attempt = failing(*[SourceUnavailable("cut")] * 3)
    assert await Retrier(RateLimiter(1), PATIENT).call(attempt) == "answer"
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert all(0.8 * wanted <= pause <= 1.2 * wanted for pause, wanted in zip(pauses, (1, 2, 4), strict=True))


@in_virtual_time
async def test_after_the_last_retry_the_failure_is_raised() -> None:
    at, attempt = failing(*[SourceUnavailable("cut")] * 9)
    with pytest.raises(SourceUnavailable):
        await Retrier(RateLimiter(1), PATIENT).call(attempt)
    assert len(at) == 4


@in_virtual_time
async def test_what_cannot_get_better_is_not_tried_again() -> None:
    at, attempt = failing(AuthenticationFailed("no"))
    with pytest.raises(AuthenticationFailed):
        await Retrier(RateLimiter(1), PATIENT).call(attempt)
    assert len(at) == 1


@in_virtual_time
async def test_a_rate_limit_stops_all_requests_until_it_ends_and_is_no_failure() -> None:
    clock = virtual_clock()
    budget = RateLimiter(4, clock=clock)
    requests = Retrier(budget, PollSettings(max_retries=0))
    until = clock() + 30 * SECOND
    at, limited = failing(RateLimited(until))
    asked: list[int] = []

    async def other() -> None:
        asked.append(clock())

    first = asyncio.create_task(requests.call(limited))
    await asyncio.sleep(1)
    others = [asyncio.create_task(requests.call(other)) for _ in range(8)]
    await asyncio.sleep(1)
    assert asked == []
    assert budget.paused_until == until
    await asyncio.gather(first, *others)
    assert len(at) == 2
    assert min(asked) >= until


@in_virtual_time
async def test_a_rate_limit_without_a_time_is_waited_out_for_a_minute() -> None:
    at, limited = failing(RateLimited(None))
    await Retrier(RateLimiter(1, clock=virtual_clock()), PATIENT).call(limited)
    assert 59 <= at[1] - at[0] <= 61


@in_virtual_time
async def test_what_the_headers_leave_is_not_used_up_but_for_a_reserve() -> None:
    """A hundred are allowed in ten seconds, and the source says so each time."""
    clock = virtual_clock()
    budget = RateLimiter(5, clock=clock)
    requests = Retrier(budget, PATIENT)
    window, limit = 10 * SECOND, 100
    used: dict[int, int] = {}

    async def attempt() -> None:
        begin = clock() // window
        used[begin] = used.get(begin, 0) + 1
        await asyncio.sleep(0.05)
        left = limit - used[begin]
        budget.update(limit=limit, remaining=left, resets_at=(begin + 1) * window)

    await asyncio.gather(*(requests.call(attempt) for _ in range(500)))
    assert max(used.values()) <= limit * (1 - RESERVE_FRACTION) + 5
    assert len(used) >= 5
    assert budget.request_count == 500


@in_virtual_time
async def test_no_more_requests_are_in_flight_than_there_are_connections() -> None:
    in_flight, most = 0, 0

    async def attempt() -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(1)
        in_flight -= 1

    requests = Retrier(RateLimiter(3), PATIENT)
    await asyncio.gather(*(requests.call(attempt) for _ in range(10)))
    assert most == 3


@in_virtual_time
async def test_an_answer_that_was_overtaken_does_not_raise_what_is_left() -> None:
    budget = RateLimiter(1, clock=virtual_clock())
    budget.update(limit=100, remaining=50, resets_at=7)
    budget.update(limit=100, remaining=60, resets_at=7)
    assert budget.remaining == 50
    budget.update(limit=100, remaining=99, resets_at=6)
    assert budget.remaining == 50
    budget.update(limit=100, remaining=99, resets_at=8)
    assert budget.remaining == 99


@pytest.mark.parametrize(("offset", "least", "most"), [(-9e9, 1, 2), (0, 1, 2), (1e15, 3599, 3601)])
def test_what_a_source_says_about_its_rate_counts_within_reason(offset: float, least: int, most: int) -> None:
    """`retry-after: 0`, a clock that is wrong, a number of a million years."""

    async def one() -> None:
        clock = virtual_clock()
        at, limited = failing(RateLimited(max(0, clock() + round(offset))))
        await Retrier(RateLimiter(1, clock=clock), PATIENT).call(limited)
        assert least <= at[1] - at[0] <= most

    run(one())


@in_virtual_time
async def test_a_window_that_never_ends_is_not_believed_for_long() -> None:
    clock = virtual_clock()
    budget = RateLimiter(1, clock=clock)
    budget.update(limit=100, remaining=1, resets_at=clock() + 10**15)
    await asyncio.wait_for(Retrier(budget, PATIENT).call(failing()[1]), 3700)
    budget.update(limit=100, remaining=70, resets_at=clock() + 3600 * SECOND)
    assert budget.remaining == 70


@in_virtual_time
async def test_a_source_that_fails_is_left_alone_for_as_long_as_it_wants() -> None:
    clock = virtual_clock()
    at, attempt = failing(SourceUnavailable("maintenance", retry_at=clock() + 120 * SECOND))
    await Retrier(RateLimiter(1, clock=clock), PATIENT).call(attempt)
    assert at[1] - at[0] == pytest.approx(120)
