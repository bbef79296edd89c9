"""Serves the overview page, with counts and charts, and the workers page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..operating import Operator, TaskSummary, Throughput
from ..operating.encryption_keys import MissingKeys
from ..operating.stats import group_by_worker
from ..storage import Micros
from ..storage.time_types import SECOND
from ..tasks import Status
from ..tasks.encryption import Keyring
from ..tasks.lifecycle import ACTIVE_STATUSES
from .cache import CachedQuery
from .charts import CountHistory, chart_points
from .live import PageFragments
from .renderer import Renderer
from .security import mount_path

MAX_CLAIMS_SHOWN = 200


class ChartSpan(msgspec.Struct, frozen=True):
    """A time span that the charts can show, and the interval between two points of a chart."""

    name: str
    label: str
    width: Micros
    buckets: int
    step: str


SPANS = {
    span.name: span
    for span in (
        ChartSpan("10m", "10 minutes", 10 * SECOND, 60, "10 seconds"),
        ChartSpan("1h", "1 hour", 60 * SECOND, 60, "minute"),
        ChartSpan("24h", "24 hours", 1800 * SECOND, 48, "half hour"),
    )
}


class _OverviewData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the overview page. It is cached, because the queries are slow."""

    counts: Mapping[Status, int]
    throughput: Throughput
    claimed: int
    workers: int
    """Number of workers that have claimed tasks. Only the newest 1,000 claimed tasks are considered."""
    oldest_queued: TaskSummary | None
    oldest_open_question: TaskSummary | None


class OverviewPages:
    """The routes of the overview page and the workers page."""

    def __init__(
        self,
        renderer: Renderer,
        operator: Operator,
        history: CountHistory,
        keys: Keyring,
        missing_keys: MissingKeys | None,
        clock: Callable[[], Micros],
    ) -> None:
        self._renderer = renderer
        self._operator = operator
        self._history = history
        self._keys = keys
        self._missing_keys = missing_keys
        self._clock = clock
        self._search = CachedQuery(self._search_missing_keys)
        self._applications = CachedQuery(operator.applications)
        self._queries = {span.name: CachedQuery(partial(self._query, span)) for span in SPANS.values()}

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._overview),
            Route("/events/overview", self._overview_events),
            Route("/workers", self._workers),
            Route("/events/workers", self._workers_events),
        ]

    # Overview

    async def _overview(self, request: Request) -> Response:
        span = _parse_span(request)
        return self._renderer.page(
            request,
            "overview",
            page=await self._overview_fragments(mount_path(request), span),
            events=f"/events/overview?span={span.name}",
            context={"span": span, "spans": list(SPANS.values())},
        )

    async def _overview_events(self, request: Request) -> Response:
        span, base = _parse_span(request), mount_path(request)
        return await self._renderer.event_stream(
            request, f"overview {span.name}", lambda: self._overview_fragments(base, span)
        )

    async def _overview_fragments(self, base: str, span: ChartSpan) -> PageFragments:
        counts = await self._operator.counts()
        current = counts, self._chart_end(span)
        data = await self._queries[span.name].get(
            is_stale=lambda data: (data.counts, data.throughput.until) != current
        )
        points = chart_points(data.throughput.buckets, self._history.samples, span.width)
        finished = sum(point.completed + point.failed + point.cancelled for point in points)
        contexts: dict[str, Mapping[str, object]] = {
            "missing_keys": {"missing_keys": await self._all_missing_keys()},
            "counts": {"counts": counts, "base": base},
            "finished_chart": {"points": points, "span": span},
            "active_chart": {"points": points, "span": span},
            "applications": {"base": base, "found": await self._applications.get()},
            "facts": {"base": base, "data": data, "finished": finished, "span": span},
        }
        return PageFragments(
            {name: self._renderer.fragment(name, name, each) for name, each in contexts.items()}
        )

    async def _all_missing_keys(self) -> dict[str, list[str]]:
        """Return the ids of missing keys by application, in the same order each time."""
        found: dict[str, Collection[str]] = {**self._keys.missing_keys}
        if self._missing_keys is not None:
            found[self._missing_keys.application] = await self._search.get()
        return {application: sorted(ids) for application, ids in sorted(found.items()) if ids}

    async def _search_missing_keys(self) -> Collection[str]:
        return () if self._missing_keys is None else await self._missing_keys.search(now=self._clock())

    def _chart_end(self, span: ChartSpan) -> Micros:
        """Return the end of the current interval. It is a multiple of the width, so intervals never shift."""
        return (self._clock() // span.width + 1) * span.width

    async def _query(self, span: ChartSpan) -> _OverviewData:
        end = self._chart_end(span)
        counts, throughput, claimed, claims, oldest_queued, oldest_open_question = await asyncio.gather(
            self._operator.counts(),
            self._operator.throughput(span.width * span.buckets, buckets=span.buckets, until=end),
            self._operator.claimed_count(),
            self._operator.claims(),
            self._operator.oldest_queued(),
            self._operator.oldest_open_question(),
        )
        return _OverviewData(
            counts=counts,
            throughput=throughput,
            claimed=claimed,
            workers=len(group_by_worker(claims, self._clock())),
            oldest_queued=oldest_queued,
            oldest_open_question=oldest_open_question,
        )

    # Workers

    async def _workers(self, request: Request) -> Response:
        page = await self._workers_fragments(mount_path(request))
        return self._renderer.page(request, "workers", page=page, events="/events/workers")

    async def _workers_events(self, request: Request) -> Response:
        base = mount_path(request)
        return await self._renderer.event_stream(request, "workers", lambda: self._workers_fragments(base))

    async def _workers_fragments(self, base: str) -> PageFragments:
        total, claims = await self._operator.claimed_count(), await self._operator.claims()
        active = await self._operator.tasks(statuses=ACTIVE_STATUSES, limit=MAX_CLAIMS_SHOWN)
        is_idle = not (claims or active.tasks)
        workers = {
            "workers": group_by_worker(claims, self._clock()),
            "counted": len(claims),
            "total": total,
            "has_no_tasks": is_idle and not any((await self._operator.counts()).values()),
        }
        shown = {
            "claims": claims[:MAX_CLAIMS_SHOWN],
            "names": {task.task_id: task.name for task in active.tasks},
            "total": total,
            "base": base,
        }
        return PageFragments(
            {
                "workers": self._renderer.fragment("workers", "workers", workers),
                "claims": self._renderer.fragment("claims", "claims", shown),
            }
        )


def _parse_span(request: Request) -> ChartSpan:
    span = SPANS.get(request.query_params.get("span", "10m"))
    if span is None:
        raise HTTPException(404, f"Unknown time span. Use one of {', '.join(SPANS)}.")
    return span
