"""Tasks as lines, for people and for files. What others wrote in them is harmless."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ...operating import (
    Bucket,
    Event,
    NewerTask,
    Question,
    Stats,
    TaskDetail,
    TaskSummary,
    WorkerSummary,
    outcome_json,
)
from ...operating.times import format_duration, format_when
from ...storage import Micros
from ...tasks import Json
from ..output import escape_control, key_values, one_line, plural

BARS = " ▁▂▃▄▅▆▇█"
STATUS_WIDTH = len("input required")


def task_line(row: TaskSummary) -> str:
    """The whole id first, for programs that take a line apart."""
    parts = (
        row.task_id,
        f"{row.display_status:<{STATUS_WIDTH}}",
        f"{format_duration(row.age):<12}",
        f"{format_progress(row) or '-':<8}",
        row.owner,
        one_line(row.name),
        one_line(row.message or ""),
    )
    return "  ".join(parts).rstrip()


def newer_task_line(task: NewerTask) -> str:
    """The same for a task that a newer version wrote, whose status this version may not know."""
    return f"{task.task_id}  {task.display_status}  {format_duration(task.age)}  {one_line(task.status)}"


def format_progress(row: TaskSummary) -> str:
    if row.progress is None:
        return ""
    done = f"{row.progress.done:g}"
    return done if row.progress.total is None else f"{done}/{row.progress.total:g}"


# One task


def render_task(seen: TaskDetail, now: Micros) -> Iterator[str]:
    row = seen.summary
    held = seen.claim
    rows = [
        ("task", row.task_id),
        ("name", one_line(row.name)),
        ("state", row.display_status),
        ("message", one_line(row.message or "")),
        ("owner", f"{row.owner} ({row.owner_kind})"),
        ("age", format_duration(row.age)),
        ("progress", format_progress(row)),
        ("attempts", str(row.attempts)),
        ("last failure", one_line(seen.last_failure or "")),
        (
            "worker",
            ""
            if held is None
            else f"{one_line(held.claim_id)}, lease until {format_when(held.lease_until, now)}",
        ),
    ]
    yield from key_values(*((name, value) for name, value in rows if value))
    yield from _document("arguments", seen.arguments)
    yield from _document("variables", seen.variables)
    yield from _document("checkpoint", seen.checkpoint)
    yield "timeline"
    for event in seen.timeline:
        yield f"  {_event(event, now)}"
    for question in seen.questions:
        yield from _question(question, now)
    for name, value in (outcome_json(seen.outcome) or {}).items():
        yield from _document(name, value)


def _event(event: Event, now: Micros) -> str:
    note = f": {one_line(event.note)}" if event.note else ""
    return f"{format_when(event.at, now)}  {event.kind}{note}"


def _question(question: Question, now: Micros) -> Iterator[str]:
    yield f"asks {one_line(question.key)} ({question.kind}), {format_when(question.asked_at, now)}"
    if question.message:
        yield f"  {one_line(question.message)}"
    shown: Json = question.params if question.schema is None else question.schema
    yield from _indented(shown)


def _document(name: str, value: Json) -> Iterator[str]:
    if value is None or value == {}:
        return
    yield name
    yield from _indented(value)


def _indented(value: Json) -> Iterator[str]:
    for line in escape_control(json.dumps(value, indent=2, ensure_ascii=False)).split("\n"):
        yield f"  {line}"


# Figures


def render_stats(seen: Stats, now: Micros) -> Iterator[str]:
    ended = seen.throughput
    some = "" if ended.is_complete else ", at least"
    counts = ", ".join(f"{count} {status.value.replace('_', ' ')}" for status, count in seen.counts.items())
    yield from key_values(
        ("tasks", f"{sum(seen.counts.values())}: {counts}"),
        ("held", f"{seen.claimed} by {plural(len(seen.workers), 'worker')}"),
        ("waiting", _waiting(seen)),
        ("asking", _oldest(seen.oldest_open_question)),
        ("expired", f"{seen.expired}, to be removed by the next sweep" if seen.expired else "none"),
        (
            "ended",
            f"{ended.finished} in {format_duration(ended.until - ended.since)}{some}; "
            f"{ended.per_minute:.2g} a minute",
        ),
        (
            "took",
            "nothing ended"
            if ended.median_duration is None
            else f"{format_short_duration(ended.median_duration)} in the median",
        ),
    )
    if ended.finished:
        yield f"  {sparkline(ended.buckets)}"
    for worker in seen.workers:
        yield f"  {_worker(worker, now)}"


def _waiting(seen: Stats) -> str:
    oldest = seen.oldest_queued
    return f"{seen.unclaimed}" + ("" if oldest is None else f"; for a worker {_oldest(oldest)}")


def _oldest(row: TaskSummary | None) -> str:
    return (
        "none" if row is None else f"longest {row.task_id} ({one_line(row.name)}), {format_duration(row.age)}"
    )


def _worker(worker: WorkerSummary, now: Micros) -> str:
    late = f", {plural(worker.expired_leases, 'lease')} overdue" if worker.expired_leases else ""
    until = format_when(worker.lease_until, now)
    return f"{one_line(worker.name)}: {plural(worker.claimed, 'task')}, until {until}{late}"


def format_short_duration(span: Micros) -> str:
    return format_duration(span) if span >= 1_000_000 else f"{span / 1000:.3g} ms"


def sparkline(buckets: Sequence[Bucket]) -> str:
    """What ended, over time, as a row of bars."""
    most = max((bucket.finished for bucket in buckets), default=0) or 1
    return "".join(BARS[-(-bucket.finished * (len(BARS) - 1) // most)] for bucket in buckets)
