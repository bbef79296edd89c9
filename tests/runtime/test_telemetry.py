"""What operators see: a span for each thing that happens to a task, numbers, and no owner in clear."""

from __future__ import annotations

import logging

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from perdure.tasks import NewTask, Owner, StoreConfig, Success

from ..conditions import wait_until
from ..markers import strong_memory
from .replicas import Replicas, leave_with_a_dead_worker, new_app, with_concurrency

pytestmark = pytest.mark.anyio
ANA = Owner.user("https://issuer.example", "ana")

_spans = InMemorySpanExporter()
_metrics = InMemoryMetricReader()


@pytest.fixture(autouse=True, scope="session")
def providers() -> None:
    """Set the providers once per process: OpenTelemetry refuses a second time.

    A scope of "module" would not do: a process may leave this module, for tests that it takes over from
    another one, and come back to it.
    """
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([_metrics]))


@pytest.fixture(autouse=True)
def fresh() -> None:
    _spans.clear()


def spans(name: str) -> list[ReadableSpan]:
    return [span for span in _spans.get_finished_spans() if span.name == name]


def totals() -> dict[str, float]:
    """The sum of each counter over all its attributes."""
    data = _metrics.get_metrics_data()
    found: dict[str, float] = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.data.data_points
                found[metric.name] = sum(
                    getattr(point, "value", getattr(point, "count", 0)) for point in points
                )
    return found


@strong_memory("a commit whose answer is lost is tried again, under another span")
async def test_a_task_leaves_a_span_for_create_run_and_finish(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work() -> None: ...

    runtime = await replicas.start(app)
    before = totals()
    made = await runtime.submit("work", owner=ANA)
    await runtime.wait(ANA, made.task.task_id, 120)
    await wait_until(lambda: bool(spans("perdure.run")))
    for name in ("perdure.create", "perdure.run", "perdure.finish"):
        (span,) = spans(name)
        assert (span.attributes or {})["perdure.task.id"] == made.task.task_id
        assert "ana" not in str(span.attributes)
    after = totals()
    for counter in ("perdure.tasks.created", "perdure.runs.ended", "perdure.task.duration"):
        assert after[counter] == before.get(counter, 0) + 1
    assert after["perdure.runs.active"] == 0


def ended_runs() -> dict[object, float]:
    """How many runs ended, by the status of the task, of the function `fails`."""
    data = _metrics.get_metrics_data()
    resources = data.resource_metrics if data is not None else ()
    points = (
        point
        for resource in resources
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "perdure.runs.ended"
        for point in metric.data.data_points
    )
    found = [(point.attributes or {}, getattr(point, "value", 0)) for point in points]
    return {each["perdure.task.status"]: n for each, n in found if each["perdure.function"] == "fails"}


async def test_a_task_whose_result_reports_an_error_is_counted_as_failed(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def fails() -> Success:
        return Success.of(1, error="no disk")

    runtime = await replicas.start(app)
    made = await runtime.submit("fails", owner=ANA)
    await runtime.wait(ANA, made.task.task_id, 120)
    await wait_until(lambda: bool(ended_runs()))
    assert set(ended_runs()) == {"failed"}


@strong_memory("a commit whose answer is lost is tried again, under another span")
async def test_a_task_from_the_queue_leaves_a_span_for_its_claim(replicas: Replicas) -> None:
    app = new_app()

    @app.function()
    async def work() -> None: ...

    client = await replicas.start(app, work=False)
    made = await client.submit("work", owner=ANA)
    await replicas.start(app, with_concurrency(1))
    await client.wait(ANA, made.task.task_id, 120)
    (span,) = spans("perdure.claim")
    assert (span.attributes or {})["perdure.owner"] == ANA.digest
    assert totals()["perdure.tasks.claimed"] >= 1


@strong_memory("a recovery whose answer is lost leaves an error in the log, not the line that it looks for")
async def test_recovery_and_purging_leave_spans_and_logs_without_owners(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    app = new_app()

    @app.function(restart=False)
    async def work() -> None: ...

    dead = await replicas.start(app, work=False)
    with caplog.at_level(logging.DEBUG, logger="perdure"):
        lost = await leave_with_a_dead_worker(dead, ANA)
        quick = StoreConfig(ttl=0.001)
        short = await replicas.start(app, work=False, limits=quick)
        await short.store.create(ANA, NewTask(method="tools/call"))
        runtime = await replicas.start(app)
        ended = await runtime.wait(ANA, lost, 60)
        await wait_until(
            lambda: any((span.attributes or {}).get("perdure.purged") for span in spans("perdure.purge"))
        )
        await wait_until(lambda: len(spans("perdure.recover")) == 1)
    assert ended.task.last_failure == "the worker was lost while it ran the task"
    assert lost in caplog.text
    assert ANA.digest in caplog.text
    assert "issuer.example" not in caplog.text
