"""What must be true after the storm, whatever happened in it. Each check tells every breach that it finds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import msgspec

from perdure.runtime.endings import MAX_INTERRUPTIONS
from perdure.runtime.recovery import LOST
from perdure.tasks import Failure, Snapshot, Status, Success, TaskRecord

from .clients import said_in
from .functions import KINDS
from .histories import Commit, commits, explained, histories
from .journal import (
    Answered,
    Began,
    Cancelled,
    Cancelling,
    Complained,
    Created,
    Edit,
    Ended,
    Entry,
    Got,
    Heard,
    Look,
    TaskNote,
    Wrote,
)
from .recording_engine import look_at, place_of
from .scenario import Evidence

N = TypeVar("N", bound=TaskNote)
SHUT_DOWN = "the worker was shut down before the task ended"


class SortedEvidence:
    """The evidence, sorted."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.snapshots = {key: Snapshot.from_record(record) for key, record in evidence.tasks.items()}
        self.tasks = {key: snapshot.task for key, snapshot in self.snapshots.items()}
        self.commits = commits(evidence.events)
        records = [*evidence.tasks.values(), *evidence.leases]
        at_the_end = {place_of(record.address): look_at(record) for record in records}
        self.histories = histories(evidence.events, self.commits, at_the_end)

    def all(self, kind: type[N]) -> Iterator[N]:
        """The events of a kind whose tasks are known; another check misses the others."""
        for event in self.evidence.events:
            if isinstance(event, kind) and event.task in self.tasks:
                yield event

    def by_task(self, kind: type[N]) -> Mapping[str, list[N]]:
        found: defaultdict[str, list[N]] = defaultdict(list)
        for event in self.all(kind):
            found[event.task].append(event)
        return found

    def written(self) -> Iterator[tuple[Commit, Edit]]:
        """Every change that was acknowledged."""
        for commit in self.commits:
            if commit.is_done:
                for edit in commit.asked.edits:
                    yield commit, edit

    def perhaps_written(self) -> Iterator[Edit]:
        """Every change that was not refused: nobody may have lived to be told."""
        for commit in self.commits:
            if commit.told is None or commit.is_done:
                yield from commit.asked.edits


Check: TypeAlias = Callable[[SortedEvidence], Iterator[str]]


# Every task has one end


def every_acknowledged_task_is_there(case: SortedEvidence) -> Iterator[str]:
    for event in case.evidence.events:
        if isinstance(event, TaskNote) and event.task not in case.tasks:
            yield f"{type(event).__name__}: there is no task {event.task}"


def every_task_has_ended(case: SortedEvidence) -> Iterator[str]:
    for key, task in case.tasks.items():
        if not task.is_terminal or task.outcome is None or task.is_claimed:
            state = f"{task.status} (claimed: {task.is_claimed}, attempts: {task.attempts})"
            yield f"{key} of {task.function} is {state}"


def what_has_ended_never_changes(case: SortedEvidence) -> Iterator[str]:
    """To the byte: no state that anybody read or wrote as terminal is another than the last."""
    last = {place_of(record.address): look_at(record) for record in case.evidence.tasks.values()}
    for place, look in _terminal_looks(case):
        if place in last and look != last[place]:
            yield f"{place} was {look} and is {last[place]}"
    for key, record in case.evidence.drained.items():
        if case.evidence.tasks.get(key) != record:
            yield f"tasks/{key} changed when a frozen worker went on"


def _terminal_looks(case: SortedEvidence) -> Iterator[tuple[str, Look]]:
    for event in case.evidence.events:
        if isinstance(event, Got) and event.look is not None and _is_terminal(event.look):
            yield event.place, event.look
    for _, edit in case.written():
        if edit.after is not None and _is_terminal(edit.after):
            yield edit.place, edit.after


def _is_terminal(look: Look) -> bool:
    return look.tag in {status.value for status in Status if status.is_terminal}


def no_lease_is_left(case: SortedEvidence) -> Iterator[str]:
    for lease in case.evidence.leases:
        yield f"a lease of {lease.key} is left: {lease.body}"


def every_end_is_explained(case: SortedEvidence) -> Iterator[str]:
    """By what its last attempt did, by the loss of its workers, or by somebody who cancelled it."""
    returned = {(each.task, each.attempt, each.who) for each in case.all(Ended) if each.how == "returned"}
    cancelling = {each.task for each in case.all(Cancelling)}
    for key, task in case.tasks.items():
        match task.outcome:
            case Success():
                result = _Result.of(task)
                if (key, result.attempt, result.by) not in returned or not _may_return(task, result):
                    yield f"{key} completed with {result} after {task.attempts} attempts"
            case Failure(message=message) if task.status is Status.FAILED:
                if not _may_fail(task, message):
                    yield f"{key} of {task.function} failed in attempt {task.attempts}: {message}"
            case _:
                if task.is_terminal and key not in cancelling:
                    yield f"{key} was cancelled, and nobody asked for it"


class _Result(msgspec.Struct, frozen=True):
    argument: int
    attempt: int
    by: str
    trail: list[Entry]

    @classmethod
    def of(cls, task: TaskRecord) -> _Result:
        assert isinstance(task.outcome, Success)
        return msgspec.convert(task.outcome.value, cls)


def _may_return(task: TaskRecord, result: _Result) -> bool:
    """A write that was cancelled halfway may be there, though its function does not know."""
    trail = _trail(task)
    unknown = trail[len(result.trail) :]
    return (
        (result.argument, result.attempt) == (_argument(task), task.attempts)
        and result.trail == trail[: len(result.trail)]
        and all((attempt, by) == (result.attempt, result.by) for attempt, _, by in unknown)
    )


def _may_fail(task: TaskRecord, message: str) -> bool:
    if task.function == "failing" and message == f"not {_argument(task)}":
        return True
    if _may_restart(task):
        return message.startswith("interrupted too often") and task.interruptions == MAX_INTERRUPTIONS + 1
    return message.startswith((LOST.reason, SHUT_DOWN)) and task.attempts == 1


class _Params(msgspec.Struct, frozen=True):
    arguments: dict[str, int]


def _argument(task: TaskRecord) -> int:
    return msgspec.convert(task.original_params, _Params).arguments["n"]


def _trail(task: TaskRecord) -> list[Entry]:
    return msgspec.convert(task.variables.get("trail") or [], list[Entry])


def _may_restart(task: TaskRecord) -> bool:
    return KINDS[task.function or ""].restart


# Attempts


def no_task_is_begun_too_often(case: SortedEvidence) -> Iterator[str]:
    """Once if it must not run twice; else once more for each time that it was released."""
    released = Counter(edit.place for edit in case.perhaps_written() if _releases(edit))
    handed_back = Counter(edit.place for edit in case.perhaps_written() if is_release(edit))
    for key, began in case.by_task(Began).items():
        task, place = case.tasks[key], f"tasks/{key}"
        again = released[place] if _may_restart(task) else 0
        spare = handed_back[place]
        attempts = [each.attempt for each in began]
        twice = len(attempts) - len({*attempts})
        if len(attempts) > 1 + again or twice > spare or max(attempts) > task.attempts + spare:
            yield f"{key} of {task.function}, {task.attempts} attempts, was begun as {attempts}"
    for key, task in case.tasks.items():
        if task.interruptions > MAX_INTERRUPTIONS + 1:
            yield f"{key} of {task.function} was interrupted {task.interruptions} times without progress"


def _releases(edit: Edit) -> bool:
    before, after = edit.before, edit.after
    return (
        before is not None and after is not None and before.held and not (after.held or _is_terminal(after))
    )


def is_release(edit: Edit) -> bool:
    return edit.before is not None and edit.after is not None and edit.after.attempts < edit.before.attempts


def what_was_cancelled_is_not_begun_again(case: SortedEvidence) -> Iterator[str]:
    """An attempt after the cancel was acknowledged. One that was claimed before may begin a little late."""
    for told in case.all(Cancelled):
        task = case.tasks[told.task]
        if task.attempts > told.attempts:
            yield f"{told.task} was cancelled in attempt {told.attempts} and had {task.attempts}"
        if told.is_ended and task.status is not Status.CANCELLED:
            yield f"{told.task} was cancelled and is {task.status}"


# The fence


def a_fenced_attempt_is_told_so(case: SortedEvidence) -> Iterator[str]:
    """A write that was called after a later attempt had begun must not be acknowledged."""
    began = case.by_task(Began)
    for write in case.all(Wrote):
        begun = began.get(write.task, [])
        own = next((each for each in begun if (each.attempt, each.who) == (write.attempt, write.who)), None)
        for later in begun:
            if own is not None and later.at < write.called and _follows(later, own):
                yield f"{write.task}: attempt {write.attempt} wrote after {later.attempt} had begun"


def _follows(later: Began, own: Began) -> bool:
    """A later attempt, or the same one, begun anew by another after it was given back."""
    is_anew = later.attempt == own.attempt and later.who != own.who and later.at > own.at
    return later.attempt > own.attempt or is_anew


def no_write_is_lost_or_overwritten(case: SortedEvidence) -> Iterator[str]:
    """Each acknowledged write is in the final trail, and the trail is as its writers, in turn, left it."""
    wrote = case.by_task(Wrote)
    for key, task in case.tasks.items():
        trail = _trail(task)
        lost = {each.entry for each in wrote.get(key, [])} - {*trail}
        if lost:
            yield f"{key}: {sorted(lost)} were acknowledged and are not in {trail}"
        attempts = [attempt for attempt, _, _ in trail]
        numbers = [number for _, number, _ in trail]
        if attempts != sorted(attempts) or numbers != [*range(1, len(trail) + 1)]:
            yield f"{key}: attempts wrote over each other: {trail}"


def each_attempt_sees_what_earlier_ones_wrote(case: SortedEvidence) -> Iterator[str]:
    wrote = case.by_task(Wrote)
    for began in case.all(Began):
        before = {each.entry for each in wrote.get(began.task, []) if each.attempt < began.attempt}
        if not before <= {*began.trail}:
            yield f"{began.task}: attempt {began.attempt} began with {began.trail}, not with {sorted(before)}"


def no_live_lease_is_taken(case: SortedEvidence) -> Iterator[str]:
    for commit, edit in case.written():
        lease = edit.before
        if lease is None or lease.holder is None or lease.until is None:
            continue
        is_its_own = lease.holder.startswith(f"{commit.asked.who}-")
        if not is_its_own and commit.asked.now < lease.until:
            yield f"{commit.asked.who} took {edit.place} of {lease.holder}, which lived"


def a_worker_writes_only_with_its_lease(case: SortedEvidence) -> Iterator[str]:
    """Holding a task, giving it up, and variables, which no client sets here: all in one commit with it."""
    for commit, edit in case.written():
        if edit.place.startswith("tasks/") and _is_of_a_worker(edit):
            lease = edit.place.replace("tasks/", "leases/")
            if not any(other.place == lease for other in commit.asked.edits):
                yield f"{commit.asked.who} wrote {edit.place} without its lease: {edit.after}"


def _is_of_a_worker(edit: Edit) -> bool:
    before, after = edit.before, edit.after
    if before is None or after is None:
        return False
    return before.held != after.held or before.variables != after.variables


# Answers and keys


def nothing_is_asked_twice(case: SortedEvidence) -> Iterator[str]:
    for key, task in case.tasks.items():
        questions = KINDS[task.function or ""].questions
        least = questions if task.status is Status.COMPLETED else 0
        if not least <= len(task.inputs) <= questions:
            yield f"{key} of {task.function} asked {sorted(task.inputs)}"


def answers_stay_as_they_were_given(case: SortedEvidence) -> Iterator[str]:
    for given in case.all(Answered):
        for key, answer in given.answers.items():
            if not answer or said_in(case.snapshots[given.task], key) != answer:
                yield f"{given.task}: {key} was answered {answer!r}"
    for heard in case.all(Heard):
        snapshot = case.snapshots[heard.task]
        if heard.answer not in {said_in(snapshot, key) for key in snapshot.task.inputs}:
            yield f"{heard.task}: attempt {heard.attempt} heard {heard.answer!r}"


def one_key_makes_one_task(case: SortedEvidence) -> Iterator[str]:
    tasks: defaultdict[str, set[str]] = defaultdict(set)
    for made in case.all(Created):
        if made.key is not None:
            tasks[made.key].add(made.task)
    for key, task in case.tasks.items():
        if task.idempotency_key is not None:
            tasks[task.idempotency_key].add(key)
    for key, made in tasks.items():
        if len(made) > 1:
            yield f"{key} made {sorted(made)}"


# Records


def every_record_is_linearizable(case: SortedEvidence) -> Iterator[str]:
    for place, history in case.histories.items():
        if not explained(history):
            yield f"no order explains the {len(history)} operations on {place}"


def nobody_complains(case: SortedEvidence) -> Iterator[str]:
    yield from case.evidence.findings
    for event in case.evidence.events:
        if isinstance(event, Complained):
            yield f"{event.who}: {event.text}"


CHECKS: tuple[Check, ...] = (
    every_acknowledged_task_is_there,
    every_task_has_ended,
    what_has_ended_never_changes,
    no_lease_is_left,
    every_end_is_explained,
    no_task_is_begun_too_often,
    what_was_cancelled_is_not_begun_again,
    a_fenced_attempt_is_told_so,
    no_write_is_lost_or_overwritten,
    each_attempt_sees_what_earlier_ones_wrote,
    no_live_lease_is_taken,
    a_worker_writes_only_with_its_lease,
    nothing_is_asked_twice,
    answers_stay_as_they_were_given,
    one_key_makes_one_task,
    every_record_is_linearizable,
    nobody_complains,
)


def breaches(case: SortedEvidence) -> dict[str, list[str]]:
    """What was found wrong, by the name of the check."""
    found = {check.__name__: list(check(case)) for check in CHECKS}
    return {name: told for name, told in found.items() if told}
