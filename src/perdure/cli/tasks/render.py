"""Formats tasks as text, tables and JSON events."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace
from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from ...operating import NewerTask, Stats, TaskChanges, TaskDetail, TaskSummary, outcome_json
from ...operating.times import (
    format_clock,
    format_duration,
    format_moment,
    format_second,
    format_when,
    iso,
)
from ...storage import Micros
from ...storage.time_types import SECOND
from ...tasks import Json
from ..output import (
    describe_counts,
    escape_control,
    key_values,
    one_line,
    plural,
    print_json,
    print_result,
    stdout,
    to_json,
)
from ..table import Column, FittedTable

NO_ROOM = "The terminal is too narrow for messages; use a wider one, or `perdure tasks show ID`."
WORKING_WORDS = frozenset({"queued", "running", "waiting_to_retry", "cancelling"})
"""The words that lists show for tasks whose status is `working`, with underscores instead of spaces."""
BARS = " ▁▂▃▄▅▆▇█"
STATUS_WIDTH = len("waiting to retry")
ID_WIDTH = 8
"""Number of characters to which task ids are shortened in a table, as on the dashboard. Commands accept
shortened ids.
"""
BAR_WIDTH = 10
_COLUMNS = (
    Column(name="id"),
    Column(name="status"),
    Column(name="name", min_width=12),
    Column(name="created (UTC)", drop=4),
    Column(name="duration"),
    Column(name="progress"),
    Column(name="", drop=2),
    Column(name="application", drop=3),
    Column(name="owner", drop=1, style="dim"),
    Column(name="message", drop=5, wanted_width=28, min_width=12),
)
_COLOURS = {
    "queued": "dim",
    "waiting to retry": "yellow",
    "running": "cyan",
    "cancelling": "yellow",
    "input required": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
}


def task_line(task: TaskSummary) -> str:
    """Return a line that describes a task. It starts with the complete id, so that programs can use it."""
    parts = (
        task.task_id,
        f"{task.display_status:<{STATUS_WIDTH}}",
        format_second(task.created_at),
        f"{format_duration(task.age):<12}",
        f"{format_progress(task) or '-':<8}",
        task.owner,
        one_line(task.application),
        one_line(task.name),
        _note(task),
    )
    return "  ".join(parts).rstrip()


def newer_task_line(task: NewerTask) -> str:
    created = format_second(task.created_at)
    return f"{task.task_id}  {task.display_status}  {created}  {one_line(task.status)}"


def format_progress(task: TaskSummary) -> str:
    if task.progress is None:
        return ""
    done = f"{task.progress.done:g}"
    return done if task.progress.total is None else f"{done}/{task.progress.total:g}"


def task_table(tasks: Iterable[TaskSummary], now: Micros) -> FittedTable:
    return FittedTable(_COLUMNS, [_row(task, now) for task in tasks])


def _row(task: TaskSummary, now: Micros) -> Sequence[RenderableType]:
    return (
        Text(task.task_id[:ID_WIDTH]),
        Text(task.display_status, style=_COLOURS[task.display_status]),
        Text(one_line(task.name)),
        Text(format_moment(task.created_at, now)),
        Text(format_duration(task.age)),
        Text(format_progress(task)),
        _bar(task),
        Text(one_line(task.application)),
        Text(task.owner),
        Text(_note(task)),
    )


def _note(task: TaskSummary) -> str:
    """Return the message of a task.

    If the task is waiting to be retried, return the time of the next attempt and the last failure instead.
    """
    if task.next_attempt_at is None:
        return one_line(task.message or "")
    failure = f"; last failure: {one_line(task.last_failure)}" if task.last_failure else ""
    return f"next attempt at {format_clock(task.next_attempt_at)}{failure}"


def _bar(task: TaskSummary) -> RenderableType:
    if task.progress_fraction is None:
        return Text()
    return ProgressBar(total=1.0, completed=task.progress_fraction, width=BAR_WIDTH)


@contextmanager
def task_display(clock: Callable[[], Micros], *, json: bool) -> Generator[Callable[[TaskChanges], None]]:
    """Yield a function that shows task changes as JSON events, as lines, or as a live table in a terminal."""
    if json or not stdout.is_interactive:
        yield lambda changes: _print_changes(changes, clock(), json=json)
        return
    tasks: tuple[TaskSummary, ...] = ()

    def render() -> RenderableType:
        if not tasks:
            return Text("No tasks yet. New tasks appear here.")
        now = clock()
        ages = (task.age if task.status.is_terminal else max(0, now - task.created_at) for task in tasks)
        current = (replace(task, age=age) for task, age in zip(tasks, ages, strict=True))
        return task_table(current, now)

    def show(changes: TaskChanges) -> None:
        nonlocal tasks
        tasks = changes.page.tasks
        live.refresh()

    with Live(get_renderable=render, console=stdout, refresh_per_second=2) as live:
        yield show


def _print_changes(changes: TaskChanges, now: Micros, *, json: bool) -> None:
    for task in changes.changed:
        if json:
            print_json({"at": iso(now), "event": "changed", **to_json(task)})
        else:
            print_result(f"{format_clock(now)}  {task_line(task)}")
    for task in changes.removed if json else ():
        print_json({"at": iso(now), "event": "removed", "task_id": task.task_id})


def render_task(detail: TaskDetail, now: Micros) -> Iterator[str]:
    task, claim = detail.summary, detail.claim
    lease = "" if claim is None else f", lease until {format_when(claim.lease_until, now)}"
    retry_at = task.next_attempt_at
    rows = (
        ("task", task.task_id),
        ("name", one_line(task.name)),
        ("application", one_line(task.application)),
        ("status", _status(task)),
        ("message", one_line(task.message or "")),
        ("owner", f"{task.owner} ({task.owner_kind})"),
        ("created", format_when(task.created_at, now)),
        ("duration", format_duration(task.age, precise=True)),
        ("progress", format_progress(task)),
        ("attempts", str(task.attempts)),
        ("last failure", one_line(task.last_failure or "")),
        ("contents", "encrypted, not shown" if task.is_encrypted else ""),
        ("next attempt", "" if retry_at is None else format_when(retry_at, now)),
        ("worker", f"{one_line(detail.worker or '')}{lease}"),
    )
    yield from key_values(*((name, value) for name, value in rows if value))
    yield from _document("arguments", detail.arguments)
    yield from _document("variables", detail.variables)
    yield from _document("checkpoint", detail.checkpoint)
    yield "timeline"
    for event in detail.timeline:
        note = f": {one_line(event.note)}" if event.note else ""
        yield f"  {format_when(event.at, now)}  {event.kind}{note}"
    if detail.log:
        yield "log"
        if detail.removed_log_entries:
            yield f"  ({plural(detail.removed_log_entries, 'older entry', 'older entries')} removed)"
    for entry in detail.log:
        logger = "" if entry.logger is None else f" {one_line(entry.logger)}:"
        yield f"  {format_when(entry.at, now)}  {entry.level}{logger} {one_line(entry.text)}"
    for question in detail.questions:
        asked = format_when(question.asked_at, now)
        yield f"question {one_line(question.key)} ({question.kind}), asked {asked}"
        if question.message:
            yield f"  {one_line(question.message)}"
        yield from _indented(question.params if question.schema is None else question.schema)
    for name, value in (outcome_json(detail.outcome) or {}).items():
        yield from _document(name, value)


def _status(task: TaskSummary) -> str:
    """Return the status in words and, if it differs, the status that --status accepts."""
    is_same = task.display_status.replace(" ", "_") == task.status
    return task.display_status if is_same else f"{task.display_status} ({task.status})"


def _document(name: str, value: Json) -> Iterator[str]:
    if value is not None and value != {}:
        yield name
        yield from _indented(value)


def _indented(value: Json) -> Iterator[str]:
    for line in escape_control(json.dumps(value, indent=2, ensure_ascii=False)).split("\n"):
        yield f"  {line}"


def render_stats(stats: Stats, now: Micros) -> Iterator[str]:
    finished, question = stats.throughput, stats.oldest_open_question
    queued = "" if stats.oldest_queued is None else f"; oldest queued {_oldest(stats.oldest_queued)}"
    at_least = "" if finished.is_complete else "at least "
    window, rate = format_duration(finished.until - finished.since), f"{finished.per_minute:.2g}/min"
    yield from key_values(
        ("tasks", f"{sum(stats.counts.values())}: {describe_counts(stats.counts)}"),
        ("claimed", f"{stats.claimed} by {plural(len(stats.workers), 'worker')}"),
        ("unclaimed", f"{stats.unclaimed}{queued}"),
        ("input required", "none" if question is None else f"oldest {_oldest(question)}"),
        ("expired", f"{stats.expired}, to be deleted at the next purge" if stats.expired else "none"),
        ("finished", f"{at_least}{finished.finished} in {window}; {rate}"),
        ("median duration", _median(finished.median_duration)),
    )
    if finished.finished:
        highest = max(bucket.finished for bucket in finished.buckets)
        heights = (-(-bucket.finished * (len(BARS) - 1) // highest) for bucket in finished.buckets)
        yield "  " + "".join(BARS[height] for height in heights)
    for worker in stats.workers:
        lease = f"lease until {format_when(worker.lease_until, now)}"
        expired = f", {plural(worker.expired_leases, 'lease')} expired" if worker.expired_leases else ""
        yield f"  {one_line(worker.name)}: {plural(worker.claimed, 'task')}, {lease}{expired}"


def _oldest(task: TaskSummary) -> str:
    return f"{task.task_id} ({one_line(task.name)}), {format_duration(task.age)}"


def _median(duration: Micros | None) -> str:
    if duration is None:
        return "none finished"
    return format_duration(duration) if duration >= SECOND else f"{duration / 1000:.3g} ms"
