"""The faults of each kind that an engine may meet: each is a function that returns when the fault is over.

A disturbance ends with a quiet time, so that calls succeed between two of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeAlias, cast

import asyncpg
import msgspec

from perdure.storage import migrate_storage, open_storage
from perdure.storage.kit.servers import CREDENTIALS, Dynoxide, Postgres, Server, Valkey, ValkeyCluster

from ..storage import dynamodb_proxy
from ..storage.dynamodb_proxy import Error, Fault, Loss, conflict, proxy_to
from .proxy import HOST, Proxy
from .scenario import Setup

CLIENTS = 4
"""Storages that are open at once."""


class ScenarioState(msgspec.Struct, frozen=True):
    """Servers of our own, and a bad network before the first of them for those who want one."""

    servers: Sequence[Server]
    proxy: Proxy
    requests: dynamodb_proxy.Proxy
    """A bad network that knows DynamoDB, and answers in its place."""
    met: Counter[str]


Disturbance: TypeAlias = Callable[[ScenarioState, Random], Awaitable[None]]


# Of every engine


async def network(scene: ScenarioState, chance: Random) -> None:
    """Connections are cut, torn, reset, half closed, delayed and refused, and answers lost."""
    scene.proxy.start_faults(chance.getrandbits(32), often=chance.choice((0.01, 0.05, 0.2)))
    await asyncio.sleep(chance.uniform(0.3, 1))
    scene.proxy.stop_faults()
    for kind, number in scene.proxy.met.items():
        scene.met[f"pieces struck by a {kind}"] = number
    await asyncio.sleep(chance.uniform(0.1, 0.5))


async def restarts(scene: ScenarioState, chance: Random) -> None:
    """The server ends in good order, or is killed, and comes back. A cluster needs more time in between."""
    await asyncio.sleep(chance.uniform(0.3, 1) * len(scene.servers))
    server, is_crash = chance.choice(scene.servers), chance.random() < 0.6
    await asyncio.to_thread(server.kill if is_crash else server.stop)
    await asyncio.sleep(chance.choice((0, chance.uniform(0, 0.5))))
    await asyncio.to_thread(server.start)
    scene.met["the server was killed" if is_crash else "the server was stopped"] += 1


async def freezes(scene: ScenarioState, chance: Random) -> None:
    """The server stands still for a while. What was sent to it meanwhile, it does later."""
    await asyncio.sleep(chance.uniform(0.3, 1))
    await _freeze(scene, chance.choice(scene.servers), chance.uniform(0.2, 2.5))


async def stalls(scene: ScenarioState, chance: Random) -> None:
    """The same, for longer than any client waits."""
    await asyncio.sleep(chance.uniform(1, 3))
    await _freeze(scene, chance.choice(scene.servers), chance.uniform(13, 15))


async def _freeze(scene: ScenarioState, server: Server, seconds: float) -> None:
    frozen = [server.pid, *_children(server.pid)]
    for pid in frozen:
        _signal(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    for pid in frozen:
        _signal(pid, signal.SIGCONT)
    scene.met["the server was frozen"] += 1


def _children(pid: int) -> list[int]:
    """A PostgreSQL has a process for each connection."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _signal(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


# Of PostgreSQL

OTHERS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"


async def terminations(scene: ScenarioState, chance: Random) -> None:
    """Connections are ended, or their statements cancelled."""
    await asyncio.sleep(chance.uniform(0.01, 0.2))
    how, what = chance.choice(
        [
            ("pg_terminate_backend(pid)", "a connection was terminated"),
            ("pg_cancel_backend(pid)", "a statement was cancelled"),
        ]
    )
    some = f"AND random() < {chance.choice((0.2, 1))}"
    side = await asyncpg.connect(cast("Postgres", scene.servers[0]).url)
    try:
        scene.met[what] += len(await side.fetch(f"SELECT {how} {OTHERS} {some}"))
    finally:
        await side.close()


# Of Redis


async def kills(scene: ScenarioState, chance: Random) -> None:
    """Every connection is ended, or all of them are paused."""
    await asyncio.sleep(chance.uniform(0.02, 0.4))
    how, what = chance.choice(
        [
            (("CLIENT", "KILL", "TYPE", "normal"), "all connections were killed"),
            (("CLIENT", "KILL", "TYPE", "pubsub"), "all subscriptions were killed"),
            (("CLIENT", "PAUSE", str(chance.randint(100, 1500)), "WRITE"), "writes were paused"),
            (("CLIENT", "PAUSE", str(chance.randint(100, 1500)), "ALL"), "everything was paused"),
        ]
    )
    server = cast("Valkey", chance.choice(scene.servers))
    await asyncio.to_thread(server.send_command, *how)
    scene.met[what] += 1


# Of DynamoDB


async def throttles(scene: ScenarioState, chance: Random) -> None:
    """AWS takes no more for now, lets transactions meet, fails, and loses requests and answers."""
    often = chance.choice((0.1, 0.3, 0.6))

    def rule(operation: str, question: dict[str, Any]) -> Fault:
        return _trouble(scene, chance, operation, question) if chance.random() < often else None

    scene.requests.rule = rule
    await asyncio.sleep(chance.uniform(0.3, 1))
    scene.requests.rule = lambda _operation, _question: None
    await asyncio.sleep(chance.uniform(0.1, 0.5))


def _trouble(scene: ScenarioState, chance: Random, operation: str, question: dict[str, Any]) -> Fault:
    faults: dict[str, Fault] = {
        "requests throttled": Error("ThrottlingException"),
        "requests beyond the rate of the table": Error("ProvisionedThroughputExceededException"),
        "requests that failed inside": Error("InternalServerError", status=500),
        "requests lost": Loss.REQUEST,
        "answers lost": Loss.ANSWER,
    }
    if operation == "TransactWriteItems":
        faults["transactions that met others"] = conflict(operation, question)
        faults["transactions still in progress"] = Error("TransactionInProgressException")
    name = "answers lost" if chance.random() < 0.3 else chance.choice([*faults])
    scene.met[name] += 1
    return faults[name]


_ANYWHERE: Mapping[str, Disturbance] = {"restarts": restarts, "freezes": freezes}
DISTURBANCES: Mapping[str, Mapping[str, Disturbance]] = {
    "postgres": {**_ANYWHERE, "network": network, "terminations": terminations, "stalls": stalls},
    "redis": {**_ANYWHERE, "network": network, "kills": kills},
    "redis-cluster": {**_ANYWHERE, "kills": kills},
    "dynamodb": {**_ANYWHERE, "network": network, "throttles": throttles},
}
"""The faults for each engine. The nodes of a cluster announce their addresses, so a proxy cannot be used."""

AnyServer: TypeAlias = Postgres | Valkey | ValkeyCluster | Dynoxide
_SERVERS: Mapping[str, tuple[Callable[[], AnyServer], str]] = {
    "postgres": (Postgres, "&statement_timeout=1&lock_timeout=1"),
    "redis": (Valkey, "&timeout=1"),
    "redis-cluster": (lambda: ValkeyCluster(failure_timeout=2), "&timeout=1"),
    "dynamodb": (Dynoxide, "&timeout=1&attempts=3"),
}
"""With shorter timeouts than usual, so that they expire."""
_WITHOUT_REPEATING = {("dynamodb", "restarts"): "&timeout=1&attempts=1"}
"""AWS knows a repeated transaction by its token. This server does as well, but not after a restart."""


@asynccontextmanager
async def open_setup(engine: str, fault: str, other: AnyServer | None = None) -> AsyncGenerator[Setup]:
    """A server, or this other one, its clients, and what will happen to them."""
    os.environ.update(CREDENTIALS)
    make, options = _SERVERS[engine]
    with other or make() as server:
        url = server.new_url()
        hasty = url + _WITHOUT_REPEATING.get((engine, fault), options)
        await migrate_storage(url)
        async with AsyncExitStack() as stack:
            servers = server.nodes if isinstance(server, ValkeyCluster) else [server]
            port = servers[0].port
            proxy = await stack.enter_async_context(Proxy(port))
            requests = await stack.enter_async_context(proxy_to(port))
            scene = ScenarioState(servers, proxy, requests, Counter())
            ways = {"network": proxy.port, "throttles": requests.port}
            way = through(hasty, port, ways.get(fault, port))
            yield Setup(
                storages=[await stack.enter_async_context(await open_storage(way)) for _ in range(CLIENTS)],
                reopen=lambda: open_storage(url),
                disturbance=partial(DISTURBANCES[engine][fault], scene),
                met=scene.met,
            )


def through(url: str, port: int, other: int) -> str:
    """The same storage by another port."""
    for colon in (":", "%3A"):
        url = url.replace(f"{HOST}{colon}{port}", f"{HOST}{colon}{other}")
    return url
