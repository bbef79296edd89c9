"""A context that several users share: none of them waits without end if it cannot be entered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from perdure.runtime.shared_context import SharedContext

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("error", [OSError("no disk"), asyncio.CancelledError()])
async def test_all_users_get_an_error_if_the_context_cannot_be_entered(error: BaseException) -> None:
    @asynccontextmanager
    async def failing() -> AsyncGenerator[None]:
        await asyncio.sleep(0)
        raise error
        yield

    shared = SharedContext(failing)

    async def use() -> None:
        async with shared.use():
            pytest.fail("it was entered")

    async with asyncio.timeout(20):
        raised = await asyncio.gather(use(), use(), return_exceptions=True)
    expected = OSError if isinstance(error, OSError) else RuntimeError
    assert [type(each) for each in raised] == [expected, expected]


async def test_a_context_that_was_cancelled_while_it_started_can_be_entered_later() -> None:
    attempts = 0

    @asynccontextmanager
    async def once_cancelled() -> AsyncGenerator[None]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise asyncio.CancelledError
        yield

    shared = SharedContext(once_cancelled)
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match="the start of the tasks was cancelled"):
            async with shared.use():
                pass
        async with shared.use():
            assert attempts == 2


@pytest.mark.parametrize("cleanup", [None, OSError("no disk")])
async def test_a_cancel_while_the_context_is_entered_does_not_wait_for_it(cleanup: OSError | None) -> None:
    started, may_enter, cancelled = asyncio.Event(), asyncio.Event(), list[str]()

    @asynccontextmanager
    async def slow() -> AsyncGenerator[None]:
        started.set()
        try:
            await may_enter.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            cancelled.append("cleaned up")
            if cleanup is not None:
                raise cleanup from None
            raise
        yield

    shared = SharedContext(slow)

    async def use() -> None:
        async with shared.use():
            pass

    first = asyncio.create_task(use())
    await started.wait()
    first.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await first
        assert cancelled == ["cleaned up"]
        may_enter.set()
        await use()


async def test_a_context_that_is_entered_despite_a_cancel_is_left() -> None:
    started, calls = asyncio.Event(), list[str]()

    @asynccontextmanager
    async def stubborn() -> AsyncGenerator[None]:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        calls.append("entered")
        yield
        calls.append("left")

    async def use() -> None:
        async with SharedContext(stubborn).use():
            pytest.fail("it was entered")

    user = asyncio.create_task(use())
    await started.wait()
    user.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await user
    assert calls == ["entered", "left"]
