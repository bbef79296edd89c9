"""`/health`: whether the storage can be read and written. It needs no token and does not name the storage."""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ...operating.maintenance import measure_write
from ...storage import Storage
from ...storage.errors import StorageBusy, StorageError, StorageFull, StorageReadOnly, StorageUnavailable
from ...tasks.snapshot import TASKS
from .poller import FeedPoller

log = logging.getLogger("perdure.serve")

_REASONS: dict[type[StorageError], str] = {
    StorageFull: "the storage is full",
    StorageReadOnly: "the storage is read-only",
    StorageBusy: "the storage is locked by other processes",
    StorageUnavailable: "the storage does not accept writes now",
}


class Health:
    """The ASGI application that answers `/health`."""

    def __init__(self, storage: Storage, poller: FeedPoller | None = None) -> None:
        self._storage = storage
        self._poller = poller
        self._probe = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.response()
        await response(scope, receive, send)

    async def response(self) -> Response:
        try:
            await self._storage.counts(TASKS, "health", now=0)
        except StorageError:
            return JSONResponse({"status": "storage unavailable"}, 503)
        error = await self._write_error()
        if error is not None:
            reason = _REASONS.get(type(error), "the storage failed; see the server log")
            return JSONResponse({"status": "writes fail", "reason": reason}, 503)
        if self._poller is None:
            return JSONResponse({"status": "ok"})
        # A failing poller must not move the clients of tools to another server: the status stays ok.
        feeds = "not polled; see the server log" if self._poller.is_failing else "polled"
        return JSONResponse({"status": "ok", "feeds": feeds})

    async def _write_error(self) -> StorageError | None:
        """Return why writes fail, or None.

        While writes succeed, nothing is written here. After a failure, each request tries one write: a load
        balancer sends no calls to a server that reports a failure, so nothing else may be written again.
        """
        if self._storage.write_error is not None and not self._probe.locked():
            async with self._probe:
                try:
                    await measure_write(self._storage, "health")
                except StorageError as error:
                    log.warning("writes to the storage fail: %s", error)
        return self._storage.write_error
