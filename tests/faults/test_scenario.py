"""During every kind of fault, each engine loses nothing, repeats nothing and reports the true outcomes.

The long run is `python -m tests.faults`; its numbers are in docs/trust/faults.md.
"""

from __future__ import annotations

import pytest

from perdure.storage.kit.servers import Valkey

from .. import engines
from ..storage.engines import engine_of
from . import checks, scenario
from .checks import SortedEvidence, find_violations
from .disturbances import DISTURBANCES, open_setup
from .report import numbers
from .scenario import Plan

pytestmark = pytest.mark.anyio

PLAN = Plan(
    seed=engines.number_of("faults") % 10_000,
    seconds=4,
    answers=40,
    guard_refusals=1,
    hangs=60,
    recovers=60,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose one kind of fault for each engine, by the seed. `make soak` runs the others."""
    if "fault" not in metafunc.fixturenames:
        return
    cases = [(engine, fault) for engine, faults in DISTURBANCES.items() for fault in faults]
    by_engine = [[each for each in cases if engine_of(each[0]) == name] for name in engines.SERVERS]
    if metafunc.config.getoption("--engines") != "all":
        by_engine = [[engines.choice(each[0][0], each)] for each in by_engine]
    metafunc.parametrize(("engine", "fault"), [case for chosen in by_engine for case in chosen])


async def test_nothing_is_lost_or_repeated_during_faults(engine: str, fault: str) -> None:
    async with open_setup(engine, fault) as made:
        case = SortedEvidence(await scenario.run(PLAN, made))
    assert find_violations(case) == {}, (
        f"python -m tests.faults --engine {engine} --fault {fault} --seed {PLAN.seed}"
    )
    met = numbers(case)
    assert case.evidence.met.total() > 0, met
    assert min(met["acknowledged"], met["refused by a guard"], met["records read"]) > 0, met


class Forgetful(Valkey):
    """A server that is opened although it keeps no log."""

    def new_url(self, options: str = "") -> str:
        return super().new_url(f"&persistence=any{options}")


async def test_a_server_that_forgets_what_it_acknowledged_is_noticed() -> None:
    """It keeps no log, so its data is lost when it is killed."""
    async with open_setup("redis", "restarts", Forgetful({"appendonly": "no"})) as made:
        case = SortedEvidence(await scenario.run(PLAN, made))
    assert any(checks.every_acknowledged_write_is_there(case))
    assert any(checks.every_history_is_linearizable(case))
