"""The first page: how everything is, and how it was of late; and the page of workers and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..operating import Operator, Row, Throughput
from ..operating import stats as counted
from ..storage import Micros
from ..storage.clock import SECOND
from ..tasks import Status
from .cache import Kept
from .charts import Moment, Sampler, moments_of
from .live import Screen
from .renderer import Site
from .security import base_of

MOST_LEASES = 200


class Span(msgspec.Struct, frozen=True):
    """How far back a chart goes, and in what steps."""

    name: str
    label: str
    width: Micros
    parts: int
    step: str


SPANS = {
    span.name: span
    for span in (
        Span("10m", "10 minutes", 10 * SECOND, 60, "10 seconds"),
        Span("1h", "1 hour", 60 * SECOND, 60, "minute"),
        Span("24h", "24 hours", 1800 * SECOND, 48, "half hour"),
    )
}


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes a long look to know."""

    counts: Mapping[Status, int]
    throughput: Throughput
    held: int
    workers: int
    """Those that hold the newest 1 000."""
    waiting: Row | None
    asking: Row | None


class OverviewPages:
    def __init__(self, site: Site, operator: Operator, sampler: Sampler, clock: Callable[[], Micros]) -> None:
        self._site = site
        self._operator = operator
        self._sampler = sampler
        self._clock = clock
        self._told = {span.name: Kept(partial(self._look, span)) for span in SPANS.values()}

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._overview),
            Route("/events/overview", self._overview_events),
            Route("/workers", self._workers),
            Route("/events/workers", self._workers_events),
        ]

    # How everything is

    async def _overview(self, request: Request) -> Response:
        span = _span_in(request)
        return self._site.page(
            request,
            "overview",
            screen=await self._overview_screen(base_of(request), span),
            events=f"/events/overview?span={span.name}",
            context={"span": span, "spans": list(SPANS.values())},
        )

    async def _overview_events(self, request: Request) -> Response:
        span, base = _span_in(request), base_of(request)
        return await self._site.updates(
            request, f"overview {span.name}", lambda: self._overview_screen(base, span)
        )

    async def _overview_screen(self, base: str, span: Span) -> Screen:
        counts = await self._operator.counts()
        told = await self._lately(span, counts)
        moments = moments_of(told.throughput.buckets, self._sampler.samples, span.width)
        contexts: dict[str, Mapping[str, object]] = {
            "counts": {"counts": counts, "base": base},
            "finished_chart": {"moments": moments, "span": span},
            "active_chart": {"moments": moments, "span": span},
            "facts": {"base": base, "told": told, "ended": _ended_in(moments), "span": span},
        }
        return Screen({name: self._site.piece(name, name, each) for name, each in contexts.items()})

    async def _lately(self, span: Span, counts: Mapping[Status, int]) -> _Told:
        """What a long look told of the steps up to the one that goes on now, and of as many tasks."""
        now = counts, self._end(span)
        return await self._told[span.name].told(
            unless=lambda told: (told.counts, told.throughput.until) != now
        )

    def _end(self, span: Span) -> Micros:
        """A whole step, so that a column stands for the same stretch of time whenever it is drawn."""
        return (self._clock() // span.width + 1) * span.width

    async def _look(self, span: Span) -> _Told:
        end = self._end(span)
        counts, throughput, held, leases, waiting, asking = await asyncio.gather(
            self._operator.counts(),
            self._operator.throughput(span.width * span.parts, parts=span.parts, until=end),
            self._operator.held(),
            self._operator.leases(),
            self._operator.oldest_waiting(),
            self._operator.oldest_asking(),
        )
        return _Told(
            counts=counts,
            throughput=throughput,
            held=held,
            workers=len(counted.workers_of(leases, self._clock())),
            waiting=waiting,
            asking=asking,
        )

    # Who works

    async def _workers(self, request: Request) -> Response:
        screen = await self._workers_screen(base_of(request))
        return self._site.page(request, "workers", screen=screen, events="/events/workers")

    async def _workers_events(self, request: Request) -> Response:
        base = base_of(request)
        return await self._site.updates(request, "workers", lambda: self._workers_screen(base))

    async def _workers_screen(self, base: str) -> Screen:
        total, leases = await self._operator.held(), await self._operator.leases()
        workers = {
            "workers": counted.workers_of(leases, self._clock()),
            "looked": len(leases),
            "total": total,
        }
        held = {"leases": leases[:MOST_LEASES], "total": total, "base": base}
        return Screen(
            {
                "workers": self._site.piece("workers", "workers", workers),
                "claims": self._site.piece("claims", "claims", held),
            }
        )


def _span_in(request: Request) -> Span:
    span = SPANS.get(request.query_params.get("span", "10m"))
    if span is None:
        raise HTTPException(404, f"There are charts of {', '.join(SPANS)}.")
    return span


def _ended_in(moments: list[Moment]) -> int:
    return sum(moment.completed + moment.failed + moment.cancelled for moment in moments)
