"""What must be true after the scenario. Each check yields every violation that it finds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from perdure.tasks import Status, Success, TaskRecord

from .journal import Event, Opened, Saved, Started
from .tool_server import LOSS_NOTICED_WITHIN, result_of

LACKING = {"replica": ("light", "heavy"), "partial": ("heavy",), "full": ()}
"""The tools that the processes of each role must not run."""
SLACK = 10.0
"""Seconds by which a process may be late because the machine is busy."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a client made, perhaps several times, until it was acknowledged."""

    key: str
    tool: str
    number: int
    task: str
    """The id of the task, as the replica that acknowledged the call said."""
    result: str | None = None
    """What a replica returned in the end."""


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a client without tasks and without a key, which waited for the result."""

    tool: str
    number: int
    result: str | None = None
    error: str | None = None
    is_given_up: bool = False
    """Whether the client left before there was an answer."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim on a task that was seen in the storage."""

    process: str
    task: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks examine."""

    calls: list[Call]
    waiting_calls: list[WaitingCall]
    tasks: dict[str, TaskRecord]
    """Every task in the storage, at the end."""
    events: list[Event]
    claims: list[Claim]
    attended: dict[str, str]
    """The process in which the client of a task waited, by the id of the task."""
    struck: dict[str, int]
    """When processes were killed or asked to stop, by the clock of the events."""
    ended: dict[str, int]
    """When processes ended."""
    leases: list[str]
    """What is left of claims and processes when all calls have ended, and when all processes have."""
    complaints: list[str]
    kills: int
    stops: int

    @property
    def started(self) -> list[Started]:
        return [event for event in self.events if isinstance(event, Started)]

    def tasks_of(self, call: WaitingCall) -> list[TaskRecord]:
        return [task for task in self.tasks.values() if number_of(task) == call.number]


Check: TypeAlias = Callable[[Evidence], Iterator[str]]


def role_of(process: str) -> str:
    return process.partition("-")[0]


def number_of(task: TaskRecord) -> object:
    """Return the argument by which the task of a call is recognized."""
    params = task.original_params
    arguments = params.get("arguments") if isinstance(params, dict) else None
    return arguments.get("number") if isinstance(arguments, dict) else None


def no_acknowledged_call_is_lost(evidence: Evidence) -> Iterator[str]:
    for call in evidence.calls:
        task = evidence.tasks.get(call.task)
        expected = result_of(call.tool, call.number)
        if task is None:
            yield f"there is no task {call.task} of {call.key}"
        elif task.status is not Status.COMPLETED or not isinstance(task.outcome, Success):
            yield f"{call.task} of {call.key} is {task.status}: {task.status_message}"
        elif call.result != expected:
            yield f"{call.task} of {call.key} returned {call.result!r}, not {expected!r}"


def every_task_has_ended(evidence: Evidence) -> Iterator[str]:
    for task in evidence.tasks.values():
        if not task.is_terminal or task.is_claimed:
            yield f"{task.task_id} of {task.function} is {task.status}, claimed: {task.is_claimed}"


def one_key_makes_one_task(evidence: Evidence) -> Iterator[str]:
    made: defaultdict[str | None, set[str]] = defaultdict(set)
    for call in evidence.calls:
        made[call.key].add(call.task)
    for task in evidence.tasks.values():
        if task.idempotency_key is not None:
            made[task.idempotency_key].add(task.task_id)
    for key, tasks in made.items():
        if len(tasks) > 1:
            yield f"{key} made {sorted(tasks)}"


def nothing_is_run_or_claimed_by_a_process_that_lacks_it(evidence: Evidence) -> Iterator[str]:
    for run in evidence.started:
        if run.tool in LACKING[role_of(run.process)]:
            yield f"{run.process} ran {run.tool} in {run.task}"
    for claim in evidence.claims:
        task = evidence.tasks.get(claim.task)
        if task is not None and task.function in LACKING[role_of(claim.process)]:
            yield f"{claim.process} claimed {claim.task} of {task.function}"


def no_acknowledged_checkpoint_is_lost(evidence: Evidence) -> Iterator[str]:
    saved: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for event in evidence.events:
        if isinstance(event, Opened):
            continue
        pages = saved[event.task]
        if isinstance(event, Saved):
            pages[event.attempt] = event.page
            continue
        earlier = max((page for attempt, page in pages.items() if attempt < event.attempt), default=0)
        if event.page <= earlier:
            yield f"{event.task}: attempt {event.attempt} started with page {event.page}, after {earlier}"


def a_call_that_waits_gets_the_right_result_or_an_error(evidence: Evidence) -> Iterator[str]:
    """If it gets an error, its task is cancelled, or it was too late for that."""
    for call in evidence.waiting_calls:
        tasks, expected = evidence.tasks_of(call), result_of(call.tool, call.number)
        found = [task.status for task in tasks]
        if len(tasks) > 1:
            yield f"the call {call.number} made {len(tasks)} tasks"
        elif call.result is not None:
            if call.result != expected or found != [Status.COMPLETED]:
                yield f"the call {call.number} returned {call.result!r}, and its task is {found}"
        elif call.error is None and not call.is_given_up:
            yield f"the call {call.number} got no answer"
        elif not set(found) <= {Status.CANCELLED, Status.COMPLETED}:
            yield f"the call {call.number} failed, and its task is {found}: {call.error}"


def a_call_that_waits_fails_only_with_its_process(evidence: Evidence) -> Iterator[str]:
    for call in evidence.waiting_calls:
        for task in evidence.tasks_of(call):
            process = evidence.attended.get(task.task_id)
            if call.error is not None and process not in evidence.struck:
                yield f"the call {call.number} failed, but {process} was not struck: {call.error}"


def no_task_runs_on_after_its_process_is_lost(evidence: Evidence) -> Iterator[str]:
    noticed = {process: _noticed_at(evidence, at) for process, at in evidence.ended.items()}
    for event in evidence.events:
        if isinstance(event, Opened):
            continue
        process = evidence.attended.get(event.task, "")
        if process in noticed and event.at > noticed[process]:
            late = (event.at - evidence.ended[process]) / 1e9
            yield f"{event.task} ran in {event.process}, {late:.1f} seconds after {process} had ended"


def _noticed_at(evidence: Evidence, lost_at: int) -> float:
    """Return when a worker that was not struck meanwhile must have noticed that a process is lost."""
    within = (LOSS_NOTICED_WITHIN + SLACK) * 1e9
    noticed = [
        max(event.at, lost_at) + within
        for event in evidence.events
        if isinstance(event, Opened)
        and role_of(event.process) != "replica"
        and max(event.at, lost_at) + within <= evidence.struck.get(event.process, math.inf)
    ]
    return min(noticed, default=math.inf)


def nothing_is_left_behind(evidence: Evidence) -> Iterator[str]:
    yield from evidence.leases


def no_call_failed(evidence: Evidence) -> Iterator[str]:
    yield from evidence.complaints


CHECKS: tuple[Check, ...] = (
    no_acknowledged_call_is_lost,
    every_task_has_ended,
    one_key_makes_one_task,
    nothing_is_run_or_claimed_by_a_process_that_lacks_it,
    no_acknowledged_checkpoint_is_lost,
    a_call_that_waits_gets_the_right_result_or_an_error,
    a_call_that_waits_fails_only_with_its_process,
    no_task_runs_on_after_its_process_is_lost,
    nothing_is_left_behind,
    no_call_failed,
)


def find_violations(evidence: Evidence) -> dict[str, list[str]]:
    """Return what was found wrong, by the name of the check."""
    found = {check.__name__: list(check(evidence)) for check in CHECKS}
    return {name: violations for name, violations in found.items() if violations}


CUT_OFF = "of them cut off with their task"
NEEDED = {
    "calls acknowledged": 1,
    "calls that waited": 1,
    CUT_OFF: 1,
    "of several attempts": 2,
    "runs by workers with all tools": 1,
    "runs by the worker that lacks one": 1,
    "runs of the tool that it lacks": 1,
    "claims seen": 1,
}
"""How often something must happen at least. Otherwise the checks prove nothing about it."""


def find_missing(evidence: Evidence) -> list[str]:
    """Return what has not happened often enough."""
    met = numbers(evidence)
    return [name for name, at_least in NEEDED.items() if met[name] < at_least]


def numbers(evidence: Evidence) -> dict[str, int]:
    """Return what happened, and how often."""
    roles = [role_of(run.process) for run in evidence.started]
    waiting = evidence.waiting_calls
    cut = [call for call in waiting if call.error is not None and evidence.tasks_of(call)]
    orphans = [task for call in cut for task in evidence.tasks_of(call)]
    return {
        "processes killed": evidence.kills,
        "processes asked to stop": evidence.stops,
        "calls acknowledged": len(evidence.calls),
        "calls that waited": len(waiting),
        "of them with a result": sum(call.result is not None for call in waiting),
        "of them given up": sum(call.is_given_up for call in waiting),
        CUT_OFF: len(cut),
        "tasks that were cancelled then": sum(task.status is Status.CANCELLED for task in orphans),
        "seconds that one of them ran on": round(_longest(evidence)),
        "tasks": len(evidence.tasks),
        "of several attempts": sum(task.attempts > 1 for task in evidence.tasks.values()),
        "runs by workers with all tools": roles.count("full"),
        "runs by the worker that lacks one": roles.count("partial"),
        "runs of the tool that it lacks": sum(run.tool == "heavy" for run in evidence.started),
        "runs by replicas": roles.count("replica"),
        "claims seen": len(evidence.claims),
        "checkpoints acknowledged": sum(isinstance(event, Saved) for event in evidence.events),
    }


def _longest(evidence: Evidence) -> float:
    """Return for how many seconds, at most, a task ran on after its process had ended."""
    late = [
        event.at - evidence.ended[evidence.attended[event.task]]
        for event in evidence.events
        if not isinstance(event, Opened) and evidence.attended.get(event.task) in evidence.ended
    ]
    return max(late, default=0) / 1e9
