"""Whose a task is: what the transport has verified says so, in both generations, and nothing else does."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server import ServerRequestContext
from mcp_types import TextContent

from perdure import Tasks
from perdure.tasks import Owner

from ...markers import row
from ..raw_clients import MODERN, Json
from ..tokens import ISSUER, Caller, Generation, TokenClient2025, TokenClient2026, Tokens, make_server, people
from .helpers import assert_absent, assert_not_listable, assert_present, both, listed, owners, served

pytestmark = pytest.mark.anyio


# Who a verified token names


@row(26)
@both
@pytest.mark.parametrize(
    ("token", "owner"),
    [
        ({"subject": "alice"}, Owner.user(ISSUER, "alice")),
        ({"subject": "alice", "issuer": None}, Owner.user("client some-client", "alice")),
        ({"subject": None, "client": "robot"}, Owner.client(ISSUER, "robot")),
        ({"subject": "", "client": "robot"}, Owner.client(ISSUER, "robot")),
    ],
)
async def test_the_owner_is_the_subject_of_the_verified_token_or_else_its_client(
    generation: Generation, token: dict[str, Any], owner: Owner
) -> None:
    tokens = Tokens()
    tokens.add("t", **token)
    async with served(tokens) as (url, tasks), generation(url, "t") as caller:
        task_id = await caller.start("hold")

        assert await owners(tasks) == {task_id: owner}


@row(26)
@both
async def test_callers_are_told_apart_by_issuer_by_subject_and_by_client_where_that_is_all_there_is(
    generation: Generation,
) -> None:
    tokens = Tokens()
    tokens.add("alice", subject="alice")
    tokens.add("alice elsewhere", subject="alice", issuer="https://other.test")
    tokens.add("alice of nowhere", subject="alice", issuer=None)
    tokens.add("bob through the same client", subject="bob")
    tokens.add("a client called alice", subject=None, client="alice")
    tokens.add("that client elsewhere", subject=None, client="alice", issuer="https://other.test")
    async with served(tokens) as (url, _):
        await assert_all_stay_apart(url, generation, list(tokens))


@row(26)
@both
async def test_one_user_through_two_clients_is_one_owner(generation: Generation) -> None:
    tokens = Tokens()
    tokens.add("phone", subject="alice", client="phone-app")
    tokens.add("laptop", subject="alice", client="laptop-app")
    async with (
        served(tokens) as (url, tasks),
        generation(url, "phone") as phone,
        generation(url, "laptop") as laptop,
    ):
        task_id = await phone.start("hold")

        assert (await laptop.until(task_id, "input_required"))["taskId"] == task_id
        if isinstance(laptop, TokenClient2025):
            assert await listed(laptop) == {task_id}
        assert "error" not in (await laptop.send("tasks/cancel", {"taskId": task_id})).message
        assert (await phone.until(task_id, "cancelled"))["taskId"] == task_id
        assert await owners(tasks) == {task_id: Owner.user(ISSUER, "alice")}


async def assert_all_stay_apart(url: str, generation: Generation, tokens: list[str]) -> None:
    """Each bearer sees the task that it made, and of the others' nothing."""
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(generation(url, token)) for token in tokens]
        made = [await caller.start("hold", {"label": str(at)}) for at, caller in enumerate(callers)]
        for (caller, own), task_id in itertools.product(zip(callers, made, strict=True), made):
            if task_id != own:
                assert (await caller.send("tasks/get", {"taskId": task_id})).code == -32602
        for caller, task_id in zip(callers, made[1:] + made[:1], strict=True):
            await assert_absent(caller, task_id)
        for caller, own in zip(callers, made, strict=True):
            await assert_present(caller, own)
            if isinstance(caller, TokenClient2025):
                assert await listed(caller) == {own}


HOSTILE_PRINCIPALS = [
    (ISSUER, "a"),
    (ISSUER, "a:"),
    (ISSUER, "a:b"),
    (f"{ISSUER}:a", "b"),
    (ISSUER, "a%3Ab"),
    (ISSUER, "a#b"),
    (ISSUER, "{a}b"),
    (ISSUER, "a/b"),
    (ISSUER, "a%"),
    (ISSUER, "a\0b"),
    (ISSUER, "ä"),
    (ISSUER, "a\u0308"),  # looks like the one before, and is another
    (ISSUER, "日本語 🐢"),
    ("", f"{ISSUER}:a"),
]


def hostile_tokens() -> Tokens:
    tokens = Tokens()
    for at, (issuer, subject) in enumerate(HOSTILE_PRINCIPALS):
        tokens.add(f"t{at}", subject=subject, issuer=issuer)
    return tokens


@row(27)
@both
async def test_subjects_of_any_characters_stay_apart_in_every_method(
    generation: Generation, tmp_path: Path
) -> None:
    tokens = hostile_tokens()
    async with served(tokens, f"sqlite:///{tmp_path / 'tasks.db'}") as (url, tasks):
        await assert_all_stay_apart(url, generation, list(tokens))

        assert set((await owners(tasks)).values()) == {Owner.user(*each) for each in HOSTILE_PRINCIPALS}


@row(27)
@both
async def test_subjects_of_any_characters_have_a_quota_each(generation: Generation) -> None:
    tokens = hostile_tokens()
    async with served(tokens, quota=2) as (url, _), AsyncExitStack() as stack:
        for token in tokens:
            caller = await stack.enter_async_context(generation(url, token))
            await caller.start("hold")
            await caller.start("hold")
            await assert_quota_is_used_up(caller)


async def assert_quota_is_used_up(caller: Caller) -> None:
    params: Json = {"name": "hold", "arguments": {}, "task": {}}
    refused = await caller.send("tools/call", params)
    assert refused.code == -32603
    assert refused.error["data"] == {"retryable": True}
    assert "you have 2 active tasks" in refused.error["message"]


@both
async def test_the_same_idempotency_key_of_two_owners_is_two_tasks(generation: Generation) -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        generation(url, "alice") as alice,
        generation(url, "bob") as bob,
    ):
        of_alice, again, of_bob = [await start_once(each, "the same") for each in (alice, alice, bob)]

        assert of_alice == again != of_bob
        await assert_absent(bob, of_alice)


async def start_once(caller: Caller, key: str) -> str:
    meta = {"perdure/idempotencyKey": key}
    params: Json = {"name": "hold", "arguments": {}, "task": {}, "_meta": meta}
    result = (await caller.send("tools/call", params)).result
    return result["taskId"] if isinstance(caller, TokenClient2026) else result["task"]["taskId"]


async def test_a_cursor_of_one_owner_leads_another_nowhere() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        TokenClient2025(url, "alice") as alice,
        TokenClient2025(url, "bob") as bob,
    ):
        for _ in range(51):
            await alice.start("hold")
            await bob.start("hold")
        cursor = (await alice.send("tasks/list")).result["nextCursor"]

        assert len((await alice.send("tasks/list", {"cursor": cursor})).result["tasks"]) == 1
        assert (await bob.send("tasks/list", {"cursor": cursor})).code == -32602


# Other ways to know a caller


def by_header(request: ServerRequestContext[Any, Any]) -> Owner | None:
    name = request.request.headers.get("x-user") if request.request is not None else None
    return None if name is None else Owner.user("my own directory", name)


@row(26)
@both
async def test_a_way_of_ones_own_to_tell_callers_apart_counts_in_every_method(generation: Generation) -> None:
    async with (
        served(None, identify=by_header) as (url, tasks),
        generation(url, headers={"x-user": "alice"}) as alice,
        generation(url, headers={"x-user": "alice"}) as again,
        generation(url, headers={"x-user": "bob"}) as bob,
    ):
        task_id = await alice.start("hold")

        assert await owners(tasks) == {task_id: Owner.user("my own directory", "alice")}
        await assert_absent(bob, task_id)
        await assert_present(again, task_id)
        if isinstance(again, TokenClient2025) and isinstance(bob, TokenClient2025):
            assert "list" in again.initialized["capabilities"]["tasks"]
            assert (await listed(again), await listed(bob)) == ({task_id}, set())


async def test_a_stream_that_another_caller_can_read_carries_nothing_of_a_task() -> None:
    """The SDK binds a session to a token, and not to what `identify` makes of a request."""
    read: list[Json] = []

    async def spy(bob: TokenClient2025) -> None:
        async with bob.listen() as notifications:
            async for each in notifications:
                read.append(each)  # noqa: PERF401, the stream does not end

    async with (
        served(None, identify=by_header) as (url, _),
        TokenClient2025(url, headers={"x-user": "alice"}) as alice,
        TokenClient2025(url, headers={"x-user": "bob"}) as bob,
        anyio.create_task_group() as group,
    ):
        bob.carry({"mcp-session-id": alice.session_id or ""})
        group.start_soon(spy, bob)
        task_id = await alice.start("hold")
        for _ in range(10):
            await alice.until(task_id, "input_required")  # a client that only polls is asked there
        await alice.send("tasks/cancel", {"taskId": task_id})
        await alice.until(task_id, "cancelled")
        await anyio.sleep(0.3)
        group.cancel_scope.cancel()
    assert (read, bob.asked, bob.pings) == ([], [], 0)


@both
async def test_a_way_of_ones_own_to_tell_callers_apart_is_asked_once_for_each_request(
    generation: Generation,
) -> None:
    asked: list[str] = []

    def identify(request: ServerRequestContext[Any, Any]) -> Owner | None:
        asked.append(request.method)
        return by_header(request)

    async with (
        served(None, identify=identify) as (url, _),
        generation(url, headers={"x-user": "alice"}) as alice,
    ):
        asked.clear()
        task_id = await alice.start("hold")
        await alice.get(task_id)
        await alice.send("tasks/cancel", {"taskId": task_id})
        methods = ["tools/call", "tasks/get", "tasks/cancel"]
        if isinstance(alice, TokenClient2025):
            await listed(alice)
            methods.append("tasks/list")
        assert asked == methods


@row(30)
@both
async def test_whom_a_way_of_ones_own_cannot_tell_is_anonymous(generation: Generation) -> None:
    async with (
        served(None, identify=by_header) as (url, tasks),
        generation(url, headers={"x-user": "alice"}) as alice,
        generation(url) as nobody,
        generation(url) as nobody_else,
    ):
        of_alice, task_id = await alice.start("hold"), await nobody.start("hold")

        await assert_absent(nobody, of_alice)
        await assert_absent(alice, task_id)
        await assert_present(nobody_else, task_id)
        assert (await owners(tasks))[task_id] == Owner.anonymous()
        if isinstance(nobody, TokenClient2025):
            await assert_not_listable(nobody)


@row(26)
@both
async def test_an_owner_is_the_same_through_any_server_on_the_same_storage(
    generation: Generation, tmp_path: Path
) -> None:
    where = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with (
        served(people("alice"), where) as (one, _),
        served(people("alice", "bob"), where) as (other, _),
        generation(one, "alice") as alice,
        generation(other, "alice") as alice_there,
        generation(other, "bob") as bob,
    ):
        of_alice, of_bob = await alice.start("hold"), await bob.start("hold")

        await assert_present(alice_there, of_alice)
        await assert_absent(bob, of_alice)
        await assert_absent(alice, of_bob)


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_a_client_in_the_same_process_is_the_local_user(mode: Any) -> None:
    tasks = Tasks("memory:")
    server = make_server(tasks, people("alice"))
    async with Client(server, mode=mode) as client:
        result = await client.call_tool("quick", {"label": "x"})

        assert isinstance(result.content[0], TextContent)
        assert result.content[0].text == "done x"
        assert set((await owners(tasks)).values()) == {Owner.local()}
