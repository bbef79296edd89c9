"""What a task costs a client over HTTP: created by a call, and asked for until it has ended.

Each server has a process of its own, on loopback; the driver is the measuring process. The floor is the
official SDK's own server, which answers as many plain calls as the task took requests, and keeps nothing.
Beside it runs `fastmcp-tasks`, with its queue in memory. The tool does nothing, and the driver asks again at
once: nobody's advice on when to look is in these numbers, but in the last one, of a client that follows it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from time import monotonic
from typing import TypeAlias

import msgspec
from mcp.client import Client

from perdure.mcp.client import ClientTasks

from ..report import Findings, Line, Sheet, Target, at_least, at_most
from ..timing import Seconds
from .apps import a_second
from .client import Run, call, collect
from .docket import docket
from .durable import durable
from .plain import plain
from .server_process import Server

FLOOR, SQLITE, MEMORY = "plain calls", "SQLite", "memory"
DOCKET, DOCKET_ON_REDIS = "fastmcp-tasks in memory", "fastmcp-tasks on Redis"

OVER_FLOOR = at_most(1.3)
OVER_DOCKET = at_least(2.5)
BUSY = 0.8
"""Of a core: a driver that takes more is what limits the numbers."""
SEEN_WITHIN = 1.3
"""Seconds in which a client that does as it is advised sees the end of a job of one second."""

HEADINGS = (
    "server",
    "at once",
    "per second",
    "requests",
    "tools/call p50, p95",
    "tasks/get p50, p95",
    "server's CPU",
    "driver's CPU",
)
EXPLAINED = (
    "The servers of the wire, by the median of the rounds. Counted per second are tasks, and of one task "
    "are the requests and the server's CPU; in the row of plain calls it is calls. Times of requests are in "
    "milliseconds, over all rounds. The driver's CPU is its share of a core."
)


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is run: tasks of one round at each concurrency, rounds, and jobs of one second."""

    tasks: dict[int, int]
    rounds: int
    jobs: int
    redis: str | None = None
    """Where fastmcp-tasks finds a Redis, if it is to be measured with one too."""


Contest: TypeAlias = dict[str, list[Run]]
"""The runs of each server at one concurrency, round by round."""


async def measure(folder: Path, effort: Effort) -> Findings:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(server) for name, server in _servers(folder, effort).items()}
        contests = {
            concurrency: await _contest(servers, number, concurrency, effort.rounds)
            for concurrency, number in effort.tasks.items()
        }
        jobs = await _follow(servers[SQLITE], effort.jobs)
    lines = [line for each in contests.items() for line in _lines(*each)]
    rows = [row for each in contests.items() for row in _rows(*each)]
    sheet = Sheet(text=EXPLAINED, headings=HEADINGS, rows=tuple(rows))
    return Findings(lines=[*lines, _job_line(jobs)], sheets=[sheet])


def _servers(folder: Path, effort: Effort) -> dict[str, Server]:
    servers = {
        FLOOR: Server(plain),
        SQLITE: Server(durable, f"sqlite:///{folder / 'wire.db'}"),
        MEMORY: Server(durable, "memory:"),
        DOCKET: Server(docket, "memory://"),
    }
    return servers if effort.redis is None else {**servers, DOCKET_ON_REDIS: Server(docket, effort.redis)}


# Running


async def _contest(servers: dict[str, Server], number: int, concurrency: int, rounds: int) -> Contest:
    """Each server once in each round; every second round in reverse order."""
    warm = await collect(servers[SQLITE], number, concurrency)

    def run(name: str) -> Awaitable[Run]:
        if name == FLOOR:
            return call(servers[name], warm.requests, concurrency)
        return collect(servers[name], number, concurrency)

    for name in servers:
        await run(name)
    contest: Contest = {name: [] for name in servers}
    for turn in range(rounds):
        for name in reversed(servers) if turn % 2 else servers:
            contest[name].append(await run(name))
    return contest


# Judging


def _lines(concurrency: int, contest: Contest) -> list[Line]:
    subjects = [name for name in contest if name != FLOOR]
    lines = [
        _over_floor(name, concurrency, contest, OVER_FLOOR if name == SQLITE else None) for name in subjects
    ]
    lines += [_cpu_over_floor(name, concurrency, contest) for name in subjects]
    rivals = [name for name in subjects if name not in (SQLITE, MEMORY)]
    lines += [
        _over_rival(name, rival, concurrency, contest, OVER_DOCKET if rival == DOCKET else None)
        for rival in rivals
        for name in (SQLITE, MEMORY)
    ]
    return [*lines, _driver_line(concurrency, contest)]


def _over_floor(name: str, concurrency: int, contest: Contest, target: Target | None) -> Line:
    """Time of a task against that of as many plain calls, in the same round, as the task took requests."""
    runs, floors = contest[name], contest[FLOOR]
    ratios = [run.wall / (run.requests * floor.each) for run, floor in zip(runs, floors, strict=True)]
    requests = _mean_requests(runs)
    return Line(
        what=f"wire, {concurrency} at once, {name}: a task / as many plain calls",
        floor=f"{requests:.1f} in {_ms(requests * _each(floors))} ms",
        subject=f"{_ms(_each(runs))} ms {_spread(ratios)}",
        ratio=median(ratios),
        target=target,
    )


def _cpu_over_floor(name: str, concurrency: int, contest: Contest) -> Line:
    """The same in processor time of the server, which suffers less from neighbours, and waits for no disk."""
    runs, floors = contest[name], contest[FLOOR]
    ratios = [
        run.server / run.requests / (floor.server / floor.requests)
        for run, floor in zip(runs, floors, strict=True)
    ]
    requests = _mean_requests(runs)
    return Line(
        what=f"wire, {concurrency} at once, {name}: CPU of a task / of as many plain calls",
        floor=f"{requests:.1f} in {_ms(requests * _cpu(floors))} ms",
        subject=f"{_ms(_cpu(runs))} ms {_spread(ratios)}",
        ratio=median(ratios),
    )


def _over_rival(name: str, rival: str, concurrency: int, contest: Contest, target: Target | None) -> Line:
    ratios = [theirs.each / ours.each for ours, theirs in zip(contest[name], contest[rival], strict=True)]
    return Line(
        what=f"wire, {concurrency} at once, tasks per second: {name} / {rival}",
        floor=f"{1 / _each(contest[rival]):,.0f}/s",
        subject=f"{1 / _each(contest[name]):,.0f}/s {_spread(ratios)}",
        ratio=median(ratios),
        target=target,
    )


def _driver_line(concurrency: int, contest: Contest) -> Line:
    """The largest share that any server gave it to do."""
    share, name = max((_driver_share(runs), name) for name, runs in contest.items())
    return Line(
        what=f"wire, {concurrency} at once, the driver is not what limits: its CPU / allowed",
        floor=f"{BUSY:.2f} of a core",
        subject=f"{share:.2f}, with {name}",
        ratio=share / BUSY,
        target=at_most(1),
    )


def _rows(concurrency: int, contest: Contest) -> list[tuple[str, ...]]:
    return [_row(name, concurrency, runs) for name, runs in contest.items()]


def _row(name: str, concurrency: int, runs: Sequence[Run]) -> tuple[str, ...]:
    return (
        name,
        str(concurrency),
        f"{1 / _each(runs):,.0f}",
        f"{_mean_requests(runs):.2f}",
        _percentiles([each for run in runs for each in run.calls]),
        _percentiles([each for run in runs for each in run.gets]),
        f"{_ms(_cpu(runs))} ms",
        f"{_driver_share(runs):.2f}",
    )


def _each(runs: Sequence[Run]) -> float:
    return median(run.each for run in runs)


def _cpu(runs: Sequence[Run]) -> float:
    return median(run.server / run.number for run in runs)


def _mean_requests(runs: Sequence[Run]) -> float:
    return sum(run.requests for run in runs) / sum(run.number for run in runs)


def _driver_share(runs: Sequence[Run]) -> float:
    return median(run.driver / run.wall for run in runs)


def _spread(ratios: Sequence[float]) -> str:
    return f"(ratio {min(ratios):.2f} to {max(ratios):.2f})"


def _percentiles(seconds: Seconds) -> str:
    if not seconds:
        return ""
    return f"{_ms(median(seconds))}, {_ms(quantiles(seconds, n=20)[-1])}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.2f}"


# A client that looks when it is advised to


async def _follow(server: Server, number: int) -> Seconds:
    """How long a job of one second lasts, for our own client."""
    seconds: Seconds = []
    async with Client(server.url, extensions=[ClientTasks()]) as client:
        for _ in range(number + 1):
            began = monotonic()
            result = await client.call_tool(a_second.__name__)
            seconds.append(monotonic() - began)
            assert not result.is_error, result
    return seconds[1:]  # the first also looked up what the tool answers


def _job_line(seconds: Seconds) -> Line:
    return Line(
        what=f"wire, SQLite, a job of 1 s seen by who looks as advised: worst of {len(seconds)} / allowed",
        floor=f"{SEEN_WITHIN:g} s",
        subject=f"{max(seconds):.2f} s (median: {median(seconds):.2f})",
        ratio=max(seconds) / SEEN_WITHIN,
        target=at_most(1),
    )
