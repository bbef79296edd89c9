"""What a task costs over HTTP: a call creates it, and the client polls until it has ended.

Each server is a separate process on loopback; the client is the measuring process. The baseline is the
official SDK's own server, which responds to as many plain calls as the task took requests, and stores
nothing. `fastmcp-tasks`, with its queue in memory, is measured too. The tool does nothing, and the client
polls without a pause. Only the last number is of a client that keeps to the server's poll interval.
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

from ..report import InfoTable, ResultRow, Results, Target, at_least, at_most
from ..timing import Seconds
from .apps import a_second, docket, durable, plain
from .client import Run, call, collect
from .server_process import Server

BASELINE, SQLITE, MEMORY = "plain calls", "SQLite", "memory"
DOCKET, DOCKET_ON_REDIS = "fastmcp-tasks in memory", "fastmcp-tasks on Redis"

OVER_BASELINE = at_most(1.3)
OVER_DOCKET = at_least(2.5)
BUSY = 0.8
"""The share of a core above which the client limits the numbers."""
SEEN_WITHIN = 1.3
"""Seconds in which a client that keeps to the poll interval sees the end of a job of one second."""

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


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks per round at each concurrency, the number of rounds, and of jobs of one second."""

    tasks: dict[int, int]
    rounds: int
    jobs: int
    redis: str | None = None
    """The URL of a Redis, to measure fastmcp-tasks with it too."""


RunsByServer: TypeAlias = dict[str, list[Run]]
"""The runs of each server at one concurrency, by round."""


async def measure(folder: Path, workload: Workload) -> Results:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(server) for name, server in _servers(folder, workload).items()}
        runs_by_concurrency = {
            concurrency: await _run_all(servers, number, concurrency, workload.rounds)
            for concurrency, number in workload.tasks.items()
        }
        jobs = await _follow(servers[SQLITE], workload.jobs)
    rows = [row for each in runs_by_concurrency.items() for row in _rows(*each)]
    cells = [row for each in runs_by_concurrency.items() for row in _cells(*each)]
    table = InfoTable(text=EXPLAINED, headings=HEADINGS, rows=tuple(cells))
    return Results(rows=[*rows, _job_row(jobs)], tables=[table])


def _servers(folder: Path, workload: Workload) -> dict[str, Server]:
    servers = {
        BASELINE: Server(plain),
        SQLITE: Server(durable, f"sqlite:///{folder / 'wire.db'}"),
        MEMORY: Server(durable, "memory:"),
        DOCKET: Server(docket, "memory://"),
    }
    return servers if workload.redis is None else {**servers, DOCKET_ON_REDIS: Server(docket, workload.redis)}


# Running


async def _run_all(servers: dict[str, Server], number: int, concurrency: int, rounds: int) -> RunsByServer:
    """Run each server once per round; every second round in reverse order."""
    warm = await collect(servers[SQLITE], number, concurrency)

    def run(name: str) -> Awaitable[Run]:
        if name == BASELINE:
            return call(servers[name], warm.requests, concurrency)
        return collect(servers[name], number, concurrency)

    for name in servers:
        await run(name)
    by_server: RunsByServer = {name: [] for name in servers}
    for turn in range(rounds):
        for name in reversed(servers) if turn % 2 else servers:
            by_server[name].append(await run(name))
    return by_server


# Judging


def _rows(concurrency: int, by_server: RunsByServer) -> list[ResultRow]:
    subjects = [name for name in by_server if name != BASELINE]
    rows = [
        _over_baseline(name, concurrency, by_server, OVER_BASELINE if name == SQLITE else None)
        for name in subjects
    ]
    rows += [_cpu_over_baseline(name, concurrency, by_server) for name in subjects]
    rivals = [name for name in subjects if name not in (SQLITE, MEMORY)]
    rows += [
        _over_rival(name, rival, concurrency, by_server, OVER_DOCKET if rival == DOCKET else None)
        for rival in rivals
        for name in (SQLITE, MEMORY)
    ]
    return [*rows, _client_row(concurrency, by_server)]


def _over_baseline(name: str, concurrency: int, by_server: RunsByServer, target: Target | None) -> ResultRow:
    """Compare the time of a task with that of as many plain calls, in the same round, as it took requests."""
    runs, baselines = by_server[name], by_server[BASELINE]
    ratios = [
        run.wall / (run.requests * baseline.each) for run, baseline in zip(runs, baselines, strict=True)
    ]
    requests = _mean_requests(runs)
    return ResultRow(
        what=f"wire, {concurrency} at once, {name}: a task / as many plain calls",
        baseline=f"{requests:.1f} in {_ms(requests * _each(baselines))} ms",
        subject=f"{_ms(_each(runs))} ms {_spread(ratios)}",
        ratio=median(ratios),
        target=target,
    )


def _cpu_over_baseline(name: str, concurrency: int, by_server: RunsByServer) -> ResultRow:
    """Compare the CPU time of the server, which depends less on other load and does not include the disk."""
    runs, baselines = by_server[name], by_server[BASELINE]
    ratios = [
        run.server / run.requests / (baseline.server / baseline.requests)
        for run, baseline in zip(runs, baselines, strict=True)
    ]
    requests = _mean_requests(runs)
    return ResultRow(
        what=f"wire, {concurrency} at once, {name}: CPU of a task / of as many plain calls",
        baseline=f"{requests:.1f} in {_ms(requests * _cpu(baselines))} ms",
        subject=f"{_ms(_cpu(runs))} ms {_spread(ratios)}",
        ratio=median(ratios),
    )


def _over_rival(
    name: str, rival: str, concurrency: int, by_server: RunsByServer, target: Target | None
) -> ResultRow:
    ratios = [theirs.each / ours.each for ours, theirs in zip(by_server[name], by_server[rival], strict=True)]
    return ResultRow(
        what=f"wire, {concurrency} at once, tasks per second: {name} / {rival}",
        baseline=f"{1 / _each(by_server[rival]):,.0f}/s",
        subject=f"{1 / _each(by_server[name]):,.0f}/s {_spread(ratios)}",
        ratio=median(ratios),
        target=target,
    )


def _client_row(concurrency: int, by_server: RunsByServer) -> ResultRow:
    """Return the client's largest share of a core, over all servers."""
    share, name = max((_client_share(runs), name) for name, runs in by_server.items())
    return ResultRow(
        what=f"wire, {concurrency} at once, the driver is not what limits: its CPU / allowed",
        baseline=f"{BUSY:.2f} of a core",
        subject=f"{share:.2f}, with {name}",
        ratio=share / BUSY,
        target=at_most(1),
    )


def _cells(concurrency: int, by_server: RunsByServer) -> list[tuple[str, ...]]:
    return [_server_cells(name, concurrency, runs) for name, runs in by_server.items()]


def _server_cells(name: str, concurrency: int, runs: Sequence[Run]) -> tuple[str, ...]:
    return (
        name,
        str(concurrency),
        f"{1 / _each(runs):,.0f}",
        f"{_mean_requests(runs):.2f}",
        _percentiles([each for run in runs for each in run.calls]),
        _percentiles([each for run in runs for each in run.gets]),
        f"{_ms(_cpu(runs))} ms",
        f"{_client_share(runs):.2f}",
    )


def _each(runs: Sequence[Run]) -> float:
    return median(run.each for run in runs)


def _cpu(runs: Sequence[Run]) -> float:
    return median(run.server / run.number for run in runs)


def _mean_requests(runs: Sequence[Run]) -> float:
    return sum(run.requests for run in runs) / sum(run.number for run in runs)


def _client_share(runs: Sequence[Run]) -> float:
    return median(run.driver / run.wall for run in runs)


def _spread(ratios: Sequence[float]) -> str:
    return f"(ratio {min(ratios):.2f} to {max(ratios):.2f})"


def _percentiles(seconds: Seconds) -> str:
    if not seconds:
        return ""
    return f"{_ms(median(seconds))}, {_ms(quantiles(seconds, n=20)[-1])}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.2f}"


# A client that keeps to the poll interval


async def _follow(server: Server, number: int) -> Seconds:
    """Measure how long a job of one second takes for perdure's client."""
    seconds: Seconds = []
    async with Client(server.url, extensions=[ClientTasks()]) as client:
        for _ in range(number + 1):
            started = monotonic()
            result = await client.call_tool(a_second.__name__)
            seconds.append(monotonic() - started)
            assert not result.is_error, result
    return seconds[1:]  # the first call also fetched the output schema of the tool


def _job_row(seconds: Seconds) -> ResultRow:
    return ResultRow(
        what="wire, SQLite, a job of 1 s seen by a client that polls as advised: "
        f"worst of {len(seconds)} / allowed",
        baseline=f"{SEEN_WITHIN:g} s",
        subject=f"{max(seconds):.2f} s (median: {median(seconds):.2f})",
        ratio=max(seconds) / SEEN_WITHIN,
        target=at_most(1),
    )
