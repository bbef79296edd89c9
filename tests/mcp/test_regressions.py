"""What a review found broken: who else has a say in a request, who may be asked what, whose a task is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeAlias

import pytest
from mcp.client import Client
from mcp.client.session import ClientRequestContext
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, ElicitRequestParams, ElicitResult, ErrorData
from pydantic import AnyHttpUrl

from perdure import Task, Tasks
from perdure.mcp import admission
from perdure.mcp.client import ClientTasks
from perdure.mcp.identity import owner_of_token
from perdure.runtime import RuntimeConfig
from perdure.tasks import Owner

from .. import task_edits
from ..conditions import wait_until
from .raw_clients import Answer, Client2025, Client2026, Json, serving
from .tokens import ISSUER, TokenClient2025, TokenClient2026, Tokens, people
from .tool_helpers import text_of

pytestmark = pytest.mark.anyio

Request: TypeAlias = ServerRequestContext[Any, Any]
FAST_CONFIG = RuntimeConfig(drain_timeout=0.0, cancel_grace=0.5, report_interval=0.05)
LASTING: Json = {"then_wait": True}
KEY: Json = {"perdure/idempotencyKey": "one"}
FORM: Json = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
YES: Json = {"action": "accept", "content": {"confirm": True}}
POOL = {"name": "the pool"}
REFUSED: Json = {"content": [{"type": "text", "text": "not you"}], "isError": True}
LOOK: Json = {"name": "look", "inputSchema": {"type": "object"}}
SAMPLING: Json = {"messages": [], "maxTokens": 10, "tools": [LOOK]}
SAMPLED: Json = {"role": "assistant", "content": {"type": "text", "text": "Well."}, "model": "wit"}
WELL = ElicitResult(action="accept", content={"confirm": True})


class Other:
    """A middleware of the user's own: may refuse what comes, and put something in the place of a call."""

    def __init__(self) -> None:
        self.refusing: dict[str, list[MCPError]] = {}
        self.instead: HandlerResult = None
        self.over: list[str] = []

    async def __call__(self, ctx: Request, call_next: CallNext) -> HandlerResult:
        try:
            if refusals := self.refusing.get(ctx.method):
                raise refusals.pop(0)
            result = await call_next(ctx)
            return result if ctx.method != "tools/call" or self.instead is None else self.instead
        finally:
            self.over.append(ctx.method)


class ToolServer:
    """A server, with a middleware around that of tasks and one within it, and a gate that tools wait for."""

    def __init__(self, tokens: Tokens | None, options: Mapping[str, Any]) -> None:
        self.url = ""
        self.gate = asyncio.Event()
        self.tasks = Tasks("memory:", runtime=FAST_CONFIG, **options)
        self.outer, self.inner = Other(), Other()
        attached = self.tasks.attach(middleware=[self.inner], lifespan=pooled)
        self.lifespan = attached["lifespan"]
        given: dict[str, Any] = {**attached, "token_verifier": tokens}
        given["middleware"] = [self.outer, *attached["middleware"]]
        if tokens is not None:
            given["auth"] = AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None)
        self.server: MCPServer[Any] = MCPServer("tests", log_level="ERROR", **given)

    async def statuses(self) -> list[str]:
        """Of all tasks, in the order in which they were made; one that was told to end is cancelled."""
        tasks = [each.task for each in await task_edits.all_tasks(self.tasks.runtime.store)]
        return [each.status.value if each.cancel_requested_at is None else "cancelled" for each in tasks]

    async def has_only(self, *statuses: str) -> bool:
        return {*await self.statuses()} <= {*statuses}

    async def have(self, *statuses: str) -> bool:
        return await self.statuses() == list(statuses)


@asynccontextmanager
async def pooled(_: object) -> AsyncGenerator[dict[str, str]]:
    yield POOL


def in_use(ctx: Context[Any, Any]) -> str:
    return ctx.request_context.lifespan_context["name"]


@asynccontextmanager
async def hosting(
    tokens: Tokens | None = None, *, stateless: bool = False, **options: Any
) -> AsyncGenerator[ToolServer]:
    site = ToolServer(tokens, options)
    add_tools(site.server, site)
    async with serving(site.server.streamable_http_app(stateless_http=stateless)) as site.url:
        yield site


def add_tools(server: MCPServer[Any], site: ToolServer) -> None:
    @server.tool()
    @site.tasks.durable()
    async def pool(name: Annotated[str, Resolve(in_use)]) -> str:
        return name

    @server.tool()
    @site.tasks.durable(poll_interval=0.05)
    async def patient(task: Task) -> str:
        await task.report_progress(1, 2, "waiting")
        await site.gate.wait()
        return "done"

    @server.tool()
    @site.tasks.durable(poll_interval=0.05)
    async def confirm(task: Task, *, then_wait: bool = False) -> str:
        answer = await task.elicit("Shall I?", FORM, key="go")
        if then_wait:
            await site.gate.wait()
        return answer.action

    @server.tool()
    @site.tasks.durable()
    async def sample(task: Task) -> str:
        sampled = await task.sample(SAMPLING["messages"], max_tokens=10, key="go", tools=[LOOK])
        return str(sampled["model"])

    @server.tool()
    @site.tasks.durable()
    async def fill_in(reference: str, task: Task) -> str:
        schema: Json = {"type": "object", "properties": {"name": {"$ref": reference}}}
        return str(((await task.elicit("Who?", schema, key="go")).data or {})["name"])


async def call_plainly(
    client: Client2026, tool: str, arguments: Mapping[str, Any] = {}, after: Json | None = None
) -> Answer:
    """As a client does that knows of no tasks; after a round in which it was asked, with its answer."""
    round_ = {"inputResponses": {"go": YES}, "requestState": after["requestState"]} if after else {}
    return await client.send("tools/call", {"name": tool, "arguments": arguments, **round_}, declared=False)


# Those who are asked after tasks are, and may refuse


@pytest.mark.parametrize("code", [-32042, -32601])
async def test_who_may_not_listen_is_told_of_no_task_either(code: int) -> None:
    async with hosting() as site, Client2026(site.url) as client:
        task_id = await client.start("pool")
        await client.until(task_id, "completed")
        site.inner.refusing["subscriptions/listen"] = [MCPError(code, "not you")]
        answer = await client.send("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
    assert (answer.error, answer.frames) == ({"code": code, "message": "not you"}, ())


async def test_who_may_no_longer_call_a_tool_cannot_go_on_with_a_call_either() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        first = (await call_plainly(client, "confirm")).result
        site.inner.refusing["tools/call"] = [MCPError(-32042, "not you")]
        assert (await call_plainly(client, "confirm", after=first)).code == -32042
        assert await site.statuses() == ["input_required"]
        assert text_of((await call_plainly(client, "confirm", after=first)).result) == "accept"


@pytest.mark.parametrize("instead", [REFUSED, {"content": [], "isError": True}], ids=["told why", "mute"])
async def test_an_error_that_middleware_puts_in_the_place_of_a_task_is_the_answer(instead: Json) -> None:
    async with hosting() as site, Client2026(site.url) as modern, Client2025(site.url) as core:
        site.inner.instead = instead
        answers = [
            await modern.call("pool"),
            await call_plainly(modern, "pool"),
            await core.call("pool"),
            await core.call("pool", task={}),
        ]
        got = [(each.result["content"], each.result["isError"]) for each in answers]
        assert got == [(instead["content"], True)] * 4
        await wait_until(lambda: site.has_only("completed", "cancelled"))


async def test_durable_functions_of_a_low_level_server_are_called_directly_and_middleware_refuses_them() -> (
    None
):
    tasks = Tasks("memory:", runtime=FAST_CONFIG)
    handled: list[str] = []

    @tasks.durable()
    async def quick() -> str:
        return "done"

    async def call_tool(_: Request, params: CallToolRequestParams) -> CallToolResult:
        handled.append(params.name)
        return CallToolResult(content=[])

    other = Other()
    server: Server[Any] = Server("low", on_call_tool=call_tool)
    tasks.install(server)
    server.middleware.append(other)
    async with (
        serving(server.streamable_http_app()) as url,
        Client2026(url) as modern,
        Client2025(url) as core,
    ):
        assert text_of((await core.call("quick")).result) == "done"
        assert (await modern.until(await modern.start("quick"), "completed"))["result"]["content"]
        other.refusing["tools/call"] = [MCPError(-32042, "not you", {"because": "quota"})] * 3
        answers = [await modern.call("quick"), await core.call("quick"), await core.call("quick", task={})]
        for answer in answers:
            assert answer.error == {"code": -32042, "message": "not you", "data": {"because": "quota"}}
        await core.call("plain")
        assert sum((await task_edits.counts(tasks.runtime.store)).values()) == 2
    assert handled == ["plain"]


# Calls that wait


class Streaming(TokenClient2026):
    async def hang_up_waiting(self, tool: str, meta: Json) -> None:
        """Call a tool, and drop the connection once something is told of how far it is."""
        params = {"name": tool, "arguments": {}, "_meta": {**meta, "progressToken": "mine"}}
        body, headers = self.body("tools/call", params, {}), self.headers("tools/call", tool)
        async with self._http.stream("POST", self._url, json=body, headers=headers) as response:
            async for line in response.aiter_lines():
                if "notifications/progress" in line:
                    return


@pytest.mark.parametrize(("meta", "left"), [(KEY, ["working"]), ({}, ["working", "cancelled"])])
async def test_a_waiting_call_that_hangs_up_ends_only_a_task_of_which_nobody_else_knows(
    meta: Json, left: list[str]
) -> None:
    async with hosting(people("ana")) as site, (client := Streaming(site.url, "ana")):
        known = await client.send("tools/call", {"name": "patient", "arguments": {}, "_meta": meta})
        await client.hang_up_waiting("patient", meta)
        await wait_until(lambda: site.outer.over.count("tools/call") == 2)
        assert await site.statuses() == left
        site.gate.set()
        await client.until(known.result["taskId"], "completed")


async def test_a_call_whose_client_does_not_come_back_with_its_answers_ends_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "INPUT_ROUND_TIMEOUT", 3.0)
    async with hosting() as site, Client2026(site.url) as client:
        first = (await call_plainly(client, "confirm", LASTING)).result
        answered = asyncio.create_task(call_plainly(client, "confirm", LASTING, first))
        await wait_until(lambda: site.have("working"))
        await call_plainly(client, "confirm")
        await wait_until(lambda: site.have("working", "failed"))
        site.gate.set()
        assert text_of((await answered).result) == "accept"


async def test_a_session_hears_once_of_what_it_asked_for_twenty_times() -> None:
    async with (
        hosting(people("ana")) as site,
        TokenClient2025(site.url, "ana") as client,
        client.listen() as told,
    ):
        answers = [await client.call("patient", task={}, _meta=KEY) for _ in range(20)]
        (task_id,) = {each.result["task"]["taskId"] for each in answers}
        site.gate.set()
        before = await ends_until(told, task_id)
        later = await client.start("patient")
        assert before + await ends_until(told, later) == [task_id, later]


async def ends_until(frames: AsyncIterator[Json], task_id: str) -> list[str]:
    """Of which tasks it is said that they are completed, up to this one."""
    said: list[str] = []
    async with asyncio.timeout(15):
        while task_id not in said:
            params = (await anext(frames))["params"]
            said += [params["taskId"]] if params.get("status") == "completed" else []
    return said


# Who can be asked what


async def answering(request: Json) -> Json:
    return SAMPLED if request["method"] == "sampling/createMessage" else YES


@pytest.mark.parametrize(
    ("tool", "capabilities", "asked"),
    [
        ("confirm", {"elicitation": {"url": {}}}, 0),
        ("confirm", {"elicitation": {}}, 2),
        ("confirm", {"elicitation": {"form": {}, "url": {}}}, 2),
        ("sample", {"sampling": {}}, 0),
        ("sample", {"sampling": {"tools": {}}}, 2),
    ],
)
async def test_a_client_is_asked_what_it_says_it_can_be_asked_and_nothing_else(
    tool: str, capabilities: Json, asked: int
) -> None:
    async with (
        hosting() as site,
        Client2025(site.url, answering=answering, capabilities=capabilities) as client,
    ):
        plain = await client.call(tool)
        as_task = await client.send("tasks/result", {"taskId": await client.start(tool)})
    assert len(client.asked) == asked
    for answer in (plain, as_task):
        assert answer.result if asked else "did not declare" in answer.error["message"]


@pytest.mark.parametrize("reference", ["#/$defs/nowhere", "urn:nowhere", "#/properties/name"])
async def test_a_form_that_refers_to_nothing_takes_any_answer(reference: str) -> None:
    async with hosting() as site, Client2026(site.url) as client:
        task_id = await client.start("fill_in", {"reference": reference})
        await client.until(task_id, "input_required")
        given = {"go": {"action": "accept", "content": {"name": "Ada"}}}
        assert (await client.update(task_id, given)).result["resultType"] == "complete"
        assert text_of((await client.until(task_id, "completed"))["result"]) == "Ada"


# Whose a task is


def owner(client: str, **claims: str) -> Owner:
    token = AccessToken(token=client, client_id=client, scopes=[], subject="ana", claims=claims)
    return owner_of_token(token)


async def test_a_subject_without_an_issuer_is_one_within_its_client() -> None:
    assert owner("one", iss=ISSUER) == owner("two", iss=ISSUER)
    assert owner("one") == owner("one") != owner("two")
    tokens = Tokens()
    for name in ("one", "two"):
        tokens.add(name, subject="ana", client=name, issuer=None)
    async with (
        hosting(tokens) as site,
        TokenClient2025(site.url, "one") as one,
        TokenClient2025(site.url, "two") as two,
    ):
        task_id = await one.start("pool")
        listed = [(await each.send("tasks/list")).result["tasks"] for each in (one, two)]
        assert [[task["taskId"] for task in tasks] for tasks in listed] == [[task_id], []]
        assert (await two.send("tasks/get", {"taskId": task_id})).code == -32602


async def test_a_server_without_sessions_lists_nothing_though_tasks_belong_to_sessions() -> None:
    async with hosting(stateless=True, anonymous="session") as site, Client2025(site.url) as client:
        assert client.session_id is None
        await client.start("pool")
        assert (await client.send("tasks/list")).code == -32601


async def test_leaving_one_lifespan_keeps_what_another_one_yielded() -> None:
    async with hosting() as site, Client2026(site.url) as client:
        async with site.lifespan(site.server):
            pass
        assert text_of((await call_plainly(client, "pool")).result) == POOL["name"]


# The client


@asynccontextmanager
async def visiting(site: ToolServer, answer: ElicitResult | ErrorData | Exception) -> AsyncGenerator[Client]:
    """A client that answers so when it is asked."""

    async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with Client(site.url, extensions=[ClientTasks()], elicitation_callback=elicit) as client:
        yield client


async def test_a_client_asks_a_busy_server_again() -> None:
    async with hosting() as site, visiting(site, WELL) as client:
        site.outer.refusing["tasks/get"] = [MCPError(-32603, "busy", {"retryable": True})]
        assert not (await client.call_tool("confirm")).is_error
        assert site.outer.refusing["tasks/get"] == []


async def test_a_client_that_cannot_see_its_task_does_not_end_it() -> None:
    async with hosting() as site, visiting(site, WELL) as client:
        site.outer.refusing["tasks/get"] = [MCPError(-32603, "broken", {"retryable": False})]
        with pytest.raises(MCPError, match="broken"):
            await client.call_tool("patient")
        assert await site.statuses() == ["working"]


async def test_a_callback_that_is_late_is_not_the_lateness_of_the_call() -> None:
    async with hosting() as site, visiting(site, TimeoutError("nobody is there")) as client:
        with pytest.raises(
            MCPError,
            match="the client's callback for elicitation/create failed: TimeoutError",
        ) as raised:
            await client.call_tool("confirm", read_timeout_seconds=30)
        assert raised.value.code == -32603


async def test_a_callback_that_refuses_ends_the_task() -> None:
    async with hosting() as site, visiting(site, ErrorData(code=-32077, message="rather not")) as client:
        with pytest.raises(MCPError, match="rather not"):
            await client.call_tool("confirm")
        assert await site.statuses() == ["cancelled"]
