"""The scenario: starts replicas and workers, kills them, and lets clients call the tools all the time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import httpx2
import msgspec

from perdure.operating import Operator
from perdure.storage import Storage, open_storage
from perdure.storage.kit.servers.process import free_port
from perdure.storage.time_types import system_clock
from perdure.tasks import Snapshot, TaskRecord
from perdure.tasks.task_snapshot import LEASES, TASKS

from ...conditions import poll_until, wait_until
from ...fork_server import STDOUT, ForkedProcess, spawn
from ...mcp.raw_clients import Answer, Client2025, Client2026, is_open
from . import journal, tool_server
from .checks import CUT_OFF, Call, Claim, Evidence, WaitingCall, find_missing

ROOT = Path(__file__).parents[3]
CAST = ("replica", "replica", "full", "full", "partial")
CLIENTS = 12
CALLED_WITHIN = 120.0
"""Seconds after which a call that has no result is called lost."""
STOPPED_WITHIN = 60.0
WAITING = 1 / 3
"""The part of the calls whose clients have no tasks and send no key."""
PREFIX = "tests.cli.elsewhere"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to happen."""

    url: str
    folder: Path
    """For the journals, and for what the processes print."""
    seed: int
    seconds: float
    kills: int
    partial: str = "partial"
    """The module of the server that the worker runs which lacks a tool."""


async def run(plan: Plan) -> Evidence:
    plan.folder.mkdir(parents=True, exist_ok=True)
    async with await open_storage(plan.url) as storage, Processes(plan).running() as processes:
        await processes.until_open()
        clients = Clients(processes.urls, plan.seed)
        claims: list[Claim] = []
        watching = asyncio.create_task(_watch_claims(storage, processes, claims))
        calling = [asyncio.create_task(clients.call_repeatedly()) for _ in range(CLIENTS)]
        await _strike(plan, processes, lambda: _collect(plan, storage, processes, clients, claims))
        clients.stop()
        await asyncio.gather(*calling)
        left = await _leases_after_a_while(storage)
        watching.cancel()
        await processes.stop_all()
        return msgspec.structs.replace(
            await _collect(plan, storage, processes, clients, claims),
            leases=[*left, *(await _leases(storage))],
            complaints=[*processes.complaints, *clients.complaints, *(await storage.maintain()).findings],
        )


async def _collect(
    plan: Plan, storage: Storage, processes: Processes, clients: Clients, claims: list[Claim]
) -> Evidence:
    """Return what has happened so far."""
    tasks = await _all_tasks(storage)
    return Evidence(
        calls=clients.calls,
        waiting_calls=clients.waiting_calls,
        tasks=tasks,
        events=journal.read(plan.folder),
        claims=claims,
        attended={
            task.task_id: processes.name_of(task.attended_by)
            for task in tasks.values()
            if task.attended_by is not None
        },
        struck=processes.struck,
        ended=processes.ended,
        leases=[],
        complaints=[],
        kills=processes.kills,
        stops=processes.stops,
    )


async def _leases_after_a_while(storage: Storage) -> list[str]:
    """Return the leases that the workers do not remove, although all calls have ended."""
    with suppress(TimeoutError):
        return await poll_until(partial(_leases, storage), lambda found: not found, STOPPED_WITHIN)
    return await _leases(storage)


async def _leases(storage: Storage) -> list[str]:
    records = await storage.page(LEASES, limit=200, now=system_clock())
    return [f"a lease of {record.key}, {record.tag}" for record in records]


async def _strike(plan: Plan, processes: Processes, collect: Callable[[], Awaitable[Evidence]]) -> None:
    """Kill processes, or ask them to stop, until everything has happened that the checks are about."""
    chance = Random(f"strikes {plan.seed}")
    for number in range(5 * plan.kills):
        await asyncio.sleep(plan.seconds / plan.kills * chance.uniform(0.5, 1.5))
        victims = processes.running_names()
        if number >= plan.kills:
            evidence = await collect()
            missing = find_missing(evidence)
            if not missing:
                return
            if CUT_OFF in missing:  # on a slow machine, replicas may be struck before a call waits in them
                victims = [name for name in victims if name in _with_waiting_calls(evidence)]
        processes.strike(chance, victims)


def _with_waiting_calls(evidence: Evidence) -> set[str]:
    """Return the processes in which a call waits for a task that has not ended."""
    active = {task.task_id for task in evidence.tasks.values() if not task.is_terminal}
    return {process for task, process in evidence.attended.items() if task in active}


async def _watch_claims(storage: Storage, processes: Processes, claims: list[Claim]) -> None:
    """Note who has claimed which task, a few times a second."""
    operator, seen = Operator(storage), set[str]()
    while True:
        for claim in await operator.claims():
            if claim.claim_id not in seen:
                seen.add(claim.claim_id)
                claims.append(Claim(process=processes.name_of(claim.worker), task=claim.task_id))
        await asyncio.sleep(0.2)


async def _all_tasks(storage: Storage) -> dict[str, TaskRecord]:
    found: dict[str, TaskRecord] = {}
    after = None
    while records := await storage.page(TASKS, after=after, limit=200, now=system_clock()):
        found |= {record.key: Snapshot.from_record(record).task for record in records}
        after = records[-1].position
    return found


class Processes:
    """The replicas and the workers. One that ends is replaced, until the scenario ends."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ports = [free_port() for role in CAST if role == "replica"]
        self._running: dict[str, ForkedProcess] = {}
        self._asked: set[str] = set()
        self._attendants: list[asyncio.Task[None]] = []
        self._names: dict[int, str] = {}
        self.struck: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.complaints: list[str] = []
        self.is_over = False
        self.kills = self.stops = 0

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}/mcp" for port in self._ports]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Processes]:
        ports = iter(self._ports)
        try:
            for role in CAST:
                await self._start(role, next(ports) if role == "replica" else None)
            yield self
        finally:
            self.is_over = True
            for process in self._running.values():
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*self._attendants, return_exceptions=True)

    async def until_open(self) -> None:
        for port in self._ports:
            await wait_until(partial(is_open, port), seconds=STOPPED_WITHIN)

    async def _start(self, role: str, port: int | None) -> None:
        name = f"{role}-{len(self._names) + 1}"
        module = self._plan.partial if role == "partial" else "full"
        server = f"{PREFIX}.{module}:server"
        command = ("worker", server) if port is None else ("serve", server, "--no-work", "--no-dashboard")
        options = () if port is None else ("--port", str(port))
        variables = {
            tool_server.URL: self._plan.url,
            tool_server.FOLDER: str(self._plan.folder),
            tool_server.PROCESS: name,
        }
        with (self._plan.folder / f"{name}.txt").open("wb") as output:
            process = await spawn(
                *("-m", "perdure.cli", *command, *options),
                cwd=ROOT,
                env={**os.environ, **variables},
                stdout=output,
                stderr=STDOUT,
            )
        self._running[name] = process
        self._names[process.pid] = name
        self._attendants.append(asyncio.create_task(self._replace(name, role, port)))
        if self.is_over:
            self._ask_to_stop(name)

    def name_of(self, worker: str) -> str:
        """Return the name of the process that leases and tasks call so."""
        return self._names[int(worker.rsplit("-", 2)[1])]

    async def _replace(self, name: str, role: str, port: int | None) -> None:
        code = await self._running[name].wait()
        self.ended[name] = journal.now()
        del self._running[name]
        if code != -signal.SIGKILL and not (name in self._asked and code in (0, -signal.SIGTERM)):
            output = (self._plan.folder / f"{name}.txt").read_text(errors="replace")
            self.complaints.append(f"{name} ended with {code}: {output[-2000:]}")
        if not self.is_over:
            await self._start(role, port)

    def running_names(self) -> list[str]:
        """Return the processes that run and were not asked to stop."""
        return [name for name in self._running if name not in self._asked]

    def strike(self, chance: Random, victims: list[str]) -> None:
        """Kill one of these processes or, one time in five, ask it to stop as a redeploy does."""
        if not victims:
            return
        victim = chance.choice(victims)
        if chance.random() < 0.2:
            self.stops += 1
            self._ask_to_stop(victim)
        else:
            self.kills += 1
            self.struck[victim] = journal.now()
            self._running[victim].kill()

    def _ask_to_stop(self, name: str) -> None:
        self._asked.add(name)
        self.struck[name] = journal.now()
        self._running[name].send_signal(signal.SIGTERM)

    async def stop_all(self) -> None:
        """Ask all processes to stop, and see that they do."""
        self.is_over = True
        for name in self._running.keys() - self._asked:
            self._ask_to_stop(name)
        try:
            async with asyncio.timeout(STOPPED_WITHIN):
                while not all(each.done() for each in self._attendants):  # one may just start another process
                    await asyncio.wait(self._attendants)
        except TimeoutError:
            self.complaints.append(f"asked to stop, and did not: {sorted(self._running)}")


class Clients:
    """Callers that each start one task after another, and wait for its result.

    Most of them know tasks, repeat a call that was not acknowledged, and wait through any replica. The others
    wait for the answer of a call.
    """

    def __init__(self, urls: list[str], seed: int) -> None:
        self._urls = urls
        self._chance = Random(f"clients {seed}")
        self.calls: list[Call] = []
        self.waiting_calls: list[WaitingCall] = []
        self.complaints: list[str] = []
        self._waiting: list[anyio.CancelScope] = []
        self._is_over = False

    def stop(self) -> None:
        """Start no calls, and give up those that wait."""
        self._is_over = True
        for each in self._waiting:
            each.cancel()

    async def call_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0, 0.2))
            if self._is_over:
                return
            number = self._chance.getrandbits(40)
            try:
                async with asyncio.timeout(CALLED_WITHIN):
                    tool = self._chance.choice(tool_server.TOOLS)
                    if self._chance.random() < WAITING:
                        await self._call_and_wait(tool, number)
                    else:
                        await self._call(tool, number)
            except TimeoutError:
                self.complaints.append(f"the call {number} got no result in {CALLED_WITHIN:g} seconds")

    async def _call(self, tool: str, number: int) -> None:
        key = f"key {number}"
        meta = {"perdure/idempotencyKey": key}
        call = {"name": tool, "arguments": {"number": number}, "_meta": meta}
        created = await self._send("tools/call", call)
        place = len(self.calls)
        self.calls.append(Call(key=key, tool=tool, number=number, task=created["taskId"]))
        while True:
            await asyncio.sleep(self._chance.uniform(0.1, 0.4))
            seen = await self._send("tasks/get", {"taskId": created["taskId"]})
            if seen["status"] not in ("working", "input_required"):
                break
        text = seen["result"]["content"][0]["text"] if seen["status"] == "completed" else None
        self.calls[place] = msgspec.structs.replace(self.calls[place], result=text)

    async def _call_and_wait(self, tool: str, number: int) -> None:
        place, call = len(self.waiting_calls), WaitingCall(tool=tool, number=number)
        self.waiting_calls.append(call)
        with anyio.CancelScope() as scope:
            self._waiting.append(scope)
            call = await self._answered(call)
        self._waiting.remove(scope)
        self.waiting_calls[place] = msgspec.structs.replace(call, is_given_up=scope.cancelled_caught)

    async def _answered(self, call: WaitingCall) -> WaitingCall:
        """Call once. A client that is cancelled leaves, as real ones do."""
        arguments = {"number": call.number, "pages": self._chance.choice((0, 0, tool_server.LONG))}
        url = self._chance.choice(self._urls)
        try:
            if self._chance.random() < 0.5:
                async with Client2026(url) as client:
                    answer = await client.call(call.tool, arguments, declared=False)
            else:
                async with Client2025(url) as client:
                    try:
                        answer = await client.call(call.tool, arguments)
                    except asyncio.CancelledError:
                        with anyio.move_on_after(5, shield=True), suppress(httpx2.HTTPError):
                            await client.end()
                        raise
        except (httpx2.HTTPError, ValueError, AssertionError) as error:  # the replica is killed, or starts
            return msgspec.structs.replace(call, error=f"{type(error).__name__}: {error}")
        if "result" not in answer.message:  # an error, or the 503 of a replica that stops
            return msgspec.structs.replace(call, error=f"{answer.status}: {answer.message}")
        return msgspec.structs.replace(call, result=answer.result["content"][0]["text"])

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request to one replica after another, until one of them answers."""
        while True:
            answer = await self._try(self._chance.choice(self._urls), method, params)
            if answer is not None and "result" in answer.message:
                return answer.result
            if answer is not None and answer.message.get("error", {}).get("code") == -32602:
                self.complaints.append(f"{method} {params}: {answer.error}")
            await asyncio.sleep(0.1)

    async def _try(self, url: str, method: str, params: dict[str, Any]) -> Answer | None:
        try:
            async with Client2026(url) as client:
                return await client.send(method, params)
        except (httpx2.HTTPError, ValueError):  # the replica is killed, or starts
            return None
