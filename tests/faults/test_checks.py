"""The checks can fail: they distinguish a broken storage from a correct one."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from perdure.storage import Storage, open_storage
from perdure.storage.memory import MemoryEngine

from . import broken_storages, checks, scenario
from .broken_storages import Broken
from .checks import CHECKS, Check, SortedEvidence, find_violations
from .report import numbers
from .scenario import Plan, Setup

pytestmark = pytest.mark.anyio

NOTICED: list[tuple[type[Broken], Check]] = [
    (broken_storages.SwallowsWhatItAcknowledges, checks.every_history_is_linearizable),
    (broken_storages.SwallowsWhatItAcknowledges, checks.every_acknowledged_write_is_there),
    (broken_storages.SwallowsWhatItAcknowledges, checks.commits_are_all_or_nothing),
    (broken_storages.RepeatsAWrite, checks.every_history_is_linearizable),
    (broken_storages.RepeatsAWrite, checks.what_was_refused_was_not_written),
    (broken_storages.WritesAgainOnTop, checks.every_history_is_linearizable),
    (broken_storages.WritesAgainOnTop, checks.what_is_read_was_once_written),
    (broken_storages.IsUnavailableThoughItWrote, checks.every_history_is_linearizable),
    (broken_storages.IsUnavailableThoughItWrote, checks.what_was_refused_was_not_written),
    (broken_storages.LeavesHalfACommit, checks.commits_are_all_or_nothing),
    (broken_storages.ForgetsTheGuard, checks.the_guard_is_never_passed),
    (broken_storages.CountsOneTooMany, checks.counts_are_what_is_listed),
    (broken_storages.ListsTooLittle, checks.listings_are_what_is_read),
    (broken_storages.ForgetsATimer, checks.the_lane_holds_what_is_to_be_woken),
    (broken_storages.FindsSomething, checks.the_storage_finds_nothing_wrong),
    (broken_storages.RaisesWhatTheDriverRaises, checks.no_call_failed),
    (broken_storages.HangsNowAndThen, checks.no_call_failed),
    (broken_storages.NeverRecovers, checks.no_call_failed),
    (broken_storages.GoesDeaf, checks.no_call_failed),
]
_evidence: dict[type[Broken], SortedEvidence] = {}


async def fair(_: Random) -> None:
    await asyncio.sleep(0.1)


def plan_for(kind: type[Broken]) -> Plan:
    """Short, but with some work in it. A storage that hangs or never recovers is not waited for."""
    plan = Plan(seed=1, seconds=0.7, answers=300)
    if kind in (broken_storages.HangsNowAndThen, broken_storages.NeverRecovers, broken_storages.GoesDeaf):
        return replace(plan, answers=10, hangs=0.3, recovers=0.5)
    return plan


async def evidence_of(kind: type[Broken]) -> SortedEvidence:
    """Some work on a storage in memory; once for all checks."""
    if kind not in _evidence:
        engine = MemoryEngine()

        async def reopen() -> Storage:
            return Storage(kind(Storage(engine)))

        stage = Setup(
            storages=[await reopen(), await reopen()], reopen=reopen, disturbance=fair, met=Counter()
        )
        _evidence[kind] = SortedEvidence(await scenario.run(plan_for(kind), stage))
    return _evidence[kind]


@pytest.mark.parametrize(("kind", "check"), NOTICED, ids=lambda each: each.__name__)
async def test_a_storage_that_is_wrong_is_noticed(kind: type[Broken], check: Check) -> None:
    assert any(check(await evidence_of(kind)))


def test_each_check_is_known_to_fail() -> None:
    assert {check for _, check in NOTICED} == {*CHECKS}


async def test_nothing_is_said_of_a_storage_that_is_right() -> None:
    case = await evidence_of(Broken)
    assert find_violations(case) == {}
    assert min(numbers(case)[what] for what in ("acknowledged", "refused by a guard", "records read")) > 0


async def test_a_scenario_on_sqlite_has_no_violation(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    async with await open_storage(url) as one, await open_storage(url) as other:
        stage = Setup(
            storages=[one, other], reopen=lambda: open_storage(url), disturbance=fair, met=Counter()
        )
        plan = Plan(seed=1, seconds=1, hangs=60, recovers=60)
        assert find_violations(SortedEvidence(await scenario.run(plan, stage))) == {}
