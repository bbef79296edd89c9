"""In every kind of bad weather each engine loses nothing, repeats nothing and says only what is so.

The long run is `python -m tests.faults`; its numbers are in docs/faults.md.
"""

from __future__ import annotations

import pytest

from perdure.storage.kit.servers import Valkey

from .. import servers
from ..storage.subjects import engine_of
from . import checking, storm
from .checking import Case, breaches
from .report import numbers
from .storm import Plan
from .weather import WEATHERS, stage

pytestmark = pytest.mark.anyio

PLAN = Plan(seed=7, seconds=4, answers=40, hangs=60, recovers=60)


@pytest.mark.parametrize(
    ("engine", "weather"),
    [
        (engine, weather)
        for engine, weathers in WEATHERS.items()
        for weather in weathers
        if engine_of(engine) not in servers.LEFT_OUT
    ],
)
async def test_a_storm_loses_nothing_and_repeats_nothing(engine: str, weather: str) -> None:
    async with stage(engine, weather) as made:
        case = Case(await storm.run(PLAN, made))
    assert breaches(case) == {}, (
        f"python -m tests.faults --engine {engine} --weather {weather} --seed {PLAN.seed}"
    )
    met = numbers(case)
    assert case.evidence.met.total() > 0, met
    assert min(met["acknowledged"], met["refused by a guard"], met["records read"]) > 0, met


async def test_a_server_that_forgets_what_it_acknowledged_is_noticed() -> None:
    """It keeps no log, so what it was told is gone when it is killed."""
    async with stage("redis", "restarts", Valkey({"appendonly": "no"})) as made:
        case = Case(await storm.run(PLAN, made))
    assert any(checking.every_acknowledged_write_is_there(case))
    assert any(checking.every_history_is_linearizable(case))
