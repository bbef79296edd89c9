"""Processes that are killed and frozen at any moment lose nothing and repeat nothing; the checks can fail.

The long run is `make crash`; its numbers are in docs/trust/crash.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from perdure.runtime import Runtime
from perdure.runtime.recovery import LOST
from perdure.storage import open_storage
from perdure.tasks import Failure, Snapshot, Status, TaskStore

from .. import engines
from ..conditions import wait_until
from .crash import checks, journal, scenario
from .crash.broken_runtimes import BROKEN
from .crash.checks import CHECKS, Check, SortedEvidence, breaches
from .crash.clients import OWNERS
from .crash.functions import app_on
from .crash.journal import Complained, Dropped, Journal, TaskNote, Wrote
from .crash.report import numbers
from .crash.scenario import Evidence, Plan, ProcessPool, collect_evidence
from .crash.tampered import TAMPERED
from .crash.undisturbed import calm
from .replicas import value_of

pytestmark = pytest.mark.anyio

PATIENCE = 60.0
"""Seconds, for what takes one or two."""
ME = OWNERS[0]
N = TypeVar("N", bound=TaskNote)


def plan_in(folder: Path, **changes: object) -> Plan:
    plan = Plan(
        url=f"sqlite:///{folder / 'tasks.db'}",
        folder=folder / "journals",
        seed=engines.number_of("crashes") % 10_000,
        seconds=8,
        kills=9,
    )
    plan.folder.mkdir()
    return replace(plan, **changes)


# The storm

FEW: dict[str, object] = {"cast": ("worker", "worker", "server", "client"), "kills": 4}
"""For an engine on which a process takes so long to begin that more would die before they did anything."""


async def test_a_storm_of_kills_loses_nothing_and_repeats_nothing(
    tmp_path: Path, on_shared_engine: str
) -> None:
    changes = FEW if on_shared_engine == "dynamodb" else {}
    plan = plan_in(tmp_path, url=await scenario.new_storage(on_shared_engine, tmp_path), **changes)
    case = SortedEvidence(await scenario.run(plan))
    assert breaches(case) == {}
    met = numbers(case)
    needed = ("tasks taken from lost workers", "of several attempts", "answers heard", "cancelled")
    assert all(met.get(what) for what in needed), str(met)


# A worker that sleeps too long


class Slept(msgspec.Struct, frozen=True):
    """What became of a task, when its worker had been frozen, and when it had gone on."""

    first: str
    second: str
    before: Snapshot
    after: Snapshot


@pytest.fixture(scope="module")
def slept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Slept]:
    """Heartbeats are slower here, so that no worker loses its lease because the machine is busy."""
    changes = {"cast": ("worker",), "doomed": 0.0, "heartbeat": 0.8}
    return asyncio.run(sleep_too_long(plan_in(tmp_path_factory.mktemp("slept"), **changes)))


async def sleep_too_long(plan: Plan) -> dict[str, Slept]:
    """Freeze a process in the middle of two tasks, let another end them, and let the first go on."""
    async with await open_storage(plan.url) as storage, ProcessPool(plan).on_stage() as troupe:
        runtime = Runtime(
            TaskStore(storage, application="tests"),
            app_on(plan.url, Journal(plan.folder, "client")).functions,
        )
        made = [await runtime.submit(name, {"n": 1}, owner=ME) for name in ("patient", "patient_once")]
        await wait_until(lambda: len(noted(plan, Wrote)) >= 4, PATIENCE)
        first = await troupe.freeze_one(storage)
        second = await troupe.start("worker")
        before = [await runtime.wait(ME, each.task.task_id, PATIENCE) for each in made]
        troupe.thaw(first)
        await wait_until(lambda: [event.who for event in noted(plan, Dropped)] == [first] * 2, PATIENCE)
        after = [await runtime.store.get(ME, each.task.task_id) for each in made]
    return {b.task.function or "": Slept(first, second, b, a) for b, a in zip(before, after, strict=True)}


def noted(plan: Plan, kind: type[N]) -> list[N]:
    return [event for event in journal.read(plan.folder) if isinstance(event, kind)]


def test_who_sleeps_beyond_the_lease_is_refused_and_the_other_workers_result_stands(
    slept: dict[str, Slept],
) -> None:
    seen = slept["patient"]
    result = value_of(seen.before)
    assert isinstance(result, dict)
    assert (result["by"], result["attempt"], seen.before.task.attempts) == (seen.second, 2, 2)
    assert seen.after == seen.before


def test_a_task_that_must_not_run_twice_fails_when_its_worker_sleeps_and_stays_failed_when_it_wakes(
    slept: dict[str, Slept],
) -> None:
    seen = slept["patient_once"]
    assert seen.before.task.status is Status.FAILED
    message = f"{LOST.reason}, and the function must not run twice (restart=False)"
    assert seen.before.task.outcome == Failure.of(-32603, message, {"reason": "interrupted"})
    assert seen.after == seen.before


# The checks can fail: a runtime that is wrong


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("finish_without_lease", checks.a_worker_writes_only_with_its_lease),
        ("write_without_lease", checks.a_worker_writes_only_with_its_lease),
        ("recover_what_lives", checks.no_live_lease_is_taken),
    ],
)
async def test_a_runtime_that_is_wrong_is_noticed(tmp_path: Path, name: str, check: Check) -> None:
    assert name in BROKEN
    plan = plan_in(tmp_path, cast=("server", "worker"), doomed=0.0, broken=name)
    async with await open_storage(plan.url) as storage, ProcessPool(plan).on_stage():

        async def is_noticed() -> bool:
            await asyncio.sleep(0.2)
            return any(check(SortedEvidence(await collect_evidence(storage, plan.folder, {}))))

        await wait_until(is_noticed, PATIENCE)


# The checks can fail: evidence that was tampered with


@pytest.fixture(scope="module")
def calm_run(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    plan = plan_in(tmp_path_factory.mktemp("calm"))
    return asyncio.run(calm(plan.url, plan.folder))


def test_a_run_without_a_storm_is_in_order(calm_run: Evidence) -> None:
    assert breaches(SortedEvidence(calm_run)) == {}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_no_check_lets_pass_what_it_is_there_for(calm_run: Evidence, check: Check) -> None:
    assert any(check(SortedEvidence(TAMPERED[check](calm_run))))


def test_a_line_that_a_kill_cut_off_is_passed_over(tmp_path: Path) -> None:
    Journal(tmp_path, "a").add(Complained(text="whole"))
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"type":"Complained","text":"cu')
    assert [event.text for event in journal.read(tmp_path) if isinstance(event, Complained)] == ["whole"]
