"""Without authentication a task is found by its id, or in its session only, or refused, as a server says."""

from __future__ import annotations

import pytest

from perdure.tasks import Owner

from ...markers import row
from ..raw_clients import CORE
from ..tokens import ISSUER, Generation, TokenClient2025, TokenClient2026, about, people
from .helpers import (
    NO_SUCH_TASK,
    assert_absent,
    assert_not_listable,
    assert_present,
    assert_refused,
    both,
    listed,
    owners,
    served,
)

pytestmark = pytest.mark.anyio


@row(30, 31)
async def test_without_authentication_the_id_is_the_key_from_any_session_and_nothing_is_listed() -> None:
    async with (
        served(None) as (url, tasks),
        TokenClient2025(url) as first,
        TokenClient2025(url) as second,
        TokenClient2026(url) as modern,
    ):
        task_id = await first.start("hold")

        for caller in (first, second, modern):
            assert (await caller.until(task_id, "input_required"))["taskId"] == task_id
            assert (await caller.send("tasks/list")).code == -32601
        assert "list" not in first.initialized["capabilities"]["tasks"]
        assert await owners(tasks) == {task_id: Owner.anonymous()}
        assert (await second.send("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"


@row(31)
async def test_a_server_may_bind_tasks_to_their_session_which_then_lists_them() -> None:
    async with (
        served(None, anonymous="session") as (url, tasks),
        TokenClient2025(url) as first,
        TokenClient2025(url) as second,
    ):
        task_id = await first.start("hold")

        assert "list" in first.initialized["capabilities"]["tasks"]
        assert await listed(first) == {task_id}
        assert await listed(second) == set()
        await assert_absent(second, task_id)
        await assert_present(first, task_id)
        assert await owners(tasks) == {task_id: Owner.session(first.session_id or "")}


@row(31)
async def test_2026_has_no_sessions_so_that_the_id_is_the_key_even_where_tasks_are_bound_to_sessions() -> (
    None
):
    async with (
        served(None, anonymous="session") as (url, tasks),
        TokenClient2026(url) as first,
        TokenClient2026(url) as second,
    ):
        task_id = await first.start("hold")

        await assert_present(second, task_id)
        assert await owners(tasks) == {task_id: Owner.anonymous()}


@row(29, 31)
async def test_a_session_that_a_request_of_2026_only_names_owns_nothing_and_opens_nothing() -> None:
    async with served(None, anonymous="session") as (url, tasks), TokenClient2025(url) as core:
        of_session = await core.start("hold")
        hijacked = {"mcp-session-id": core.session_id or ""}
        async with TokenClient2026(url, headers=hijacked) as modern, TokenClient2026(url) as other:
            await assert_absent(modern, of_session)
            made = await modern.start("hold")
            await assert_present(other, made)

        assert (await owners(tasks))[made] == Owner.anonymous()
        assert await listed(core) == {of_session}


@row(29, 31)
async def test_a_session_that_no_transport_began_owns_nothing() -> None:
    forged = {"mcp-session-id": "0123456789abcdef", "mcp-protocol-version": CORE}
    async with (
        served(None, anonymous="session", stateless=True) as (url, tasks),
        TokenClient2025(url, headers=forged) as caller,
    ):
        task_id = await caller.start("hold")

        assert await owners(tasks) == {task_id: Owner.anonymous()}


@row(31)
async def test_a_session_on_an_authenticated_server_is_no_owner() -> None:
    async with (
        served(people("alice"), anonymous="session") as (url, tasks),
        TokenClient2025(url, "alice") as first,
        TokenClient2025(url, "alice") as second,
    ):
        task_id = await first.start("hold")

        assert first.session_id != second.session_id
        assert await listed(second) == {task_id}
        assert await owners(tasks) == {task_id: Owner.user(ISSUER, "alice")}


@row(30)
@both
async def test_a_server_may_refuse_tasks_to_whom_it_does_not_know(generation: Generation) -> None:
    async with served(None, anonymous="refuse") as (url, tasks), generation(url) as caller:
        for method, params in about(caller, NO_SUCH_TASK).items():
            await assert_refused(caller, method, params)
        for task in ({"ttl": 1000}, None):
            await assert_refused(caller, "tools/call", {"name": "quick", "arguments": {}, "task": task})
        if isinstance(caller, TokenClient2025):
            await assert_not_listable(caller)
        else:
            listen = await caller.send("subscriptions/listen", {"notifications": {"taskIds": [NO_SUCH_TASK]}})
            assert listen.code == -32600

        assert await owners(tasks) == {}
