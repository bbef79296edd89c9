"""Whatever an account does, and wherever its poller dies, everything is found, once."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.storage.time_types import HOUR, MINUTE

from .histories import History, LatestPage, Literal, Step, settings, steps_of
from .simulation import Knobs
from .virtual_time import run

KNOBS = st.builds(
    Knobs,
    cursors=st.sampled_from(["keyset", "time"]),
    foreign=st.sampled_from(["fails", "empty", "refused"]),
    short_pages=st.sampled_from([0.0, 0.3]),
    empty_pages=st.sampled_from([0.0, 0.2]),
)


async def play(history: History, steps: list[Step]) -> None:
    await history.open()
    for step in steps:
        result = step(history)
        if inspect.isawaitable(result):
            await result
        await history.check()


@given(seed=st.integers(0, 2**32), length=st.integers(1, 40), knobs=KNOBS)
def test_everything_that_was_published_is_found_whenever_the_poller_dies(
    seed: int, length: int, knobs: Knobs
) -> None:
    async def one() -> None:
        history = History(seed, knobs)
        await play(history, steps_of(Random(seed), length))
        await history.finish()
        await history.check()
        found = await history.found()
        assert history.wanted() <= found.keys()
        assert found.keys() <= history.world.ever_of(history.did).keys()

    run(one())


@given(seed=st.integers(0, 2**32), knobs=KNOBS)
def test_when_all_is_read_an_idle_account_costs_one_request(seed: int, knobs: Knobs) -> None:
    """But for one whose newest items are a whole page of the same instant: more of them may follow."""

    async def one() -> None:
        history = History(seed, knobs)
        await play(history, steps_of(Random(seed), 12))
        await history.finish()
        knobs.short_pages = knobs.empty_pages = 0
        for _ in range(8):
            history.world.advance(HOUR)
            history.publish()
        await history.finish()
        asked = len(history.source.asked)
        await history.poll()
        assert len(history.source.asked) == asked + 1

    run(one())


async def with_a_burst(history: History) -> None:
    """What a poll will find: several pages, reposts, and two items that came late, a page apart."""
    await history.open()
    history.publish(9, pause=4 * MINUTE)
    await history.poll()
    for minutes in (3, 18):
        history.back_date(minutes * MINUTE)
    history.publish(9)
    history.repost()


async def found_after(seed: int, harm: Callable[[History], Awaitable[bool]]) -> tuple[bool, dict[str, int]]:
    """Whether the harm was done, and what one clean run finds afterwards."""
    history = History(seed, polling=settings(max_pages_per_user=50))
    await with_a_burst(history)
    was_done = await harm(history)
    await history.check()
    await history.poll()
    return was_done, await history.found()


async def unharmed(_: History) -> bool:
    return False


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["killed", "in trouble"])
def test_harm_at_any_step_and_one_clean_run_find_what_no_harm_would_have(how: str, seed: int) -> None:
    """Every step of a poll (reads, commits, moments between them), with a crash or a failure there."""

    async def harm(history: History) -> bool:
        return await (history.poll_and_die(steps) if how == "killed" else history.poll_in_trouble(steps))

    _, wanted = run(found_after(seed, unharmed))
    is_harmed, steps = True, 0
    while is_harmed:
        is_harmed, found = run(found_after(seed, harm))
        assert found == wanted, steps
        steps += 1
    assert steps > 15


def test_the_seed_s_own_algorithm_and_the_latest_page_alone_lose_items_in_the_same_histories() -> None:
    async def one(seed: int) -> tuple[int, int, int, int]:
        history = History(seed, Knobs(cursors="time"))
        literal, latest = Literal(history), LatestPage(history)
        await history.open()
        for step in steps_of(Random(seed), 40, with_kills=False):
            result = step(history)
            if inspect.isawaitable(result):
                await result
                await literal.poll()
                await latest.poll()
        await history.finish()
        await literal.poll()
        await latest.poll()
        wanted, found = history.wanted(), (await history.found()).keys()
        return len(wanted), len(wanted - found), len(wanted - literal.found), len(wanted - latest.found)

    counted = [run(one(seed)) for seed in range(30)]
    wanted, lost, lost_by_the_seed, lost_by_the_latest = map(sum, zip(*counted, strict=True))
    assert wanted > 1000
    assert lost == 0
    assert lost_by_the_seed > wanted / 3
    assert lost_by_the_latest > wanted / 3
