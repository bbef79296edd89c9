"""A server with durable tools, and clients of every version that call them plainly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.shared.exceptions import MCPError
from pydantic import AnyHttpUrl

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig
from perdure.tasks import InputKind, InputRequest, Owner, Snapshot

from ..raw_clients import MODERN, Answer, Answering, Client2025, Client2026, Json, serving

HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
EVERY_VERSION = (MODERN, *HANDSHAKES)
ANYBODY = Owner.anonymous()
RELATED = "io.modelcontextprotocol/related-task"
CONFIRM: Json = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
YES: Json = {"action": "accept", "content": {"confirm": True}}


@dataclass
class ToolServer:
    """A running server, and what its tools noted."""

    url: str
    tasks: Tasks
    begun: list[str] = field(default_factory=list[str])
    """The ids of tasks whose work began."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """What `gated` waits for."""

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
async def hosting(
    *, authenticated: bool = False, hand_over_after: float | None = None, **http: Any
) -> AsyncGenerator[ToolServer]:
    """Serve the tools. `http` are options of the SDK's application."""
    runtime = RuntimeConfig(drain_timeout=0.0, cancel_grace=0.5, report_interval=0.05)
    tasks = Tasks("memory:", runtime=runtime, hand_over_after=hand_over_after)
    auth = AuthSettings(issuer_url=AnyHttpUrl("https://issuer.test"), resource_server_url=None)
    server: MCPServer[object] = MCPServer(
        "tests",
        auth=auth if authenticated else None,
        token_verifier=Names() if authenticated else None,
        **tasks.attach(),
    )
    site = ToolServer("", tasks)
    add_working_tools(server, site)
    add_late_tools(server, site)
    add_asking_tools(server, site)
    async with serving(server.streamable_http_app(**http)) as site.url:
        yield site


def add_working_tools(server: MCPServer[object], site: ToolServer) -> None:
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
            await task.report_progress(step, 3, f"step {step}")
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


def add_late_tools(server: MCPServer[object], site: ToolServer) -> None:
    @server.tool()
    @site.tasks.durable()
    async def gated(task: Task) -> dict[str, int]:
        await task.report_progress(3, 12, "reading page 3")
        site.begun.append(task.id)
        await site.gate.wait()
        return {"sum": 3}

    @server.tool()
    @site.tasks.durable()
    async def breaking_late(task: Task) -> str:
        site.begun.append(task.id)
        await site.gate.wait()
        raise MCPError(-32099, "broken")


def add_asking_tools(server: MCPServer[object], site: ToolServer) -> None:
    @server.tool()
    @site.tasks.durable()
    async def confirming(task: Task, what: str = "it") -> str:
        site.begun.append(task.id)
        answer = await task.elicit(f"Do {what}?", CONFIRM, key="go")
        return f"{answer.action}: {(answer.data or {}).get('confirm')}"

    @server.tool()
    @site.tasks.durable()
    async def talking(task: Task) -> str:
        await task.log("info", "before")
        await task.elicit("Do it?", CONFIRM, key="go")
        await task.log("info", "after")
        return "done"

    @server.tool()
    @site.tasks.durable()
    async def confirming_then_endless(task: Task) -> str:
        site.begun.append(task.id)
        await task.elicit("Do it?", CONFIRM, key="go")
        await anyio.sleep_forever()
        return "never"

    @server.tool()
    @site.tasks.durable()
    async def visiting(task: Task) -> str:
        site.begun.append(task.id)
        answer = await task.elicit_url("Sign in", "https://example.com/sign-in")
        return answer.action

    @server.tool()
    @site.tasks.durable(operators_answer=True)
    async def approving(task: Task) -> str:
        site.begun.append(task.id)
        answer = await task.elicit("Approve it?", CONFIRM, key="go")
        return answer.action

    @server.tool()
    @site.tasks.durable()
    async def confirming_twice(task: Task) -> str:
        asked = await task.ask({"one": question("One?"), "two": question("Two?")})
        return ", ".join(f"{key} {getattr(each.answer, 'action', None)}" for key, each in asked.items())


def question(message: str) -> InputRequest:
    params = {"mode": "form", "message": message, "requestedSchema": CONFIRM}
    return InputRequest(kind=InputKind.ELICITATION, params=params)


class Cancelling(Client2025):
    """A client that says that it no longer wants the answer to its first request after the handshake."""

    async def __aenter__(self) -> Cancelling:
        await super().__aenter__()
        return self

    async def cancel_first_call(self) -> None:
        params = {"requestId": 2, "reason": "no longer wanted"}
        await self._post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


class Caller:
    """Calls tools at any version, without ever speaking of tasks."""

    def __init__(self, client: Client2026 | Client2025, capabilities: Json | None = None) -> None:
        self._client = client
        self._capabilities = capabilities

    async def call(self, tool: str, arguments: Mapping[str, Any] = {}, **more: Any) -> Answer:
        return await self.send("tools/call", {"name": tool, "arguments": arguments, **more})

    async def send(self, method: str, params: Json) -> Answer:
        if isinstance(self._client, Client2026):
            return await self._client.send(method, params, declared=False, capabilities=self._capabilities)
        return await self._client.send(method, params)


@asynccontextmanager
async def calling(
    url: str,
    version: str,
    *,
    answering: Answering | None = None,
    capabilities: Json | None = None,
    token: str | None = None,
) -> AsyncGenerator[Caller]:
    if version == MODERN:
        async with Client2026(url, token=token) as client:
            yield Caller(client, capabilities)
    else:
        async with Client2025(
            url, version=version, answering=answering, capabilities=capabilities, token=token
        ) as client:
            yield Caller(client)


async def yes(request: Json) -> Json:
    return YES


def texts_of(answer: Answer) -> list[str]:
    return [each["text"] for each in answer.result["content"]]
