"""Replicas that only serve and workers elsewhere lose nothing when they are killed, and run what they have.

The long run is `python -m tests.cli.elsewhere`; its numbers are in docs/trust/crash.md.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from msgspec.structs import replace

from perdure.tasks import Owner, Status, Success, TaskId, TaskRecord, canonical_json

from .. import engines
from ..markers import row
from .elsewhere import scenario
from .elsewhere.checks import (
    CHECKS,
    SLACK,
    Call,
    Claim,
    Evidence,
    WaitingCall,
    find_missing,
    find_violations,
    numbers,
)
from .elsewhere.journal import Opened, Saved, Started
from .elsewhere.scenario import Plan
from .elsewhere.tool_server import LOSS_NOTICED_WITHIN

pytestmark = pytest.mark.anyio


def plan_in(folder: Path) -> Plan:
    return Plan(
        url=f"sqlite:///{folder / 'tasks.db'}?busy_timeout=60",
        folder=folder / "journals",
        seed=engines.number_of("elsewhere") % 10_000,
        seconds=8,
        kills=6,
    )


async def run(plan: Plan) -> Evidence:
    """Run the scenario, and collect the sockets of clients that were cancelled while they connected.

    Nothing closes these, so each test that calls this is marked with `UNCLOSED`.
    """
    found = await scenario.run(plan)
    gc.collect()
    return found


UNCLOSED = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@UNCLOSED
@row(113, 124)
async def test_nothing_is_lost_and_nothing_is_run_by_a_worker_that_lacks_it(tmp_path: Path) -> None:
    evidence = await run(plan_in(tmp_path))
    assert find_violations(evidence) == {}
    assert find_missing(evidence) == [], numbers(evidence)


# The checks can fail

LOST_AT = 10
NOTICED_WITHIN = round((LOSS_NOTICED_WITHIN + SLACK) * 1e9)


def evidence() -> Evidence:
    """No violation: a task of two attempts, by two processes, and one whose replica was lost."""
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
    waited_for = replace(
        task,
        task_id=TaskId("c3"),
        status=Status.CANCELLED,
        outcome=None,
        idempotency_key=None,
        params_json=canonical_json.encode({"name": "heavy", "arguments": {"number": 8}}),
    )
    return Evidence(
        calls=[Call(key="key 7", tool="heavy", number=7, task="a1", result="heavy 7")],
        waiting_calls=[WaitingCall(tool="heavy", number=8, error="disconnected")],
        tasks={"a1": task, "c3": waited_for},
        events=[
            Opened(at=1, process="full-1"),
            Started(at=1, process="full-1", task="a1", attempt=1, page=1, tool="heavy"),
            Saved(at=2, process="full-1", task="a1", attempt=1, page=1),
            Started(at=3, process="full-2", task="a1", attempt=2, page=2, tool="heavy"),
            Saved(at=4, process="full-2", task="a1", attempt=2, page=2),
            Started(at=5, process="full-2", task="c3", attempt=1, page=1, tool="heavy"),
            Saved(at=LOST_AT + NOTICED_WITHIN - 1, process="full-2", task="c3", attempt=1, page=1),
        ],
        attended={"c3": "replica-4"},
        struck={"replica-4": LOST_AT},
        ended={"replica-4": LOST_AT},
        leases=[],
        claims=[Claim(process="full-1", task="a1")],
        complaints=[],
        kills=1,
        stops=0,
    )


def tampered() -> dict[str, list[Evidence]]:
    """What each check must notice."""
    whole = evidence()
    (call,), (waiting,), task = whole.calls, whole.waiting_calls, whole.tasks["a1"]
    opened, first, saved, second, last, *_, late = whole.events
    assert isinstance(second, Started)
    assert isinstance(late, Saved)
    returned = replace(waiting, result="heavy 8", error=None)
    orphan = whole.tasks["c3"]
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
            replace(whole, events=[opened, first, saved, by_a_replica, last]),
            replace(whole, events=[opened, first, saved, by_another, last]),
            replace(whole, claims=[Claim(process="partial-3", task="a1")]),
        ],
        "no_acknowledged_checkpoint_is_lost": [
            replace(whole, events=[opened, first, saved, from_the_start, last])
        ],
        "a_call_that_waits_gets_the_right_result_or_an_error": [
            replace(whole, waiting_calls=[returned]),
            replace(whole, waiting_calls=[replace(waiting, error=None)]),
            replace(whole, tasks={"c3": orphan, "d4": replace(orphan, task_id="d4")}),
            replace(whole, tasks={"c3": replace(orphan, status=Status.FAILED)}),
            replace(
                whole,
                tasks={"c3": replace(orphan, status=Status.COMPLETED)},
                waiting_calls=[replace(returned, result="heavy 9")],
            ),
        ],
        "a_call_that_waits_fails_only_with_its_process": [replace(whole, struck={})],
        "no_task_runs_on_after_its_process_is_lost": [
            replace(whole, events=[opened, replace(late, at=late.at + 2)]),
            replace(whole, events=[opened, replace(first, task="c3", at=late.at + 2)]),
        ],
        "nothing_is_left_behind": [replace(whole, leases=["a lease of replica-4"])],
        "no_call_failed": [replace(whole, complaints=["full-1 ended with 1"])],
    }


def test_evidence_without_a_breach_passes() -> None:
    assert find_violations(evidence()) == {}


def test_a_worker_that_was_struck_need_not_have_noticed_a_lost_replica() -> None:
    whole = evidence()
    *rest, late = whole.events
    assert isinstance(late, Saved)
    after = replace(whole, events=[*rest, replace(late, at=late.at + 2)])
    assert find_violations(replace(after, struck={**after.struck, "full-1": late.at})) == {}
    assert find_violations(replace(after, struck={**after.struck, "full-1": late.at + 3})) != {}


def test_a_call_that_failed_before_it_had_a_task_was_not_cut_off_with_it() -> None:
    whole = evidence()
    assert "of them cut off with their task" not in find_missing(whole)
    failed = replace(whole, tasks={"a1": whole.tasks["a1"]})
    assert "of them cut off with their task" in find_missing(failed)


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_each_check_notices_its_breach(check: str) -> None:
    for each in tampered()[check]:
        assert check in find_violations(each)


@UNCLOSED
async def test_a_worker_that_runs_what_it_should_lack_is_noticed(tmp_path: Path) -> None:
    """The worker that should lack a tool has it here."""
    plan = replace(plan_in(tmp_path), seconds=4, kills=2, partial="full")
    assert "nothing_is_run_or_claimed_by_a_process_that_lacks_it" in find_violations(await run(plan))
