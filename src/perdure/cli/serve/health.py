"""`/health`: whether the storage can be read, and whether writes to it succeed. Needs no token, and so its
answer names neither the storage nor what is in it.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import JSONResponse, Response

from ...storage import Storage
from ...storage.errors import (
    StorageBusy,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)
from ...tasks.snapshot import TASKS
from ..storages import try_to_write
from .poller import FeedPoller

log = logging.getLogger("perdure.serve")

_REASONS: dict[type[StorageError], str] = {
    StorageFull: "the storage is full",
    StorageReadOnly: "the storage is read-only",
    StorageBusy: "other processes hold the lock of the storage",
    StorageUnavailable: "the storage does not accept writes now",
}


class Health:
    """The health of one server, from what it saw of its storage."""

    def __init__(self, storage: Storage, poller: FeedPoller | None = None) -> None:
        self._storage = storage
        self._poller = poller
        self._trying = asyncio.Lock()

    async def answer(self) -> Response:
        try:
            await self._storage.counts(TASKS, "health", now=0)
        except StorageError:
            return JSONResponse({"status": "the storage does not answer"}, 503)
        error = await self._write_error()
        if error is None:
            return JSONResponse({"status": "ok", **self._feeds()})
        reason = _REASONS.get(type(error), "the storage failed; the log has the error")
        return JSONResponse({"status": "writes fail", "reason": reason}, 503)

    def _feeds(self) -> dict[str, str]:
        """A poller that fails is no reason to send the callers of tools to another server."""
        if self._poller is None:
            return {}
        return {"feeds": "not polled; the log has the reason" if self._poller.is_failing else "polled"}

    async def _write_error(self) -> StorageError | None:
        """Why writes fail, or None.

        While they succeed, nothing is written for this. After a failure one write is tried at a time: a load
        balancer sends no calls to a server that reports a failure, so that nothing else may be written here.
        """
        if self._storage.write_error is not None and not self._trying.locked():
            async with self._trying:
                try:
                    await try_to_write(self._storage, "health")
                except StorageError as error:
                    log.warning("writes to the storage fail: %s", error)
        return self._storage.write_error
