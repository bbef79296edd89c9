"""Spans and metrics of the runtime, through the OpenTelemetry API.

There are none unless the application sets up an OpenTelemetry SDK before it opens a runtime. Spans contain
the ids of tasks and digests of their owners, but no parameters, variables or results.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from functools import lru_cache

from opentelemetry import context, metrics, trace
from opentelemetry.trace import INVALID_SPAN, Span, StatusCode

from ..storage import Micros
from ..tasks import Status, TaskRecord

_tracer = trace.get_tracer("perdure")
_meter = metrics.get_meter("perdure")

_created = _meter.create_counter("perdure.tasks.created", description="Tasks created")
_claimed = _meter.create_counter("perdure.tasks.claimed", description="Tasks claimed from the queue")
_ended = _meter.create_counter("perdure.runs.ended", description="Runs that ended, by the status of the task")
_dropped = _meter.create_counter("perdure.runs.dropped", description="Runs whose claim was lost")
_recovered = _meter.create_counter("perdure.tasks.recovered", description="Tasks recovered from lost workers")
_purged = _meter.create_counter("perdure.records.purged", description="Expired records removed")
_running = _meter.create_up_down_counter("perdure.runs.active", description="Runs that are active")
_waited = _meter.create_histogram("perdure.task.wait", "s", "Time from when a task is due until its claim")
_lasted = _meter.create_histogram("perdure.task.duration", "s", "Time from the creation of a task to its end")


_nothing: AbstractContextManager[Span] = nullcontext(INVALID_SPAN)


def creating(function: str) -> AbstractContextManager[Span]:
    if not observer.is_there:
        return _nothing
    return _tracer.start_as_current_span("perdure.create", attributes=_function(function))


def claiming(task: TaskRecord) -> AbstractContextManager[Span]:
    return _span("perdure.claim", task)


def running(task: TaskRecord) -> AbstractContextManager[Span]:
    return _span("perdure.run", task)


def finishing(task: TaskRecord) -> AbstractContextManager[Span]:
    return _span("perdure.finish", task)


def recovering(task: TaskRecord) -> AbstractContextManager[Span]:
    return _span("perdure.recover", task)


def purging() -> AbstractContextManager[Span]:
    return _tracer.start_as_current_span("perdure.purge")


def _span(name: str, task: TaskRecord) -> AbstractContextManager[Span]:
    if not observer.is_there:
        return _nothing
    return _tracer.start_as_current_span(name, attributes=_attributes(task))


class _Observer:
    """Whether there was an SDK when the newest runtime was created. If not, spans would only cost time."""

    def __init__(self) -> None:
        self.is_there = False

    def look(self) -> None:
        self.is_there = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


observer = _Observer()


def within_current_trace(surroundings: Context) -> Context:
    """Return a copy of a context in which new spans belong to the current trace."""
    copy = surroundings.copy()
    if observer.is_there:
        copy.run(context.attach, context.get_current())
    return copy


def keep_error_out_of_span() -> None:
    """Prevent the current span from recording the text of an error that is raised next.

    The span gets the status OK, which is final. It is also right, because the request succeeds: the error is
    the outcome of its task.
    """
    trace.get_current_span().set_status(StatusCode.OK)


def created(task: TaskRecord) -> None:
    if observer.is_there:
        trace.get_current_span().set_attributes(_attributes(task))
    _created.add(1, _function(task.function))


def claimed(task: TaskRecord, due_at: Micros, now: Micros) -> None:
    _claimed.add(1, _function(task.function))
    _waited.record(max(0, now - due_at) / 1e6, _function(task.function))


def began(task: TaskRecord) -> None:
    _running.add(1, _function(task.function))


def stopped(task: TaskRecord) -> None:
    _running.add(-1, _function(task.function))


def ended(task: TaskRecord) -> None:
    attributes = _ending(task.function, task.effective_status)
    _ended.add(1, attributes)
    if task.finished_at is not None:
        _lasted.record((task.finished_at - task.created_at) / 1e6, attributes)


def dropped(task: TaskRecord) -> None:
    _dropped.add(1, _function(task.function))


def recovered(task: TaskRecord) -> None:
    _recovered.add(1, _ending(task.function, task.status))


def purged(count: int) -> None:
    trace.get_current_span().set_attribute("perdure.purged", count)
    _purged.add(count)


@lru_cache(maxsize=1024)
def _function(name: str | None) -> dict[str, str]:
    return {} if name is None else {"perdure.function": name}


@lru_cache(maxsize=1024)
def _ending(name: str | None, status: Status) -> dict[str, str]:
    return {**_function(name), "perdure.task.status": status.value}


def _attributes(task: TaskRecord) -> dict[str, str | int]:
    return {
        **_function(task.function),
        "perdure.task.id": task.task_id,
        "perdure.task.attempt": task.attempts,
        "perdure.owner": task.owner.digest,
    }
