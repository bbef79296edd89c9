"""Tasks as JSON, for programs: times as ISO 8601, and what the task carries as it is."""

from __future__ import annotations

from typing import Any

import msgspec

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
    outcome_json,
)
from ...operating.times import iso
from ...storage import Micros
from ...tasks import Attempt


def row(row: TaskSummary) -> dict[str, Any]:
    return {
        "task_id": row.task_id,
        "status": row.status,
        "state": row.display_status,
        "name": row.name,
        "owner": row.owner,
        "owner_kind": row.owner_kind,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
        "finished_at": _time(row.finished_at),
        "age_seconds": row.age / 1e6,
        "progress": None if row.progress is None else _progress(row),
        "attempts": row.attempts,
        "held": row.is_claimed,
        "cancelling": row.is_cancelling,
        "has_error": row.has_error,
        "open_questions": row.open_questions,
        "message": row.message,
        "version": row.version,
    }


def _progress(row: TaskSummary) -> dict[str, Any] | None:
    return None if row.progress is None else {"done": row.progress.done, "total": row.progress.total}


def _time(at: Micros | None) -> str | None:
    return None if at is None else iso(at)


def rows(page: TaskSummaryPage) -> dict[str, Any]:
    return {
        "tasks": [row(each) for each in page.tasks],
        "corrupt": list(page.corrupt),
        "newer": [_newer(each) for each in page.newer],
        "next": page.next_cursor,
    }


def _newer(task: NewerTask) -> dict[str, Any]:
    return {"task_id": task.task_id, "status": task.status, "created_at": iso(task.created_at)}


def detail(seen: TaskDetail) -> dict[str, Any]:
    held = seen.claim
    return {
        **row(seen.summary),
        "method": seen.method,
        "arguments": seen.arguments,
        "variables": seen.variables,
        "checkpoint": seen.checkpoint,
        "last_failure": seen.last_failure,
        "history": [_attempt(each) for each in seen.history],
        "ttl_ms": seen.ttl,
        "expires_at": _time(seen.expires_at),
        "timeline": [_event(each) for each in seen.timeline],
        "questions": [_question(each) for each in seen.questions],
        "outcome": outcome_json(seen.outcome),
        "lease": None if held is None else {"holder": held.claim_id, "until": iso(held.lease_until)},
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    ended_at = _time(attempt.ended_at)
    return {"begun_at": iso(attempt.started_at), "ended_at": ended_at, "reason": attempt.reason}


def _event(event: Event) -> dict[str, Any]:
    return {"at": iso(event.at), "event": event.kind, "note": event.note}


def _question(question: Question) -> dict[str, Any]:
    return {
        "key": question.key,
        "kind": question.kind,
        "asked_at": iso(question.asked_at),
        "params": question.params,
    }


def changes(seen: TaskChanges) -> list[dict[str, Any]]:
    """An event for each row."""
    return [
        *({"event": "changed", **row(each)} for each in seen.changed),
        *({"event": "gone", "task_id": each.task_id} for each in seen.removed),
    ]


def stats(seen: Stats) -> dict[str, Any]:
    ended = seen.throughput
    return {
        "counts": {status.value: count for status, count in seen.counts.items()},
        "held": seen.claimed,
        "waiting": seen.unclaimed,
        "expired": seen.expired,
        "oldest_waiting": None if seen.oldest_queued is None else row(seen.oldest_queued),
        "oldest_asking": None if seen.oldest_open_question is None else row(seen.oldest_open_question),
        "workers": [
            {**msgspec.structs.asdict(each), "lease_until": iso(each.lease_until)} for each in seen.workers
        ],
        "throughput": {
            "since": iso(ended.since),
            "until": iso(ended.until),
            "ended": ended.finished,
            "per_minute": ended.per_minute,
            "median_seconds": None if ended.median_duration is None else ended.median_duration / 1e6,
            "is_whole": ended.is_complete,
            "buckets": [_bucket(each) for each in ended.buckets],
        },
    }


def _bucket(bucket: Bucket) -> dict[str, Any]:
    return {**msgspec.structs.asdict(bucket), "start": iso(bucket.start)}
