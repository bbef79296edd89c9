"""Tasks as text, tables and JSON. Text from other people is printed without control characters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from msgspec.structs import replace
from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...operating import (
    Bucket,
    Event,
    NewerTask,
    Question,
    Stats,
    TaskChanges,
    TaskDetail,
    TaskSummary,
    TaskSummaryPage,
    WorkerSummary,
    outcome_json,
)
from ...operating.times import format_clock, format_duration, format_when, iso
from ...storage import Micros
from ...storage.clock import SECOND
from ...tasks import Json
from ..output import (
    escape_control,
    is_interactive,
    key_values,
    one_line,
    plural,
    print_json,
    print_result,
    stdout,
    to_json,
)

BARS = " ▁▂▃▄▅▆▇█"
STATUS_WIDTH = len("input required")
ID_WIDTH = 12
"""Number of characters of an id in a table; enough to find the task."""
_COLOURS = {
    "queued": "dim",
    "working": "cyan",
    "cancelling": "yellow",
    "input required": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
}


# Lists


def task_line(task: TaskSummary) -> str:
    """Return a task as a line that starts with its complete id, for programs that split lines."""
    parts = (
        task.task_id,
        f"{task.display_status:<{STATUS_WIDTH}}",
        f"{format_duration(task.age):<12}",
        f"{format_progress(task) or '-':<8}",
        task.owner,
        one_line(task.name),
        one_line(task.message or ""),
    )
    return "  ".join(parts).rstrip()


def newer_task_line(task: NewerTask) -> str:
    return f"{task.task_id}  {task.display_status}  {format_duration(task.age)}  {one_line(task.status)}"


def format_progress(task: TaskSummary) -> str:
    if task.progress is None:
        return ""
    done = f"{task.progress.done:g}"
    return done if task.progress.total is None else f"{done}/{task.progress.total:g}"


def task_table(tasks: Iterable[TaskSummary]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=False)
    for name in ("id", "state", "name", "age"):
        table.add_column(name, no_wrap=True)
    table.add_column("progress", no_wrap=True, min_width=8)
    table.add_column("owner", no_wrap=True)
    table.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1)
    for task in tasks:
        table.add_row(
            Text(task.task_id[:ID_WIDTH]),
            Text(task.display_status, style=_COLOURS[task.display_status]),
            Text(one_line(task.name)),
            Text(format_duration(task.age)),
            _progress(task),
            Text(task.owner, style="dim"),
            Text(one_line(task.message or "")),
        )
    return table


def _progress(task: TaskSummary) -> RenderableType:
    text = Text(format_progress(task))
    if task.progress_fraction is None:
        return text
    cell = Table.grid(padding=(0, 1))
    cell.add_row(ProgressBar(total=1.0, completed=task.progress_fraction, width=10), text)
    return cell


# Changes


class TaskLog:
    """A log with a line for each task that changed."""

    live: AbstractContextManager[object] = nullcontext()
    """Enter this while changes are shown."""

    def show(self, changes: TaskChanges, now: Micros) -> None:
        for task in changes.changed:
            print_result(f"{format_clock(now)}  {task_line(task)}")


class JsonTaskLog(TaskLog):
    """A log with a JSON event for each task that changed or left the page."""

    def show(self, changes: TaskChanges, now: Micros) -> None:
        for task in changes.changed:
            print_json({"at": iso(now), "event": "changed", **task_json(task)})
        for task in changes.removed:
            print_json({"at": iso(now), "event": "removed", "task_id": task.task_id})


class LiveTaskTable(TaskLog):
    """A table of the current tasks whose ages keep growing."""

    def __init__(self, clock: Callable[[], Micros]) -> None:
        self._clock = clock
        self._tasks: tuple[TaskSummary, ...] = ()
        self._display = Live(get_renderable=self._render, console=stdout, refresh_per_second=2)
        self.live = self._display

    def show(self, changes: TaskChanges, now: Micros) -> None:  # noqa: ARG002
        self._tasks = changes.page.tasks
        self._display.refresh()

    def _render(self) -> RenderableType:
        now = self._clock()
        if not self._tasks:
            return Text("No tasks yet. New tasks appear here.")
        return task_table(_with_current_age(task, now) for task in self._tasks)


def _with_current_age(task: TaskSummary, now: Micros) -> TaskSummary:
    return task if task.status.is_terminal else replace(task, age=max(0, now - task.created_at))


def task_display(clock: Callable[[], Micros], *, json: bool) -> TaskLog:
    if json:
        return JsonTaskLog()
    return LiveTaskTable(clock) if is_interactive(stdout) else TaskLog()


# One task


def render_task(detail: TaskDetail, now: Micros) -> Iterator[str]:
    task, claim = detail.summary, detail.claim
    rows = [
        ("task", task.task_id),
        ("name", one_line(task.name)),
        ("state", task.display_status),
        ("message", one_line(task.message or "")),
        ("owner", f"{task.owner} ({task.owner_kind})"),
        ("age", format_duration(task.age)),
        ("progress", format_progress(task)),
        ("attempts", str(task.attempts)),
        ("last failure", one_line(detail.last_failure or "")),
    ]
    if claim is not None:
        lease = format_when(claim.lease_until, now)
        rows.append(("worker", f"{one_line(claim.claim_id)}, lease until {lease}"))
    yield from key_values(*((name, value) for name, value in rows if value))
    yield from _document("arguments", detail.arguments)
    yield from _document("variables", detail.variables)
    yield from _document("checkpoint", detail.checkpoint)
    yield "timeline"
    for event in detail.timeline:
        yield f"  {_event(event, now)}"
    for question in detail.questions:
        yield from _question(question, now)
    for name, value in (outcome_json(detail.outcome) or {}).items():
        yield from _document(name, value)


def _event(event: Event, now: Micros) -> str:
    note = f": {one_line(event.note)}" if event.note else ""
    return f"{format_when(event.at, now)}  {event.kind}{note}"


def _question(question: Question, now: Micros) -> Iterator[str]:
    asked = format_when(question.asked_at, now)
    yield f"question {one_line(question.key)} ({question.kind}), asked {asked}"
    if question.message:
        yield f"  {one_line(question.message)}"
    yield from _indented(question.params if question.schema is None else question.schema)


def _document(name: str, value: Json) -> Iterator[str]:
    if value is None or value == {}:
        return
    yield name
    yield from _indented(value)


def _indented(value: Json) -> Iterator[str]:
    for line in escape_control(json.dumps(value, indent=2, ensure_ascii=False)).split("\n"):
        yield f"  {line}"


# Statistics


def render_stats(stats: Stats, now: Micros) -> Iterator[str]:
    finished = stats.throughput
    counts = ", ".join(f"{count} {status.value.replace('_', ' ')}" for status, count in stats.counts.items())
    queued = "" if stats.oldest_queued is None else f"; oldest queued {_oldest(stats.oldest_queued)}"
    question = stats.oldest_open_question
    at_least = "" if finished.is_complete else "at least "
    window, rate = format_duration(finished.until - finished.since), f"{finished.per_minute:.2g}/min"
    median = finished.median_duration
    yield from key_values(
        ("tasks", f"{sum(stats.counts.values())}: {counts}"),
        ("claimed", f"{stats.claimed} by {plural(len(stats.workers), 'worker')}"),
        ("unclaimed", f"{stats.unclaimed}{queued}"),
        ("input required", "none" if question is None else f"oldest {_oldest(question)}"),
        ("expired", f"{stats.expired}, deleted at the next purge" if stats.expired else "none"),
        ("finished", f"{at_least}{finished.finished} in {window}; {rate}"),
        ("median", "none finished" if median is None else format_short_duration(median)),
    )
    if finished.finished:
        yield f"  {sparkline(finished.buckets)}"
    for worker in stats.workers:
        yield f"  {_worker(worker, now)}"


def _oldest(task: TaskSummary) -> str:
    return f"{task.task_id} ({one_line(task.name)}), {format_duration(task.age)}"


def _worker(worker: WorkerSummary, now: Micros) -> str:
    lease = f"lease until {format_when(worker.lease_until, now)}"
    expired = f", {worker.expired_leases} expired" if worker.expired_leases else ""
    return f"{one_line(worker.name)}: {plural(worker.claimed, 'task')}, {lease}{expired}"


def format_short_duration(span: Micros) -> str:
    return format_duration(span) if span >= SECOND else f"{span / 1000:.3g} ms"


def sparkline(buckets: Sequence[Bucket]) -> str:
    """Return a bar for the finished tasks of each bucket."""
    highest = max((bucket.finished for bucket in buckets), default=0) or 1
    return "".join(BARS[-(-bucket.finished * (len(BARS) - 1) // highest)] for bucket in buckets)


# JSON


def task_json(task: TaskSummary) -> dict[str, Any]:
    return {**to_json(task), "state": task.display_status}


def page_json(page: TaskSummaryPage) -> dict[str, Any]:
    return {**to_json(page), "tasks": [task_json(each) for each in page.tasks]}


def task_detail_json(detail: TaskDetail) -> dict[str, Any]:
    fields = to_json(detail)
    del fields["summary"]
    return {**task_json(detail.summary), **fields, "outcome": outcome_json(detail.outcome)}


def stats_json(stats: Stats) -> dict[str, Any]:
    queued, question, finished = stats.oldest_queued, stats.oldest_open_question, stats.throughput
    return {
        **to_json(stats),
        "oldest_queued": None if queued is None else task_json(queued),
        "oldest_open_question": None if question is None else task_json(question),
        "throughput": {
            **to_json(finished),
            "finished": finished.finished,
            "per_minute": finished.per_minute,
        },
    }
