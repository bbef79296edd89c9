"""Formats tasks as text, tables and JSON events."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace
from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...operating import NewerTask, Stats, TaskChanges, TaskDetail, TaskSummary, outcome_json
from ...operating.times import format_clock, format_duration, format_when, iso
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

BARS = " ▁▂▃▄▅▆▇█"
STATUS_WIDTH = len("input required")
ID_WIDTH = 12
"""Number of characters to which task ids are shortened in a table. Commands accept shortened ids."""
_COLOURS = {
    "queued": "dim",
    "working": "cyan",
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
        f"{format_duration(task.age):<12}",
        f"{format_progress(task) or '-':<8}",
        task.owner,
        one_line(task.application),
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
    table.add_column("application", no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("owner", no_wrap=True, style="dim")
    table.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1)
    for task in tasks:
        table.add_row(
            task.task_id[:ID_WIDTH],
            Text(task.display_status, style=_COLOURS[task.display_status]),
            Text(one_line(task.name)),
            format_duration(task.age),
            _progress(task),
            Text(one_line(task.application)),
            task.owner,
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


@contextmanager
def task_display(clock: Callable[[], Micros], *, json: bool) -> Generator[Callable[[TaskChanges], None]]:
    """Yield a function that shows task changes as JSON events, a live table (in a terminal) or lines."""
    if json or not stdout.is_interactive:
        yield lambda changes: _print_changes(changes, clock(), json=json)
        return
    tasks: tuple[TaskSummary, ...] = ()

    def render() -> RenderableType:
        if not tasks:
            return Text("No tasks yet. New tasks appear here.")
        now = clock()
        ages = (task.age if task.status.is_terminal else max(0, now - task.created_at) for task in tasks)
        return task_table(replace(task, age=age) for task, age in zip(tasks, ages, strict=True))

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
    rows = (
        ("task", task.task_id),
        ("name", one_line(task.name)),
        ("application", one_line(task.application)),
        ("state", task.display_status),
        ("message", one_line(task.message or "")),
        ("owner", f"{task.owner} ({task.owner_kind})"),
        ("age", format_duration(task.age)),
        ("progress", format_progress(task)),
        ("attempts", str(task.attempts)),
        ("last failure", one_line(detail.last_failure or "")),
        ("contents", "encrypted, not shown" if task.is_encrypted else ""),
        ("worker", "" if claim is None else f"{one_line(claim.claim_id)}{lease}"),
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
        ("tasks", describe_counts(stats.counts)),
        ("claimed", f"{stats.claimed} by {plural(len(stats.workers), 'worker')}"),
        ("unclaimed", f"{stats.unclaimed}{queued}"),
        ("input required", "none" if question is None else f"oldest {_oldest(question)}"),
        ("expired", f"{stats.expired}, deleted at the next purge" if stats.expired else "none"),
        ("finished", f"{at_least}{finished.finished} in {window}; {rate}"),
        ("median", _median(finished.median_duration)),
    )
    if finished.finished:
        highest = max(bucket.finished for bucket in finished.buckets)
        heights = (-(-bucket.finished * (len(BARS) - 1) // highest) for bucket in finished.buckets)
        yield "  " + "".join(BARS[height] for height in heights)
    for worker in stats.workers:
        lease = f"lease until {format_when(worker.lease_until, now)}"
        expired = f", {worker.expired_leases} expired" if worker.expired_leases else ""
        yield f"  {one_line(worker.name)}: {plural(worker.claimed, 'task')}, {lease}{expired}"


def _oldest(task: TaskSummary) -> str:
    return f"{task.task_id} ({one_line(task.name)}), {format_duration(task.age)}"


def _median(duration: Micros | None) -> str:
    if duration is None:
        return "none finished"
    return format_duration(duration) if duration >= SECOND else f"{duration / 1000:.3g} ms"
