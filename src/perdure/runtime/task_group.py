"""A task group that ends with its block, and does not wrap the error of the block."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def task_group() -> AsyncGenerator[TaskGroup]:
    """Yield a task group that is cancelled when the block ends. The first error is raised as it is."""
    try:
        async with anyio.create_task_group() as group:
            yield group
            group.cancel_scope.cancel()
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__
