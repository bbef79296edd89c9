"""Whose a task is: what the transport has verified says so, in both generations, and nothing else does."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from mcp import Client
from perdure import Tasks
from perdure.mcp import Anonymous, Identify
from perdure.runtime import RuntimeConfig
from perdure.tasks import Owner, StoreConfig

from ..rows import row
from .authenticated import (
    ISSUER,
    Caller,
    CoreAs,
    Generation,
    ModernAs,
    Tokens,
    about,
    make_server,
    people,
)
from .wire import ACCEPT, CORE, EXTENSION, MODERN, Json, serving

pytestmark = pytest.mark.anyio

NO_SUCH_TASK = "0123456789abcdefghijklmnop"

both = pytest.mark.parametrize("generation", [ModernAs, CoreAs])


@asynccontextmanager
async def served(
    tokens: Tokens | None,
    url: str = "memory:",
    *,
    anonymous: Anonymous = "id",
    identify: Identify | None = None,
    quota: int = 100,
    retention: int = 60_000,
    stateless: bool = False,
) -> AsyncGenerator[tuple[str, Tasks]]:
    """A running server: its URL, and its tasks as an operator sees them."""
    store = StoreConfig(max_tasks_per_owner=quota, result_retention_ms=retention)
    # What waits for an answer when a test is over is not waited for.
    runtime = RuntimeConfig(drain=0)
    tasks = Tasks(url, store=store, runtime=runtime, anonymous=anonymous, identify=identify)
    server = make_server(tasks, tokens)
    async with serving(server.streamable_http_app(stateless_http=stateless)) as endpoint:
        yield endpoint, tasks


async def owners(tasks: Tasks) -> dict[str, Owner]:
    """Whose every stored task is."""
    page = await tasks.runtime.store.list_all(limit=200)
    return {snapshot.task.task_id: snapshot.task.owner for snapshot in page.tasks}


async def listed(caller: CoreAs) -> set[str]:
    answer = await caller.send("tasks/list")
    return {task["taskId"] for task in answer.result["tasks"]}


async def assert_absent(caller: Caller, task_id: str) -> None:
    """To this caller the task is what a task is that never was, to the byte."""
    for (method, params), absent in zip(
        about(caller, task_id).items(), about(caller, NO_SUCH_TASK).values(), strict=True
    ):
        foreign = await caller.post(method, params)
        assert foreign == await caller.post(method, absent), method
        assert b'"code":-32602,"message":"Task not found"' in foreign[1], (method, foreign)
    if isinstance(caller, ModernAs):
        subscribed = await caller.post("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
        absent = {"notifications": {"taskIds": [NO_SUCH_TASK]}}
        assert subscribed == await caller.post("subscriptions/listen", absent)
        assert b'"taskIds":[]' in subscribed[1]


async def assert_present(caller: Caller, task_id: str) -> None:
    assert (await caller.get(task_id))["status"] in ("working", "input_required")


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
        if isinstance(laptop, CoreAs):
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
            if isinstance(caller, CoreAs):
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
    return result["taskId"] if isinstance(caller, ModernAs) else result["task"]["taskId"]


async def test_a_cursor_of_one_owner_leads_another_nowhere() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        CoreAs(url, "alice") as alice,
        CoreAs(url, "bob") as bob,
    ):
        for _ in range(51):
            await alice.start("hold")
            await bob.start("hold")
        cursor = (await alice.send("tasks/list")).result["nextCursor"]

        assert len((await alice.send("tasks/list", {"cursor": cursor})).result["tasks"]) == 1
        assert (await bob.send("tasks/list", {"cursor": cursor})).code == -32602


# Foreign is absent


@row(26, 28)
@both
async def test_foreign_ended_and_expired_tasks_are_absent_to_the_byte(generation: Generation) -> None:
    async with (
        served(people("alice", "bob"), retention=50) as (url, _),
        generation(url, "alice") as alice,
        generation(url, "bob") as bob,
    ):
        waiting, ended, expired = [await alice.start(tool) for tool in ("hold", "quick", "brief")]
        await alice.until(waiting, "input_required")
        await alice.until(ended, "completed")
        await until_gone(alice, expired)

        for task_id in (waiting, ended, expired):
            await assert_absent(bob, task_id)
        await assert_absent(alice, expired)
        assert (await alice.get(waiting))["status"] == "input_required"


async def until_gone(caller: Caller, task_id: str) -> None:
    async with asyncio.timeout(15):
        while True:
            if "error" in (await caller.send("tasks/get", {"taskId": task_id})).message:
                return
            await asyncio.sleep(0.02)


@row(26)
async def test_the_state_of_a_waiting_call_is_of_no_use_to_another_owner() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        ModernAs(url, "alice") as alice,
        ModernAs(url, "bob") as bob,
    ):
        asked = (await alice.call("hold", declared=False)).result
        answer: Json = {"go": {"action": "accept", "content": {"ok": True}}}
        params = {
            "name": "hold",
            "arguments": {},
            "requestState": asked["requestState"],
            "inputResponses": answer,
        }

        assert (await bob.send("tools/call", params, declared=False)).code == -32602
        done = await alice.send("tools/call", params, declared=False)
        assert done.result["content"][0]["text"] == "held "


@row(26)
async def test_a_forged_state_of_a_waiting_call_reaches_no_foreign_task() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        ModernAs(url, "alice") as alice,
        ModernAs(url, "bob") as bob,
    ):
        task_id = await alice.start("hold")
        await alice.until(task_id, "input_required")
        foreign, absent = [
            await bob.post("tools/call", {"name": "hold", "requestState": f"perdure/task:{each}"})
            for each in (task_id, NO_SUCH_TASK)
        ]

        assert foreign == absent
        assert (await alice.get(task_id))["status"] == "input_required"


# What a client says does not count


@row(29)
@both
async def test_nothing_that_a_client_says_makes_it_another_owner(generation: Generation) -> None:
    async with served(people("alice", "bob")) as (url, tasks):
        async with generation(url, "alice") as alice:
            task_id = await alice.start("hold")
        async with generation(url, "bob", headers=forged_headers()) as bob:
            for method, params in about(bob, task_id).items():
                answer = await bob.send(method, {**params, **forged_params(), "_meta": forged_params()})
                assert (answer.code, answer.error["message"]) == (-32602, "Task not found")
            made = await start_forged(bob)

        assert await owners(tasks) == {task_id: Owner.user(ISSUER, "alice"), made: Owner.user(ISSUER, "bob")}


def forged_params() -> Json:
    """Whatever a client might call it, if it could say who it is."""
    owner = {"kind": "user", "issuer": ISSUER, "subject": "alice"}
    names = ("subject", "sub", "user", "userId", "clientId", "client_id", "principal", "partition")
    return {
        **dict.fromkeys(names, "alice"),
        "owner": owner,
        "issuer": ISSUER,
        "authInfo": {"subject": "alice"},
    }


def forged_headers() -> dict[str, str]:
    names = ("x-user", "x-forwarded-user", "x-owner", "x-subject", "x-client-id", "mcp-user", "from")
    return {**dict.fromkeys(names, "alice"), "cookie": "user=alice", "proxy-authorization": "Bearer alice"}


async def start_forged(caller: Caller) -> str:
    params: Json = {
        "name": "hold",
        "arguments": {"owner": "alice", "subject": "alice"},
        "task": {"owner": "alice"},
        "_meta": forged_params(),
        **forged_params(),
    }
    result = (await caller.send("tools/call", params)).result
    return result["taskId"] if isinstance(caller, ModernAs) else result["task"]["taskId"]


@row(29, 31)
async def test_the_session_of_another_opens_nothing_with_a_token_of_ones_own() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        CoreAs(url, "alice") as alice,
        CoreAs(url, "bob") as bob,
    ):
        task_id = await alice.start("hold")
        hijacked = {"mcp-session-id": alice.session_id or ""}
        async with ModernAs(url, "bob", headers=hijacked) as modern:
            await assert_absent(modern, task_id)
        bob.carry(hijacked)

        status, body = await bob.post("tasks/get", {"taskId": task_id})
        assert (status, b"Session not found" in body) == (404, True)


# Callers without a token, where the server wants one


MALFORMED: list[Any] = [{"taskId": 5}, {"taskId": None}, {}, [], "x", 5, None, {"_meta": 5}]
METHODS = ("tasks/get", "tasks/update", "tasks/cancel", "tasks/list", "tasks/result", "tools/call")


@row(32)
@pytest.mark.parametrize("version", [MODERN, CORE])
@pytest.mark.parametrize("authorization", [None, "Bearer unknown", "Basic YWxpY2U6eA==", "Bearer"])
async def test_an_unauthenticated_request_is_refused_before_its_body_is_read(
    version: str, authorization: str | None
) -> None:
    headers = {"accept": ACCEPT, "content-type": "application/json", "mcp-protocol-version": version}
    if authorization is not None:
        headers["authorization"] = authorization
    bodies = [b"", b"{", b"[" * 100_000, *map(encoded, itertools.product(METHODS, MALFORMED))]
    async with served(people("alice")) as (url, tasks), httpx2.AsyncClient(timeout=30) as http:
        for body in bodies:
            response = await http.post(url, content=body, headers=headers)
            assert (response.status_code, response.json()["error"]) == (401, "invalid_token"), body

        assert await owners(tasks) == {}


def encoded(request: tuple[str, object]) -> bytes:
    method, params = request
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


@row(31)
@both
async def test_a_token_that_ran_out_is_none_and_its_successor_finds_the_tasks(generation: Generation) -> None:
    tokens = people("alice")
    async with served(tokens) as (url, _), generation(url, "alice") as alice:
        task_id = await alice.start("hold")
        tokens.add("alice", subject="alice", expires_at=int(time.time()) - 1)
        tokens.add("next", subject="alice")

        for method, params in about(alice, task_id).items():
            assert (await alice.post(method, params))[0] == 401
        async with generation(url, "next") as after:
            await assert_present(after, task_id)


@asynccontextmanager
async def without_the_guard() -> AsyncGenerator[tuple[str, Tasks]]:
    """A server that is said to be authenticated, mounted so that nothing stands before it."""
    tasks = Tasks("memory:")

    @tasks.durable()
    async def quick(label: str = "") -> str:
        return f"done {label}"

    async def call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        text = await quick(**params.arguments or {})
        return CallToolResult(content=[TextContent(text=text)])

    server = Server[Any]("bare", on_call_tool=call_tool)
    tasks.install(server, authenticated=True)
    async with serving(server.streamable_http_app()) as url:
        yield url, tasks


@row(30, 32)
@both
async def test_an_unauthenticated_caller_is_refused_before_its_params_where_nothing_stands_before_us(
    generation: Generation,
) -> None:
    async with without_the_guard() as (url, tasks), generation(url) as caller:
        for method in about(caller, NO_SUCH_TASK):
            for params in (
                {"taskId": NO_SUCH_TASK},
                {"taskId": 5},
                {},
                {"taskId": None, "inputResponses": 5},
            ):
                await assert_refused(caller, method, params)
        for field, value in (("arguments", {"a": 5}), ("arguments", 5), ("task", 5), ("requestState", 5)):
            await assert_refused(caller, "tools/call", {"name": "quick", field: value})

        assert await owners(tasks) == {}


async def assert_refused(caller: Caller, method: str, params: Json) -> None:
    answer = await caller.send(method, params)
    told = (answer.code, answer.error["message"])
    assert told == (-32600, "this server serves tasks to authenticated callers only"), (method, params)


@row(32)
async def test_an_unauthenticated_listing_is_refused_before_its_cursor() -> None:
    async with without_the_guard() as (url, _), CoreAs(url) as caller:
        for params in ({}, {"cursor": 5}, {"cursor": "x"}):
            await assert_refused(caller, "tasks/list", params)


@row(32)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel", "tasks/result", "tasks/list", "tools/call"])
async def test_an_unauthenticated_caller_is_refused_before_its_metadata(method: str) -> None:
    async with without_the_guard() as (url, _), CoreAs(url) as caller:
        for meta in (5, "x", [5], {"progressToken": {"a": 5}}):
            await assert_refused(caller, method, {"name": "quick", "taskId": NO_SUCH_TASK, "_meta": meta})


@row(32)
@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel", "subscriptions/listen"])
@pytest.mark.parametrize("capabilities", [{}, {"extensions": {EXTENSION: {}}}])
async def test_an_unauthenticated_caller_is_refused_before_what_it_declares(
    method: str, capabilities: Json
) -> None:
    params: Json = {"taskId": NO_SUCH_TASK, "inputResponses": {}}
    async with without_the_guard() as (url, _), ModernAs(url) as caller:
        for wanted in ([NO_SUCH_TASK], 5, [5]):
            sent = {**params, "notifications": {"taskIds": wanted}}
            answer = await caller.send(method, sent, capabilities=capabilities)
            assert answer.code == -32600


# Sessions


@row(30, 31)
async def test_without_authentication_the_id_is_the_key_from_any_session_and_nothing_is_listed() -> None:
    async with (
        served(None) as (url, tasks),
        CoreAs(url) as first,
        CoreAs(url) as second,
        ModernAs(url) as modern,
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
        CoreAs(url) as first,
        CoreAs(url) as second,
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
        ModernAs(url) as first,
        ModernAs(url) as second,
    ):
        task_id = await first.start("hold")

        await assert_present(second, task_id)
        assert await owners(tasks) == {task_id: Owner.anonymous()}


@row(29, 31)
async def test_a_session_that_a_request_of_2026_only_names_owns_nothing_and_opens_nothing() -> None:
    async with served(None, anonymous="session") as (url, tasks), CoreAs(url) as core:
        of_session = await core.start("hold")
        hijacked = {"mcp-session-id": core.session_id or ""}
        async with ModernAs(url, headers=hijacked) as modern, ModernAs(url) as other:
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
        CoreAs(url, headers=forged) as caller,
    ):
        task_id = await caller.start("hold")

        assert await owners(tasks) == {task_id: Owner.anonymous()}


@row(31)
async def test_a_session_on_an_authenticated_server_is_no_owner() -> None:
    async with (
        served(people("alice"), anonymous="session") as (url, tasks),
        CoreAs(url, "alice") as first,
        CoreAs(url, "alice") as second,
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
        if isinstance(caller, CoreAs):
            await assert_not_listable(caller)
        else:
            listen = await caller.send("subscriptions/listen", {"notifications": {"taskIds": [NO_SUCH_TASK]}})
            assert listen.code == -32600

        assert await owners(tasks) == {}


async def assert_not_listable(caller: CoreAs) -> None:
    assert "list" not in caller.initialized["capabilities"]["tasks"]
    assert (await caller.send("tasks/list")).code in (-32600, -32601)


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
        if isinstance(again, CoreAs) and isinstance(bob, CoreAs):
            assert "list" in again.initialized["capabilities"]["tasks"]
            assert (await listed(again), await listed(bob)) == ({task_id}, set())


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
        if isinstance(nobody, CoreAs):
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


# What is pushed


@row(33)
async def test_a_stream_carries_ones_own_tasks_and_acknowledges_no_others() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        ModernAs(url, "alice") as alice,
        ModernAs(url, "bob") as bob,
    ):
        own, foreign = await alice.start("hold"), await bob.start("hold")
        await bob.until(foreign, "input_required")
        async with alice.listen({"taskIds": [foreign, own, NO_SUCH_TASK]}) as frames:
            first = await anext(frames)
            await bob.cancel(foreign)
            await bob.until(foreign, "cancelled")
            await alice.cancel(own)
            rest = [frame async for frame in frames]

    assert first["params"]["notifications"] == {"taskIds": [own]}
    told = [frame["params"] for frame in rest if frame.get("method") == "notifications/tasks"]
    assert {each["taskId"] for each in told} == {own}
    assert told[-1]["status"] == "cancelled"


@row(33)
@pytest.mark.parametrize("others", [{}, {"toolsListChanged": True}])
async def test_a_stream_says_nothing_more_once_the_token_that_opened_it_ran_out(
    set_ahead: Callable[[float], None], others: Json
) -> None:
    tokens = people("alice")
    tokens.add("short", subject="alice", expires_at=int(time.time()) + 60)
    async with (
        served(tokens) as (url, _),
        ModernAs(url, "alice") as alice,
        ModernAs(url, "short") as short,
        short.listen({"taskIds": [task_id := await alice.start("hold")], **others}) as frames,
    ):
        await alice.until(task_id, "input_required")
        heard = await heard_until(frames, "input_required")
        set_ahead(61)
        await alice.cancel(task_id)
        await alice.until(task_id, "cancelled")
        # A stream of tasks alone ends now; one that carries other kinds too stays open, and silent.
        heard += await rest_of(frames, seconds=1)

    statuses = [each["params"]["status"] for each in heard if each.get("method") == "notifications/tasks"]
    assert "cancelled" not in statuses
    assert statuses[-1] == "input_required"


async def heard_until(frames: AsyncIterator[Json], status: str) -> list[Json]:
    heard: list[Json] = []
    async with asyncio.timeout(10):
        async for frame in frames:
            heard.append(frame)
            if frame.get("params", {}).get("status") == status:
                return heard
    raise AssertionError(f"the stream ended before {status}: {heard}")


async def rest_of(frames: AsyncIterator[Json], seconds: float) -> list[Json]:
    heard: list[Json] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            heard.extend([frame async for frame in frames])
    return heard


@row(33)
async def test_the_stream_of_a_session_tells_of_its_own_tasks_only() -> None:
    async with (
        served(people("alice", "bob")) as (url, _),
        CoreAs(url, "alice") as alice,
        CoreAs(url, "bob") as bob,
        bob.listen() as frames,
    ):
        foreign = await alice.start("hold")
        await alice.until(foreign, "input_required")
        await alice.send("tasks/cancel", {"taskId": foreign})
        own = await bob.start("quick")
        heard = await heard_until(frames, "completed")

    told = [frame["params"] for frame in heard if frame["method"] == "notifications/tasks/status"]
    assert {each["taskId"] for each in told} == {own}
