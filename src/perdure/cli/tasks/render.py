"""Tasks as lines, for people and for files. What others wrote in them is harmless."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ...operating import Bucket, Detail, Event, NewerTask, Question, Row, Stats, Worker, outcome_of
from ...storage import Micros
from ...tasks import Json
from ..output import counted, escaped, harmless, table
from ..times import duration, when

BARS = " ▁▂▃▄▅▆▇█"
WIDEST_STATE = len("input required")


def line_of(row: Row) -> str:
    """The whole id first, for programs that take a line apart."""
    parts = (
        row.task_id,
        f"{row.state:<{WIDEST_STATE}}",
        f"{duration(row.age):<12}",
        f"{progress_of(row) or '-':<8}",
        row.owner,
        harmless(row.name),
        harmless(row.message or ""),
    )
    return "  ".join(parts).rstrip()


def line_of_newer(task: NewerTask) -> str:
    """The same for a task that a newer version wrote, whose status this version may not know."""
    return f"{task.task_id}  {task.state}  {duration(task.age)}  {harmless(task.status)}"


def progress_of(row: Row) -> str:
    if row.progress is None:
        return ""
    done = f"{row.progress.done:g}"
    return done if row.progress.total is None else f"{done}/{row.progress.total:g}"


# One task


def lines_of_detail(seen: Detail, now: Micros) -> Iterator[str]:
    row = seen.row
    held = seen.lease
    rows = [
        ("task", row.task_id),
        ("name", harmless(row.name)),
        ("state", row.state),
        ("message", harmless(row.message or "")),
        ("owner", f"{row.owner} ({row.owner_kind})"),
        ("age", duration(row.age)),
        ("progress", progress_of(row)),
        ("attempts", str(row.attempts)),
        ("last failure", harmless(seen.last_failure or "")),
        ("worker", "" if held is None else f"{harmless(held.holder)}, lease until {when(held.until, now)}"),
    ]
    yield from table(*((name, value) for name, value in rows if value))
    yield from _document("arguments", seen.arguments)
    yield from _document("variables", seen.variables)
    yield from _document("checkpoint", seen.checkpoint)
    yield "timeline"
    for event in seen.timeline:
        yield f"  {_event(event, now)}"
    for question in seen.questions:
        yield from _question(question, now)
    for name, value in (outcome_of(seen.outcome) or {}).items():
        yield from _document(name, value)


def _event(event: Event, now: Micros) -> str:
    note = f": {harmless(event.note)}" if event.note else ""
    return f"{when(event.at, now)}  {event.kind}{note}"


def _question(question: Question, now: Micros) -> Iterator[str]:
    yield f"asks {harmless(question.key)} ({question.kind}), {when(question.asked_at, now)}"
    if question.message:
        yield f"  {harmless(question.message)}"
    shown: Json = question.params if question.schema is None else question.schema
    yield from _indented(shown)


def _document(name: str, value: Json) -> Iterator[str]:
    if value is None or value == {}:
        return
    yield name
    yield from _indented(value)


def _indented(value: Json) -> Iterator[str]:
    for line in escaped(json.dumps(value, indent=2, ensure_ascii=False)).split("\n"):
        yield f"  {line}"


# Figures


def lines_of_stats(seen: Stats, now: Micros) -> Iterator[str]:
    ended = seen.throughput
    some = "" if ended.is_whole else ", at least"
    counts = ", ".join(f"{count} {status.value.replace('_', ' ')}" for status, count in seen.counts.items())
    yield from table(
        ("tasks", f"{sum(seen.counts.values())}: {counts}"),
        ("held", f"{seen.held} by {counted(len(seen.workers), 'worker')}"),
        ("waiting", _waiting(seen)),
        ("asking", _oldest(seen.oldest_asking)),
        ("expired", f"{seen.expired}, to be removed by the next sweep" if seen.expired else "none"),
        (
            "ended",
            f"{ended.ended} in {duration(ended.until - ended.since)}{some}; {ended.per_minute:.2g} a minute",
        ),
        ("took", "nothing ended" if ended.median is None else f"{took(ended.median)} in the median"),
    )
    if ended.ended:
        yield f"  {spark(ended.buckets)}"
    for worker in seen.workers:
        yield f"  {_worker(worker, now)}"


def _waiting(seen: Stats) -> str:
    oldest = seen.oldest_waiting
    return f"{seen.waiting}" + ("" if oldest is None else f"; for a worker {_oldest(oldest)}")


def _oldest(row: Row | None) -> str:
    return "none" if row is None else f"longest {row.task_id} ({harmless(row.name)}), {duration(row.age)}"


def _worker(worker: Worker, now: Micros) -> str:
    late = f", {counted(worker.overdue, 'lease')} overdue" if worker.overdue else ""
    return f"{harmless(worker.name)}: {counted(worker.held, 'task')}, until {when(worker.until, now)}{late}"


def took(span: Micros) -> str:
    return duration(span) if span >= 1_000_000 else f"{span / 1000:.3g} ms"


def spark(buckets: Sequence[Bucket]) -> str:
    """What ended, over time, as a row of bars."""
    most = max((bucket.ended for bucket in buckets), default=0) or 1
    return "".join(BARS[-(-bucket.ended * (len(BARS) - 1) // most)] for bucket in buckets)
