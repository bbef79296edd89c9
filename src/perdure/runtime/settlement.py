"""Stores the end of an attempt, and tries again while the storage fails.

If an outcome can never be stored, for example because it is too large, the task fails.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ..storage import Micros
from ..storage.errors import InvalidArgument, StorageClosed, StorageError
from ..storage.exception_text import type_and_text_of
from ..tasks import Failure, Status, StoreConfig, TaskRecord
from ..tasks.errors import ClaimLost, ConcurrentModification, NotFound
from ..tasks.store import Edit
from .endings import finish
from .errors import INTERNAL_ERROR, loggable
from .hold import Hold

log = logging.getLogger("perdure.runtime")


class Settlement:
    """The edit that ends or releases a task after an attempt."""

    def __init__(self, hold: Hold, edit: Edit) -> None:
        self._hold = hold
        self._edit = edit
        self._tried: set[tuple[Status, Micros | None]] = set()
        self._is_in_doubt = False
        self._is_replaced = False

    async def write(self, *, within: float, pause: float) -> None:
        """Store the edit, with a pause of `pause` seconds after each failure.

        Raise ClaimLost if the claim is lost, or if this takes longer than `within` seconds. Raise any other
        error only if a further attempt cannot succeed.
        """
        deadline = asyncio.get_running_loop().time() + within
        while not await self._try():
            if asyncio.get_running_loop().time() > deadline:
                raise ClaimLost
            await asyncio.sleep(pause)

    async def _try(self) -> bool:
        try:
            await self._hold.write(self._remembered)
        except StorageClosed:
            raise
        except (ClaimLost, NotFound) as error:
            if not (self._is_in_doubt and await self._was_written()):
                raise ClaimLost from error
        except Exception as error:
            self._is_in_doubt = True
            if not _may_heal(error):
                self._replace(error)
            return False
        return True

    def _remembered(self, task: TaskRecord, now: Micros, config: StoreConfig) -> TaskRecord:
        edited = self._edit(task, now, config)
        self._tried.add((edited.status, edited.finished_at))
        return edited

    async def _was_written(self) -> bool:
        """Return whether an earlier write was stored, and only its response was lost."""
        with suppress(ClaimLost, StorageError):
            await self._hold.look()
        task = self._hold.snapshot.task
        return task.is_terminal and (task.status, task.finished_at) in self._tried

    def _replace(self, error: Exception) -> None:
        """Replace an outcome that cannot be stored, for example because it is too large, with a failure."""
        if self._is_replaced:
            raise error
        self._is_replaced = True
        task = self._hold.snapshot.task
        shown = type_and_text_of(loggable(error, is_encrypted=task.is_encrypted))
        log.warning("task %s: could not store the outcome: %s", task.task_id, shown)
        text = f"the outcome cannot be stored: {type_and_text_of(error)}"
        self._edit = finish(Failure.of(INTERNAL_ERROR, text))


def _may_heal(error: Exception) -> bool:
    if isinstance(error, StorageError):
        return not isinstance(error, InvalidArgument)
    return isinstance(error, ConcurrentModification)
