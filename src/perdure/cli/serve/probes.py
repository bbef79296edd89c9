"""The health port of a worker. It serves `/health` and `/ready`, like `perdure serve`."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ...operating.encryption_keys import MissingKeys
from ...runtime import Runtime
from .asgi import HEALTH_PATH, READY_PATH, STOPPING, Health, HttpServer, Readiness

_STARTING = JSONResponse({"status": "starting"}, 503)
_NOT_FOUND = JSONResponse({"error": "not found"}, 404)


class Probes:
    """The ASGI application of the health port. Requests need no token."""

    def __init__(self) -> None:
        self._paths: dict[str, ASGIApp] = {HEALTH_PATH: _STARTING, READY_PATH: _STARTING}

    def start(self, runtime: Runtime) -> None:
        """Report the state of `runtime` from now on. Before this call, both paths report `starting`."""
        store = runtime.store
        health = Health(store.storage)
        readiness = Readiness(health, MissingKeys.of(store), store.clock)
        self._paths = {HEALTH_PATH: health, READY_PATH: readiness}

    def stop(self) -> None:
        """Report `stopping` at `/ready` from now on. `/health` still reports the state of the storage."""
        self._paths[READY_PATH] = STOPPING

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._paths.get(scope["path"], _NOT_FOUND)
        await app(scope, receive, send)


@asynccontextmanager
async def serve_probes(listener: socket.socket, stop: anyio.Event) -> AsyncGenerator[Probes]:
    """Serve the health port until the `async with` block ends.

    If the HTTP server fails, set `stop`, and raise its error at the end of the block.
    """
    probes = Probes()
    server = HttpServer(probes)
    serving = server.start(listener, stop)
    try:
        yield probes
    finally:
        server.should_exit = True
        await serving
