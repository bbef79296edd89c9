"""Clients that know of no tasks call durable tools: their call waits, and is served as any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.shared.exceptions import MCPError
from pydantic import AnyHttpUrl

from perdure import Task, Tasks
from perdure.runtime import Runtime, RuntimeConfig
from perdure.tasks import InputKind, InputRequest, NewTask, Owner, Snapshot, Status

from ..runtime.replicas import until
from .wire import MODERN, Answer, Answering, Core, Json, Modern, serving

pytestmark = pytest.mark.anyio

HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
EVERY_VERSION = (MODERN, *HANDSHAKES)
ANYBODY = Owner.anonymous()
RELATED = "io.modelcontextprotocol/related-task"
CONFIRM: Json = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
YES: Json = {"action": "accept", "content": {"confirm": True}}


@dataclass
class Site:
    """A running server, and what its tools noted."""

    url: str
    tasks: Tasks
    begun: list[str] = field(default_factory=list[str])
    """The ids of tasks whose work began."""

    async def begins(self) -> str:
        """The id of the one task, once its work has begun."""
        async with asyncio.timeout(15):
            while True:
                if self.begun:
                    return self.begun[0]
                await asyncio.sleep(0.01)

    async def look(self, task_id: str, owner: Owner = ANYBODY) -> Snapshot:
        return await self.tasks.runtime.get(owner, task_id)

    async def ended(self, task_id: str) -> Snapshot:
        return await self.tasks.runtime.wait(ANYBODY, task_id, timeout=15)


class Names:
    """Lets everybody in under the name that is their token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="client", scopes=[], subject=token)


@asynccontextmanager
async def hosting(*, authenticated: bool = False) -> AsyncGenerator[Site]:
    tasks = Tasks("memory:", runtime=RuntimeConfig(drain=0.0, cancel_grace=0.5))
    auth = AuthSettings(issuer_url=AnyHttpUrl("https://issuer.test"), resource_server_url=None)
    server: MCPServer[object] = MCPServer(
        "tests",
        auth=auth if authenticated else None,
        token_verifier=Names() if authenticated else None,
        **tasks.attach(),
    )
    site = Site("", tasks)
    add_working_tools(server, site)
    add_asking_tools(server, site)
    async with serving(server.streamable_http_app()) as site.url:
        yield site


def add_working_tools(server: MCPServer[object], site: Site) -> None:
    @server.tool()
    @site.tasks.durable()
    async def add(one: int, two: int) -> dict[str, int]:
        return {"sum": one + two}

    @server.tool(name="plain_add")
    async def add_plainly(one: int, two: int) -> dict[str, int]:
        return {"sum": one + two}

    @server.tool()
    @site.tasks.durable()
    async def breaking() -> str:
        raise MCPError(-32099, "broken", {"why": "on purpose"})

    @server.tool()
    @site.tasks.durable()
    async def stepping(task: Task) -> str:
        for step in (1, 2, 3):
            await task.report(f"step {step}", done=step, total=3)
        return "all steps"

    @server.tool()
    @site.tasks.durable()
    async def endless(task: Task, label: str = "") -> str:
        site.begun.append(task.id)
        await anyio.sleep_forever()
        return label

    @server.tool()
    @site.tasks.durable(mode="required")
    async def required() -> str:
        return "as a task"


def add_asking_tools(server: MCPServer[object], site: Site) -> None:
    @server.tool()
    @site.tasks.durable()
    async def confirming(task: Task, what: str = "it") -> str:
        site.begun.append(task.id)
        answer = await task.elicit(f"Do {what}?", CONFIRM, key="go")
        return f"{answer.action}: {answer.values.get('confirm')}"

    @server.tool()
    @site.tasks.durable()
    async def confirming_twice(task: Task) -> str:
        asked = await task.ask({"one": question("One?"), "two": question("Two?")})
        return ", ".join(f"{key} {getattr(each.answer, 'action', None)}" for key, each in asked.items())


def question(message: str) -> InputRequest:
    params = {"mode": "form", "message": message, "requestedSchema": CONFIRM}
    return InputRequest(kind=InputKind.ELICITATION, params=params)


class Cancelling(Core):
    """A client that says that it no longer wants the answer to its first request after the handshake."""

    async def __aenter__(self) -> Cancelling:
        await super().__aenter__()
        return self

    async def cancel_first_call(self) -> None:
        params = {"requestId": 2, "reason": "no longer wanted"}
        await self._post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


class Caller:
    """Calls tools at any version, without ever speaking of tasks."""

    def __init__(self, client: Modern | Core) -> None:
        self._client = client

    async def call(self, tool: str, arguments: Mapping[str, Any] = {}, **more: Any) -> Answer:
        params = {"name": tool, "arguments": arguments, **more}
        if isinstance(self._client, Modern):
            return await self._client.send("tools/call", params, declared=False)
        return await self._client.send("tools/call", params)


@asynccontextmanager
async def calling(
    url: str, version: str, *, answering: Answering | None = None, capabilities: Json | None = None
) -> AsyncGenerator[Caller]:
    if version == MODERN:
        async with Modern(url) as client:
            yield Caller(client)
    else:
        async with Core(url, version=version, answering=answering, capabilities=capabilities) as client:
            yield Caller(client)


async def yes(request: Json) -> Json:
    return YES


def texts_of(answer: Answer) -> list[str]:
    return [each["text"] for each in answer.result["content"]]


# Results


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_durable_tool_answers_a_plain_call_exactly_as_a_plain_tool_does(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        durable = await client.call("add", {"one": 1, "two": 2})
        plain = await client.call("plain_add", {"one": 1, "two": 2})

    assert durable.result == plain.result
    assert "sum" in texts_of(durable)[0]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_json_rpc_error_of_the_tool_is_the_error_of_the_call(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        answer = await client.call("breaking")

    assert answer.error == {"code": -32099, "message": "broken", "data": {"why": "on purpose"}}


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_arguments_that_the_tool_does_not_take_are_refused_as_for_a_plain_tool(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        durable = await client.call("add", {"one": "x", "two": 2})
        plain = await client.call("plain_add", {"one": "x", "two": 2})
        counts = await site.tasks.runtime.store.counts()

    plainly = str(plain.result).replace("plain_add", "add").replace("add_plainly", "add")
    assert str(durable.result) == plainly
    assert durable.result["isError"] is True
    assert sum(counts.values()) == 0


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_tool_that_requires_a_task_is_not_called_without_one_at_any_handshake(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        assert (await client.call("required")).code == -32601


@pytest.mark.parametrize("version", [MODERN, "2025-06-18", "2024-11-05"])
async def test_the_wish_for_a_task_is_passed_over_where_the_version_has_none(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        answer = await client.call("add", {"one": 1, "two": 2}, task={"ttl": 1000})

    assert "sum" in texts_of(answer)[0]


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_a_task_of_which_the_client_does_not_know_is_stored_while_it_runs(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        call = asyncio.create_task(client.call("endless", {"label": "x"}))
        task_id = await site.begins()
        task = (await site.look(task_id)).task

        assert (task.status, task.original_method) == (Status.WORKING, "tools/call")
        assert task.original_params == {"name": "endless", "arguments": {"label": "x"}}

        await site.tasks.runtime.cancel(ANYBODY, task_id)
        assert "cancel" in (await call).error["message"]


# Progress


@pytest.mark.parametrize("version", EVERY_VERSION)
async def test_progress_of_the_task_is_progress_of_the_call(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        answer = await client.call("stepping", _meta={"progressToken": "mine"})

    told = [frame["params"] for frame in answer.frames if frame["method"] == "notifications/progress"]
    assert told
    assert {params["progressToken"] for params in told} == {"mine"}
    assert [params["progress"] for params in told] == sorted({params["progress"] for params in told})
    assert (told[-1]["progress"], told[-1]["total"]) == (3, 3)
    assert texts_of(answer) == ["all steps"]


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_a_call_without_a_progress_token_is_told_of_no_progress(version: str) -> None:
    async with hosting() as site, calling(site.url, version) as client:
        answer = await client.call("stepping")

    assert answer.frames == ()
    assert texts_of(answer) == ["all steps"]


# Questions


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_what_the_task_asks_is_asked_on_the_stream_of_the_call_and_names_no_task(version: str) -> None:
    asked: list[Json] = []

    async def answering(request: Json) -> Json:
        asked.append(request)
        return YES

    async with hosting() as site, calling(site.url, version, answering=answering) as client:
        answer = await client.call("confirming", {"what": "this"})

    assert texts_of(answer) == ["accept: True"]
    assert [each["params"]["message"] for each in asked] == ["Do this?"]
    assert RELATED not in asked[0]["params"].get("_meta", {})


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_client_that_cannot_be_asked_is_refused_and_the_task_is_cancelled(version: str) -> None:
    async with (
        hosting() as site,
        calling(site.url, version, answering=yes, capabilities={}) as client,
    ):
        answer = await client.call("confirming")
        task = (await site.ended(await site.begins())).task

    assert "elicitation" in answer.error["message"].lower()
    assert task.status is Status.CANCELLED


async def ask_modern(client: Modern, tool: str, **more: Any) -> Answer:
    params: Json = {"name": tool, "arguments": {}, **more}
    return await client.send("tools/call", params, declared=False)


async def test_what_the_task_asks_is_a_round_of_the_call_in_the_later_generation() -> None:
    async with hosting() as site, Modern(site.url) as client:
        first = (await ask_modern(client, "confirming")).result
        assert first["resultType"] == "input_required"
        assert "taskId" not in str(first)
        assert first["inputRequests"]["go"]["method"] == "elicitation/create"
        assert first["inputRequests"]["go"]["params"]["requestedSchema"] == CONFIRM

        second = await ask_modern(
            client, "confirming", requestState=first["requestState"], inputResponses={"go": YES}
        )
        assert second.result["resultType"] == "complete"
        assert texts_of(second) == ["accept: True"]
        assert len(site.begun) == 1


async def test_a_client_of_the_later_generation_that_cannot_be_asked_is_told_what_it_lacks() -> None:
    async with hosting() as site, Modern(site.url) as client:
        answer = await client.call("confirming", capabilities={})
        task = (await site.ended(await site.begins())).task

    assert answer.code == -32021
    assert "elicitation" in answer.error["data"]["requiredCapabilities"]
    assert task.status is Status.CANCELLED


async def test_questions_answered_one_by_one_leave_the_others_for_the_next_round() -> None:
    async with hosting() as site, Modern(site.url) as client:
        first = (await ask_modern(client, "confirming_twice")).result
        assert set(first["inputRequests"]) == {"one", "two"}

        answered = {"requestState": first["requestState"], "inputResponses": {"one": YES}}
        second = (await ask_modern(client, "confirming_twice", **answered)).result
        assert set(second["inputRequests"]) == {"two"}

        answered = {"requestState": second["requestState"], "inputResponses": {"two": {"action": "decline"}}}
        assert texts_of(await ask_modern(client, "confirming_twice", **answered)) == [
            "one accept, two decline"
        ]


async def test_a_round_without_answers_asks_the_same_again() -> None:
    async with hosting() as site, Modern(site.url) as client:
        first = (await ask_modern(client, "confirming")).result
        again = (await ask_modern(client, "confirming", requestState=first["requestState"])).result

    assert again["inputRequests"] == first["inputRequests"]
    assert len(site.begun) == 1


async def test_an_answer_that_is_not_what_the_form_asks_for_is_refused_and_can_be_given_again() -> None:
    async with hosting() as site, Modern(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        wrong = {"go": {"action": "accept", "content": {"confirm": "perhaps"}}}
        refused = await ask_modern(client, "confirming", requestState=state, inputResponses=wrong)
        given = await ask_modern(client, "confirming", requestState=state, inputResponses={"go": YES})

    assert refused.code == -32602
    assert "go" in refused.error["message"]
    assert texts_of(given) == ["accept: True"]


def with_another_end(state: str) -> str:
    return state[:-2] + ("AA" if state[-2:] != "AA" else "BB")


def with_another_start(state: str) -> str:
    return ("x" if state[0] != "x" else "y") + state[1:]


def nonsense(state: str) -> str:
    return "nonsense"


@pytest.mark.parametrize("damage", [with_another_end, with_another_start, nonsense])
async def test_a_damaged_request_state_is_refused_and_the_task_still_waits(
    damage: Callable[[str], str],
) -> None:
    async with hosting() as site, Modern(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        refused = await ask_modern(
            client, "confirming", requestState=damage(state), inputResponses={"go": YES}
        )
        task = (await site.look(site.begun[0])).task

    assert refused.code == -32602
    assert (task.status, len(site.begun)) == (Status.INPUT_REQUIRED, 1)


async def test_knowing_the_id_of_a_task_does_not_make_a_request_state() -> None:
    async with hosting() as site, Modern(site.url) as client:
        await ask_modern(client, "confirming")
        forged = f"perdure/task:{site.begun[0]}"
        refused = await ask_modern(client, "confirming", requestState=forged, inputResponses={"go": YES})
        task = (await site.look(site.begun[0])).task

    assert refused.code == -32602
    assert task.status is Status.INPUT_REQUIRED


async def test_the_request_state_of_one_tool_is_none_of_another() -> None:
    async with hosting() as site, Modern(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        refused = await ask_modern(client, "confirming_twice", requestState=state, inputResponses={"go": YES})
        task = (await site.look(site.begun[0])).task

    assert refused.code == -32602
    assert task.status is Status.INPUT_REQUIRED


async def test_the_request_state_of_one_caller_is_none_of_another() -> None:
    async with (
        hosting(authenticated=True) as site,
        Modern(site.url, token="ana") as ana,  # noqa: S106, a name
        Modern(site.url, token="bob") as bob,  # noqa: S106, a name
    ):
        state = (await ask_modern(ana, "confirming")).result["requestState"]
        answered = {"requestState": state, "inputResponses": {"go": YES}}
        refused = await ask_modern(bob, "confirming", **answered)
        task = (await site.look(site.begun[0], Owner.user("client client", "ana"))).task
        accepted = await ask_modern(ana, "confirming", **answered)

    assert refused.code == -32602
    assert task.status is Status.INPUT_REQUIRED
    assert texts_of(accepted) == ["accept: True"]


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_an_answer_that_comes_after_the_end_does_not_spoil_the_result(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has answered, which ended the task, and the call has not heard of it yet."""
    watched, is_over, hears = Runtime.watch, asyncio.Event(), asyncio.Event()

    async def watch_hard_of_hearing(runtime: Runtime, owner: Owner, task_id: str) -> AsyncGenerator[Snapshot]:
        async for snapshot in watched(runtime, owner, task_id):
            if snapshot.task.is_terminal:
                await hears.wait()
            yield snapshot

    async def late(_: Json) -> Json:
        await is_over.wait()
        return YES

    monkeypatch.setattr(Runtime, "watch", watch_hard_of_hearing)
    async with hosting() as site, Core(site.url, version=version, answering=late) as client:
        call = asyncio.create_task(client.call("confirming"))
        task_id = await site.begins()
        await until(lambda: bool(client.asked))
        await site.tasks.runtime.answer(ANYBODY, task_id, {"go": YES})
        await site.ended(task_id)
        is_over.set()
        await asyncio.wait([call], timeout=0.3)
        hears.set()

        assert texts_of(await call) == ["accept: True"]


async def test_a_round_that_comes_after_the_end_is_told_the_result() -> None:
    async with hosting() as site, Modern(site.url) as client:
        state = (await ask_modern(client, "confirming")).result["requestState"]
        await site.tasks.runtime.answer(ANYBODY, site.begun[0], {"go": {"action": "decline"}})
        await site.ended(site.begun[0])
        told = await ask_modern(client, "confirming", requestState=state, inputResponses={"go": YES})

    assert texts_of(told) == ["decline: None"]


# Going away


async def test_a_client_of_the_later_generation_that_disconnects_ends_its_task() -> None:
    async with hosting() as site, Modern(site.url) as client:
        call = asyncio.create_task(client.call("endless", declared=False))
        task_id = await site.begins()
        call.cancel()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED


async def test_a_client_that_disconnects_while_its_task_is_stored_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create, goes_on = Runtime.create, asyncio.Event()
    made: list[Snapshot] = []

    async def create_slowly(runtime: Runtime, owner: Owner, new: NewTask) -> Snapshot:
        made.append(await create(runtime, owner, new))
        await goes_on.wait()
        return made[0]

    monkeypatch.setattr(Runtime, "create", create_slowly)
    async with hosting() as site, Modern(site.url) as client:
        call = asyncio.create_task(client.call("endless", declared=False))
        task_id = await site.begins()
        call.cancel()
        await asyncio.sleep(0.2)  # until the server has heard of it
        goes_on.set()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_a_client_that_cancels_its_call_ends_its_task(version: str) -> None:
    async with hosting() as site, Cancelling(site.url, version=version) as client:
        call = asyncio.create_task(client.call("endless"))
        task_id = await site.begins()
        await client.cancel_first_call()

        assert (await site.ended(task_id)).task.status is Status.CANCELLED
        call.cancel()


async def test_a_task_that_a_client_knows_of_goes_on_when_the_client_disconnects() -> None:
    async with hosting() as site:
        async with Modern(site.url) as client:
            one = await client.start("endless")
        async with Core(site.url) as core:
            two = await core.start("endless")
        async with Modern(site.url) as client:
            assert [(await client.get(task_id))["status"] for task_id in (one, two)] == ["working"] * 2
