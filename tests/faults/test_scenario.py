"""In every kind of bad weather each engine loses nothing, repeats nothing and says only what is so.

The long run is `python -m tests.faults`; its numbers are in docs/faults.md.
"""

from __future__ import annotations

import pytest

from perdure.storage.kit.servers import Valkey

from .. import engines
from ..storage.engines import engine_of
from . import checks, scenario
from .checks import SortedEvidence, breaches
from .disturbances import DISTURBANCES, open_setup
from .report import numbers
from .scenario import Plan

pytestmark = pytest.mark.anyio

PLAN = Plan(seed=engines.number_of("storms") % 10_000, seconds=4, answers=40, hangs=60, recovers=60)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One kind of weather for each engine, by the seed; `make soak` has the others."""
    if "weather" not in metafunc.fixturenames:
        return
    storms = [(engine, weather) for engine, weathers in DISTURBANCES.items() for weather in weathers]
    by_engine = [[each for each in storms if engine_of(each[0]) == name] for name in engines.SERVERS]
    if metafunc.config.getoption("--engines") != "all":
        by_engine = [[engines.choice(each[0][0], each)] for each in by_engine]
    metafunc.parametrize(("engine", "weather"), [case for cases in by_engine for case in cases])


async def test_a_storm_loses_nothing_and_repeats_nothing(engine: str, weather: str) -> None:
    async with open_setup(engine, weather) as made:
        case = SortedEvidence(await scenario.run(PLAN, made))
    assert breaches(case) == {}, (
        f"python -m tests.faults --engine {engine} --weather {weather} --seed {PLAN.seed}"
    )
    met = numbers(case)
    assert case.evidence.met.total() > 0, met
    assert min(met["acknowledged"], met["refused by a guard"], met["records read"]) > 0, met


class Forgetful(Valkey):
    """A server that is opened although it keeps no log."""

    def new_url(self, options: str = "") -> str:
        return super().new_url(f"&persistence=any{options}")


async def test_a_server_that_forgets_what_it_acknowledged_is_noticed() -> None:
    """It keeps no log, so what it was told is gone when it is killed."""
    async with open_setup("redis", "restarts", Forgetful({"appendonly": "no"})) as made:
        case = SortedEvidence(await scenario.run(PLAN, made))
    assert any(checks.every_acknowledged_write_is_there(case))
    assert any(checks.every_history_is_linearizable(case))
