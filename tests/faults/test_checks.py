"""The checks can fail: a storm on a storage that is wrong is told from one on a storage that is right."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from perdure.storage import Storage, open_storage
from perdure.storage.memory import MemoryEngine

from . import broken, checking, storm
from .broken import Broken
from .checking import CHECKS, Case, Check, breaches
from .report import numbers
from .storm import Plan, Stage

pytestmark = pytest.mark.anyio

NOTICED: list[tuple[type[Broken], Check]] = [
    (broken.SwallowsWhatItAcknowledges, checking.every_history_is_linearizable),
    (broken.SwallowsWhatItAcknowledges, checking.every_acknowledged_write_is_there),
    (broken.SwallowsWhatItAcknowledges, checking.commits_are_all_or_nothing),
    (broken.RepeatsAWrite, checking.every_history_is_linearizable),
    (broken.RepeatsAWrite, checking.what_was_refused_was_not_written),
    (broken.WritesAgainOnTop, checking.every_history_is_linearizable),
    (broken.WritesAgainOnTop, checking.what_is_read_was_once_written),
    (broken.IsUnavailableThoughItWrote, checking.every_history_is_linearizable),
    (broken.IsUnavailableThoughItWrote, checking.what_was_refused_was_not_written),
    (broken.LeavesHalfACommit, checking.commits_are_all_or_nothing),
    (broken.ForgetsTheGuard, checking.the_guard_is_never_passed),
    (broken.CountsOneTooMany, checking.counts_are_what_is_listed),
    (broken.ListsTooLittle, checking.listings_are_what_is_read),
    (broken.ForgetsATimer, checking.the_lane_holds_what_is_to_be_woken),
    (broken.FindsSomething, checking.the_storage_finds_nothing_wrong),
    (broken.RaisesWhatTheDriverRaises, checking.nobody_complains),
    (broken.HangsNowAndThen, checking.nobody_complains),
    (broken.NeverRecovers, checking.nobody_complains),
    (broken.GoesDeaf, checking.nobody_complains),
]
_stormed: dict[type[Broken], Case] = {}


async def fair(_: Random) -> None:
    await asyncio.sleep(0.1)


def plan_for(kind: type[Broken]) -> Plan:
    """Short, but with some work in it. A storage that hangs or never recovers is not waited for."""
    plan = Plan(seed=1, seconds=0.7, answers=300)
    if kind in (broken.HangsNowAndThen, broken.NeverRecovers, broken.GoesDeaf):
        return replace(plan, answers=10, hangs=0.3, recovers=0.5)
    return plan


async def storm_on(kind: type[Broken]) -> Case:
    """Some work on a storage in memory; once for all checks."""
    if kind not in _stormed:
        engine = MemoryEngine()

        async def reopen() -> Storage:
            return Storage(kind(Storage(engine)))

        stage = Stage(storages=[await reopen(), await reopen()], reopen=reopen, blow=fair, met=Counter())
        _stormed[kind] = Case(await storm.run(plan_for(kind), stage))
    return _stormed[kind]


@pytest.mark.parametrize(("kind", "check"), NOTICED, ids=lambda each: each.__name__)
async def test_a_storage_that_is_wrong_is_noticed(kind: type[Broken], check: Check) -> None:
    assert any(check(await storm_on(kind)))


def test_each_check_is_known_to_fail() -> None:
    assert {check for _, check in NOTICED} == {*CHECKS}


async def test_nothing_is_said_of_a_storage_that_is_right() -> None:
    case = await storm_on(Broken)
    assert breaches(case) == {}
    assert min(numbers(case)[what] for what in ("acknowledged", "refused by a guard", "records read")) > 0


async def test_a_storm_on_sqlite_is_in_order(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'records.db'}"
    async with await open_storage(url) as one, await open_storage(url) as other:
        stage = Stage(storages=[one, other], reopen=lambda: open_storage(url), blow=fair, met=Counter())
        plan = Plan(seed=1, seconds=1, hangs=60, recovers=60)
        assert breaches(Case(await storm.run(plan, stage))) == {}
