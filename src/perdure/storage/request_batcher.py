"""Combines concurrent requests into batches, so that the requests in a batch share one round trip.

No request is delayed to fill a batch: a batch starts in the next iteration of the event loop. Under load,
requests wait while other batches are running, so batches become larger. Each caller gets its own response or
error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, TypeVar

from .errors import StorageClosed

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")
E = TypeVar("E", bound=Exception)


class Batcher(Generic[Request, Response]):
    """Collects requests and passes them to `run_batch` in batches. Use a batcher in only one event loop.

    `run_batch` returns a response, or an exception to raise, for each request, in the same order. If
    `run_batch` itself raises an error, every request in the batch fails with that error. At most
    `max_concurrent` batches run at the same time.

    A batch contains at most `max_items` requests. `weight` returns the weight of a request, and the weights
    in a batch add up to at most `max_weight`. A heavier request is sent in a batch of its own.
    """

    def __init__(
        self,
        run_batch: Callable[[Sequence[Request]], Awaitable[Sequence[Response | Exception]]],
        *,
        max_items: int,
        max_concurrent: int = 1,
        weight: Callable[[Request], int] = lambda _: 0,
        max_weight: int = 0,
    ) -> None:
        self._run_batch = run_batch
        self._max_items = max_items
        self._max_concurrent = max_concurrent
        self._weight = weight
        self._max_weight = max_weight
        self._waiting: deque[tuple[Request, asyncio.Future[Response]]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._is_scheduled = False
        self._closed = False

    async def submit(self, request: Request) -> Response:
        """Send a request and return its response. The request is sent even if the caller is cancelled."""
        if self._closed:
            raise StorageClosed("this storage is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Response] = loop.create_future()
        self._waiting.append((request, future))
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._start_batches)
        return await future

    async def close(self) -> None:
        """Refuse new requests, and wait until all submitted requests have finished."""
        self._closed = True
        self._start_batches()
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    def _start_batches(self) -> None:
        self._is_scheduled = False
        while self._waiting and len(self._in_flight) < self._max_concurrent:
            task = asyncio.get_running_loop().create_task(self._run(self._next_batch()))
            self._in_flight.add(task)
            task.add_done_callback(self._on_batch_done)

    def _on_batch_done(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._start_batches()

    def _next_batch(self) -> list[tuple[Request, asyncio.Future[Response]]]:
        batch = [self._waiting.popleft()]
        weight = self._weight(batch[0][0])
        while self._waiting and len(batch) < self._max_items:
            weight += self._weight(self._waiting[0][0])
            if weight > self._max_weight:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _run(self, batch: Sequence[tuple[Request, asyncio.Future[Response]]]) -> None:
        try:
            responses = await self._run_batch([request for request, _ in batch])
            for (_, future), response in zip(batch, responses, strict=True):
                resolve(future, response)
        except Exception as error:  # catch every error, because callers are waiting for a response
            for _, future in batch:
                resolve(future, error if len(batch) == 1 else copy_error(error))
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise


def resolve(future: asyncio.Future[Response], response: Response | Exception) -> None:
    """Deliver a response or an error to the caller that awaits `future`, if it is still waiting."""
    if future.done():
        return
    if isinstance(response, Exception):
        future.set_exception(response)
    else:
        future.set_result(response)


def copy_error(error: E) -> E:
    """Copy an error, so that each caller can raise its own copy with its own traceback."""
    copy = error.__class__.__new__(error.__class__, *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__ or error
    return copy


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield consecutive slices of at most `size` items. (`itertools.batched` needs Python 3.12.)"""
    for start in range(0, len(items), size):
        yield items[start : start + size]
