"""For each check, evidence that it must not let pass: something is changed in a run that was in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from perdure.runtime.lease import LEASES
from perdure.storage import Record
from perdure.tasks import Status, TaskRecord
from perdure.tasks.task_record import decode_task, encode_task

from . import checks
from .checks import Check
from .journal import (
    Answered,
    Began,
    Cancelled,
    Committing,
    Complained,
    Created,
    Ended,
    Event,
    Got,
    TaskNote,
    Wrote,
)
from .scenario import Evidence

E = TypeVar("E", bound=Event)
Tamper = Callable[[Evidence], Evidence]


# With the records


def a_task_is_gone(found: Evidence) -> Evidence:
    gone = task_of(found, "steps").task_id
    return replace(found, tasks={key: record for key, record in found.tasks.items() if key != gone})


def a_task_hangs(found: Evidence) -> Evidence:
    return with_task(found, replace(task_of(found, "steps"), status=Status.WORKING, outcome=None))


def a_result_changes_later(found: Evidence) -> Evidence:
    return with_task(found, replace(task_of(found, "steps"), status_message="better"))


def a_lease_outlives_its_task(found: Evidence) -> Evidence:
    task = found.tasks[task_of(found, "steps").task_id]
    lease = Record(space=LEASES, partition=task.partition, key=task.key, order=task.order, body="{}")
    return replace(found, leases=[lease])


def a_question_is_asked_again(found: Evidence) -> Evidence:
    task = task_of(found, "asking")
    [(_, first), *_] = task.inputs.items()
    return with_task(found, replace(task, inputs={**task.inputs, "again": first}))


# With the journals


def nobody_returned_the_result(found: Evidence) -> Evidence:
    return without(found, Ended)


def a_task_of_one_attempt_is_begun_twice(found: Evidence) -> Evidence:
    return added(found, first(found, Began, "once"))


def a_cancelled_task_is_begun_again(found: Evidence) -> Evidence:
    flaky = task_of(found, "flaky")
    return added(found, Cancelled(task=flaky.task_id, is_ended=False, attempts=1))


def a_stale_attempt_is_told_that_it_wrote(found: Evidence) -> Evidence:
    wrote = first(found, Wrote, "flaky")
    return added(found, replace(wrote, called=end_of(found), at=end_of(found) + 1))


def an_acknowledged_write_is_lost(found: Evidence) -> Evidence:
    return added(found, replace(first(found, Wrote, "steps"), number=99))


def a_checkpoint_is_not_seen(found: Evidence) -> Evidence:
    began = [each for each in all_of(found, Began) if each.function == "flaky"]
    return added(found, replace(began[-1], trail=[]))


def another_ends_what_lives(found: Evidence) -> Evidence:
    """As if the commits of the process were another's, who does not hold the leases."""
    return replace(found, events=[replace(event, who="another") for event in found.events])


def a_worker_writes_without_its_lease(found: Evidence) -> Evidence:
    return replace(found, events=[_without_leases(event) for event in found.events])


def an_answer_is_replaced(found: Evidence) -> Evidence:
    given = first(found, Answered, "asking")
    return added(found, replace(given, answers=dict.fromkeys(given.answers, "another")))


def a_key_makes_two_tasks(found: Evidence) -> Evidence:
    keyed = first(found, Created, "asking")
    return added(found, replace(keyed, task=task_of(found, "steps").task_id))


def an_old_version_is_read(found: Evidence) -> Evidence:
    """After a newer one was."""
    seen = [each for each in all_of(found, Got) if each.look is not None and each.look.tag == "working"]
    return added(found, replace(seen[0], called=end_of(found), at=end_of(found) + 1))


def somebody_complains(found: Evidence) -> Evidence:
    return added(found, Complained(text="no"))


TAMPERED: dict[Check, Tamper] = {
    checks.every_acknowledged_task_is_there: a_task_is_gone,
    checks.every_task_has_ended: a_task_hangs,
    checks.what_has_ended_never_changes: a_result_changes_later,
    checks.no_lease_is_left: a_lease_outlives_its_task,
    checks.every_end_is_explained: nobody_returned_the_result,
    checks.no_task_is_begun_too_often: a_task_of_one_attempt_is_begun_twice,
    checks.what_was_cancelled_is_not_begun_again: a_cancelled_task_is_begun_again,
    checks.a_fenced_attempt_is_told_so: a_stale_attempt_is_told_that_it_wrote,
    checks.no_write_is_lost_or_overwritten: an_acknowledged_write_is_lost,
    checks.each_attempt_sees_what_earlier_ones_wrote: a_checkpoint_is_not_seen,
    checks.no_live_lease_is_taken: another_ends_what_lives,
    checks.a_worker_writes_only_with_its_lease: a_worker_writes_without_its_lease,
    checks.nothing_is_asked_twice: a_question_is_asked_again,
    checks.answers_stay_as_they_were_given: an_answer_is_replaced,
    checks.one_key_makes_one_task: a_key_makes_two_tasks,
    checks.every_record_is_linearizable: an_old_version_is_read,
    checks.nobody_complains: somebody_complains,
}


# How


def task_of(found: Evidence, function: str) -> TaskRecord:
    """The task of this function that ran."""
    tasks = [decode_task(key, record.body) for key, record in found.tasks.items()]
    return next(task for task in tasks if task.function == function and task.attempts)


def with_task(found: Evidence, task: TaskRecord) -> Evidence:
    record = replace(found.tasks[task.task_id], body=encode_task(task).decode())
    return replace(found, tasks={**found.tasks, task.task_id: record})


def all_of(found: Evidence, kind: type[E]) -> list[E]:
    return [event for event in found.events if isinstance(event, kind)]


def first(found: Evidence, kind: type[E], function: str) -> E:
    task = task_of(found, function).task_id
    return next(each for each in all_of(found, kind) if isinstance(each, TaskNote) and each.task == task)


def end_of(found: Evidence) -> int:
    return found.events[-1].at + 1


def added(found: Evidence, *events: Event) -> Evidence:
    return replace(found, events=[*found.events, *events])


def without(found: Evidence, kind: type[Event]) -> Evidence:
    return replace(found, events=[event for event in found.events if not isinstance(event, kind)])


def _without_leases(event: Event) -> Event:
    if not isinstance(event, Committing):
        return event
    return replace(event, edits=[edit for edit in event.edits if edit.place.startswith("tasks/")])
