"""The storm: starts replicas and workers, kills them, and lets clients call the tools all the time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import msgspec

from perdure.operating import Operator
from perdure.storage import Storage, open_storage
from perdure.storage.kit.servers.process import free_port
from perdure.storage.time_types import system_clock
from perdure.tasks import Snapshot, TaskRecord
from perdure.tasks.stored_task import TASKS

from ...conditions import wait_until
from ...fork_server import STDOUT, ForkedProcess, spawn
from ...mcp.raw_clients import Answer, Client2026, is_open
from . import journal, tool_server
from .checks import Call, Claim, Evidence, role_of

ROOT = Path(__file__).parents[3]
CAST = ("replica", "replica", "full", "full", "partial")
CLIENTS = 12
CALLED_WITHIN = 120.0
"""Seconds after which a call that has no result is called lost."""
STOPPED_WITHIN = 60.0
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
        await _strike(plan, processes)
        clients.is_over = processes.is_over = True
        await asyncio.gather(*calling)
        watching.cancel()
        await processes.stop_all()
        return Evidence(
            calls=clients.calls,
            tasks=await _all_tasks(storage),
            events=journal.read(plan.folder),
            claims=claims,
            complaints=[*processes.complaints, *clients.complaints, *(await storage.maintain()).findings],
            kills=processes.kills,
            stops=processes.stops,
        )


async def _strike(plan: Plan, processes: Processes) -> None:
    """Kill processes, or ask them to stop. On a slow machine, continue until the storm met what it is for."""
    chance = Random(f"strikes {plan.seed}")
    for number in range(5 * plan.kills):
        if number >= plan.kills and has_met_enough(journal.read(plan.folder)):
            return
        await asyncio.sleep(plan.seconds / plan.kills * chance.uniform(0.5, 1.5))
        processes.strike(chance)


def has_met_enough(events: list[journal.Event]) -> bool:
    """Return whether workers of both kinds ran tasks, and some tasks were started again."""
    started = [event for event in events if isinstance(event, journal.Started)]
    again = {event.task for event in started if event.attempt > 1}
    return len(again) >= 2 and {role_of(event.process) for event in started} >= {"full", "partial"}


async def _watch_claims(storage: Storage, processes: Processes, claims: list[Claim]) -> None:
    """Note who has claimed which task, a few times a second."""
    operator, seen = Operator(storage), set[str]()
    while True:
        for claim in await operator.claims():
            pid = int(claim.worker.rsplit("-", 2)[1])
            if claim.claim_id not in seen and pid in processes.names:
                seen.add(claim.claim_id)
                claims.append(Claim(process=processes.names[pid], task=claim.task_id))
        await asyncio.sleep(0.2)


async def _all_tasks(storage: Storage) -> dict[str, TaskRecord]:
    found: dict[str, TaskRecord] = {}
    after = None
    while records := await storage.page(TASKS, after=after, limit=200, now=system_clock()):
        found |= {record.key: Snapshot.from_record(record).task for record in records}
        after = records[-1].position
    return found


class Processes:
    """The replicas and the workers. One that ends is replaced, until the storm is over."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ports = [free_port() for role in CAST if role == "replica"]
        self._running: dict[str, ForkedProcess] = {}
        self._asked: set[str] = set()
        self._attendants: list[asyncio.Task[None]] = []
        self.names: dict[int, str] = {}
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
        name = f"{role}-{len(self.names) + 1}"
        module = self._plan.partial if role == "partial" else "full"
        server = f"{PREFIX}.{module}:server"
        command = ("worker", server) if port is None else ("serve", server, "--no-work", "--no-dashboard")
        options = () if port is None else ("--port", str(port))
        variables = {
            tool_server.URL: self._plan.url,
            tool_server.FOLDER: str(self._plan.folder),
            tool_server.PROCESS: name,
        }
        with (self._plan.folder / f"{name}.txt").open("wb") as said:
            process = await spawn(
                *("-m", "perdure.cli", *command, *options),
                cwd=ROOT,
                env={**os.environ, **variables},
                stdout=said,
                stderr=STDOUT,
            )
        self._running[name] = process
        self.names[process.pid] = name
        self._attendants.append(asyncio.create_task(self._replace(name, role, port)))

    async def _replace(self, name: str, role: str, port: int | None) -> None:
        code = await self._running[name].wait()
        del self._running[name]
        if code != -signal.SIGKILL and not (name in self._asked and code in (0, -signal.SIGTERM)):
            said = (self._plan.folder / f"{name}.txt").read_text(errors="replace")
            self.complaints.append(f"{name} ended with {code}: {said[-2000:]}")
        if not self.is_over:
            await self._start(role, port)

    def strike(self, chance: Random) -> None:
        """Kill a process or, one time in five, ask it to stop as a redeploy does."""
        victims = [name for name in self._running if name not in self._asked]
        if not victims:
            return
        victim = chance.choice(victims)
        if chance.random() < 0.2:
            self.stops += 1
            self._asked.add(victim)
            self._running[victim].send_signal(signal.SIGTERM)
        else:
            self.kills += 1
            self._running[victim].kill()

    async def stop_all(self) -> None:
        """Ask all processes to stop, and see that they do."""
        for name, process in list(self._running.items()):
            self._asked.add(name)
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOPPED_WITHIN):
                await asyncio.gather(*self._attendants)
        except TimeoutError:
            self.complaints.append(f"asked to stop, and did not: {sorted(self._running)}")


class Clients:
    """Callers that each start one task after another, and wait for its result, through any replica."""

    def __init__(self, urls: list[str], seed: int) -> None:
        self._urls = urls
        self._chance = Random(f"clients {seed}")
        self.calls: list[Call] = []
        self.complaints: list[str] = []
        self.is_over = False

    async def call_repeatedly(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self._chance.uniform(0, 0.2))
            number = self._chance.getrandbits(40)
            try:
                async with asyncio.timeout(CALLED_WITHIN):
                    await self._call(self._chance.choice(tool_server.TOOLS), number)
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
