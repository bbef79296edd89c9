"""What must be true after the storm. Each check yields every breach that it finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from perdure.tasks import Status, Success, TaskRecord

from .journal import Event, Saved, Started
from .tool_server import result_of

LACKING = {"replica": ("light", "heavy"), "partial": ("heavy",), "full": ()}
"""The tools that the processes of each role must not run."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a client made, perhaps several times, until it was acknowledged."""

    key: str
    tool: str
    number: int
    task: str
    """The id of the task, as the replica that acknowledged the call said."""
    result: str | None = None
    """What a replica returned in the end."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim on a task that was seen in the storage."""

    process: str
    task: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is judged."""

    calls: list[Call]
    tasks: dict[str, TaskRecord]
    """Every task in the storage, at the end."""
    events: list[Event]
    claims: list[Claim]
    complaints: list[str]
    kills: int
    stops: int

    @property
    def started(self) -> list[Started]:
        return [event for event in self.events if isinstance(event, Started)]


Check: TypeAlias = Callable[[Evidence], Iterator[str]]


def role_of(process: str) -> str:
    return process.partition("-")[0]


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
        pages = saved[event.task]
        if isinstance(event, Saved):
            pages[event.attempt] = event.page
            continue
        earlier = max((page for attempt, page in pages.items() if attempt < event.attempt), default=0)
        if event.page <= earlier:
            yield f"{event.task}: attempt {event.attempt} started with page {event.page}, after {earlier}"


def nobody_complains(evidence: Evidence) -> Iterator[str]:
    yield from evidence.complaints


CHECKS: tuple[Check, ...] = (
    no_acknowledged_call_is_lost,
    every_task_has_ended,
    one_key_makes_one_task,
    nothing_is_run_or_claimed_by_a_process_that_lacks_it,
    no_acknowledged_checkpoint_is_lost,
    nobody_complains,
)


def breaches(evidence: Evidence) -> dict[str, list[str]]:
    """Return what was found wrong, by the name of the check."""
    found = {check.__name__: list(check(evidence)) for check in CHECKS}
    return {name: told for name, told in found.items() if told}


def numbers(evidence: Evidence) -> dict[str, int]:
    """Return what happened, and how often."""
    roles = [role_of(run.process) for run in evidence.started]
    return {
        "processes killed": evidence.kills,
        "processes asked to stop": evidence.stops,
        "calls acknowledged": len(evidence.calls),
        "tasks": len(evidence.tasks),
        "of several attempts": sum(task.attempts > 1 for task in evidence.tasks.values()),
        "runs by workers with all tools": roles.count("full"),
        "runs by the worker that lacks one": roles.count("partial"),
        "runs of the tool that it lacks": sum(run.tool == "heavy" for run in evidence.started),
        "runs by replicas": roles.count("replica"),
        "claims seen": len(evidence.claims),
        "checkpoints acknowledged": sum(isinstance(event, Saved) for event in evidence.events),
    }
