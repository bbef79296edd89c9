"""Prints the message of an error that stops a server at its start, as the last line of the process.

Frameworks and the event loop print a traceback of about a hundred lines. Some of them print even more below
it, so the message would be hard to find.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar, cast

from ..storage.errors import NotReadableHere, PerdureError, StorageUnavailable

T = TypeVar("T")


@asynccontextmanager
async def shown_at_exit(context: AbstractAsyncContextManager[T]) -> AsyncGenerator[T]:
    """Enter `context`. If it raises a PerdureError that ends the process, print the message at the end."""
    async with AsyncExitStack() as stack:
        try:
            entered = await stack.enter_async_context(context)
        except PerdureError as error:
            atexit.register(print_if_fatal, error)
            raise
        yield entered


def print_if_fatal(error: PerdureError) -> None:
    """Print the message of an error, unless it was handled. Called when the process exits."""
    uncaught = getattr(sys, "last_value", None)  # what the interpreter has printed a traceback of
    if _contains(uncaught, error) or _was_caught_by_uvicorn(error):
        sys.stderr.write(f"perdure: {with_advice(error)}\n")


def with_advice(error: PerdureError) -> str:
    """Return the message of an error. If the error may be temporary, add the advice to try again."""
    message = str(error)
    # This process can read the record only after an upgrade or with another key, which the message says.
    has_advice = isinstance(error, NotReadableHere) or "try again" in message
    if has_advice or not error.retryable:
        return message
    if isinstance(error, StorageUnavailable):  # a wrong URL looks like a server that is down
        return f"{message}; check the host and port of the storage, or try again later"
    return f"{message}; try again later"


def _contains(uncaught: BaseException | None, error: PerdureError) -> bool:
    if isinstance(uncaught, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", uncaught)
        return any(_contains(each, error) for each in group.exceptions)
    return uncaught is error


def _was_caught_by_uvicorn(error: PerdureError) -> bool:
    """Return whether uvicorn has caught the error of a lifespan, after which it always exits."""
    trace = error.__traceback__
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("uvicorn.lifespan")
