"""Replicas that only serve and workers elsewhere lose nothing when they are killed, and run what they have.

The long run is `python -m tests.cli.elsewhere`; its numbers are in docs/crash.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.tasks import Owner, Status, Success, TaskId, TaskRecord

from .. import engines
from ..markers import row
from .elsewhere import scenario
from .elsewhere.checks import CHECKS, Call, Claim, Evidence, breaches, numbers
from .elsewhere.journal import Saved, Started
from .elsewhere.scenario import Plan

pytestmark = pytest.mark.anyio


def plan_in(folder: Path) -> Plan:
    return Plan(
        url=f"sqlite:///{folder / 'tasks.db'}?busy_timeout=60",
        folder=folder / "journals",
        seed=engines.number_of("elsewhere") % 10_000,
        seconds=8,
        kills=6,
    )


@row(113, 124)
async def test_nothing_is_lost_and_nothing_is_run_by_a_worker_that_lacks_it(tmp_path: Path) -> None:
    evidence = await scenario.run(plan_in(tmp_path))
    assert breaches(evidence) == {}
    met = numbers(evidence)
    assert met["of several attempts"] >= 2, met
    assert met["runs by workers with all tools"], met
    assert met["runs by the worker that lacks one"], met
    assert met["runs of the tool that it lacks"], met
    assert met["claims seen"], met


# The checks can fail


def evidence() -> Evidence:
    """A storm without a breach: one task of two attempts, by two processes."""
    task = TaskRecord(
        task_id=TaskId("a1"),
        owner=Owner.local(),
        application="elsewhere",
        status=Status.COMPLETED,
        created_at=1,
        last_updated_at=2,
        ttl_ms=None,
        poll_interval_ms=1000,
        original_method="tools/call",
        outcome=Success.of({"content": []}),
        function="heavy",
        idempotency_key="key 7",
        attempts=2,
    )
    return Evidence(
        calls=[Call(key="key 7", tool="heavy", number=7, task="a1", result="heavy 7")],
        tasks={"a1": task},
        events=[
            Started(at=1, process="full-1", task="a1", attempt=1, page=1, tool="heavy"),
            Saved(at=2, process="full-1", task="a1", attempt=1, page=1),
            Started(at=3, process="full-2", task="a1", attempt=2, page=2, tool="heavy"),
            Saved(at=4, process="full-2", task="a1", attempt=2, page=2),
        ],
        claims=[Claim(process="full-1", task="a1")],
        complaints=[],
        kills=1,
        stops=0,
    )


def tampered() -> dict[str, list[Evidence]]:
    """What each check must notice."""
    whole = evidence()
    (call,), task, (first, saved, second, last) = whole.calls, whole.tasks["a1"], whole.events
    assert isinstance(second, Started)
    by_a_replica = replace(second, process="replica-4")
    by_another = replace(second, process="partial-3")
    from_the_start = replace(second, page=1)
    return {
        "no_acknowledged_call_is_lost": [
            replace(whole, tasks={}),
            replace(whole, tasks={"a1": replace(task, status=Status.FAILED)}),
            replace(whole, calls=[replace(call, result=None)]),
        ],
        "every_task_has_ended": [
            replace(whole, tasks={"a1": task, "b2": replace(task, task_id="b2", status=Status.WORKING)})
        ],
        "one_key_makes_one_task": [
            replace(whole, tasks={"a1": task, "b2": replace(task, task_id="b2")}),
            replace(whole, calls=[call, replace(call, task="b2")]),
        ],
        "nothing_is_run_or_claimed_by_a_process_that_lacks_it": [
            replace(whole, events=[first, saved, by_a_replica, last]),
            replace(whole, events=[first, saved, by_another, last]),
            replace(whole, claims=[Claim(process="partial-3", task="a1")]),
        ],
        "no_acknowledged_checkpoint_is_lost": [replace(whole, events=[first, saved, from_the_start, last])],
        "nobody_complains": [replace(whole, complaints=["full-1 ended with 1"])],
    }


def test_evidence_without_a_breach_passes() -> None:
    assert breaches(evidence()) == {}


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_each_check_notices_its_breach(check: str) -> None:
    for each in tampered()[check]:
        assert check in breaches(each)


async def test_a_worker_that_runs_what_it_should_lack_is_noticed(tmp_path: Path) -> None:
    """The worker that should lack a tool has it here."""
    plan = replace(plan_in(tmp_path), seconds=4, kills=2, partial="full")
    assert "nothing_is_run_or_claimed_by_a_process_that_lacks_it" in breaches(await scenario.run(plan))
