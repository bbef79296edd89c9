"""The health port of a worker: `/health` and `/ready`, as `perdure serve` has them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ...runtime import Runtime
from .asgi import HEALTH_PATH, READY_PATH, Health, HttpServer, Readiness

_STARTING = JSONResponse({"status": "starting"}, 503)
_STOPPING = JSONResponse({"status": "stopping"}, 503)
_NOT_FOUND = JSONResponse({"error": "not found"}, 404)


class Probes:
    """The ASGI application of the health port. Requests need no token."""

    def __init__(self) -> None:
        self._paths: dict[str, ASGIApp] = {HEALTH_PATH: _STARTING, READY_PATH: _STARTING}

    def start(self, runtime: Runtime) -> None:
        """Report the state of a runtime, which has started."""
        health = Health(runtime.store.storage)
        self._paths = {HEALTH_PATH: health, READY_PATH: Readiness(health, runtime.store)}

    def stop(self) -> None:
        """Report that the worker is not ready, while its runs end. It is still healthy."""
        self._paths[READY_PATH] = _STOPPING

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._paths.get(scope["path"], _NOT_FOUND)
        await app(scope, receive, send)


@asynccontextmanager
async def serve_probes(listener: socket.socket, stop: anyio.Event) -> AsyncGenerator[Probes]:
    """Serve the health port within the block. If that fails, set `stop`, and raise the error at the end."""
    probes = Probes()
    server = HttpServer(probes)
    serving = asyncio.create_task(server.serve([listener]))
    serving.add_done_callback(lambda _: stop.set())
    try:
        yield probes
    finally:
        server.should_exit = True
        await serving
