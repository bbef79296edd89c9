"""A server that knows its callers by their tokens, and raw clients that carry them, in both generations.

`python -m tests.mcp.tokens NAME...` serves people of these names, says where, and then errors only.

Tokens are looked up in a table instead of being verified by cryptography: everything after that is the SDK's
own authentication, on a real socket.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

from perdure import Task, Tasks
from perdure.runtime import RuntimeConfig
from perdure.tasks import InputKind, InputRequest

from .raw_clients import EXTENSION, Client2025, Client2026, Json, serving

ISSUER = "https://issuer.test"


class Tokens:
    """The tokens that a server takes; a `TokenVerifier`."""

    def __init__(self) -> None:
        self._known: dict[str, AccessToken] = {}

    def add(
        self,
        token: str,
        *,
        subject: str | None,
        client: str = "some-client",
        issuer: str | None = ISSUER,
        expires_at: int | None = None,
    ) -> str:
        """Let the bearer of this token in; the token."""
        claims = {} if issuer is None else {"iss": issuer}
        self._known[token] = AccessToken(
            token=token, client_id=client, scopes=[], subject=subject, claims=claims, expires_at=expires_at
        )
        return token

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    async def verify_token(self, token: str) -> AccessToken | None:
        return self._known.get(token)


def people(*names: str) -> Tokens:
    """One token for each name, whose subject is the name too."""
    tokens = Tokens()
    for name in names:
        tokens.add(name, subject=name)
    return tokens


def make_server(tasks: Tasks, tokens: Tokens | None) -> MCPServer[object]:
    """A server with these tasks, authenticated where there are tokens."""
    auth = AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None)
    server: MCPServer[object] = MCPServer(
        "owners",
        auth=None if tokens is None else auth,
        token_verifier=tokens,
        **tasks.attach(),
    )
    add_tools(tasks, server.tool)
    return server


Register: TypeAlias = Callable[[], Callable[[Callable[..., Awaitable[Any]]], object]]


def add_tools(tasks: Tasks, register: Register) -> None:
    @register()
    @tasks.durable()
    async def hold(task: Task, label: str = "", owner: str = "", subject: str = "") -> str:
        """Waits for an answer, and so for as long as a test wants."""
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        question = {"mode": "form", "message": f"Go on, {label}?", "requestedSchema": schema}
        await task.ask({"go": InputRequest(kind=InputKind.ELICITATION, params=question)})
        return f"held {label}"

    @register()
    @tasks.durable(ttl=0.05)
    async def brief() -> str:
        """Ends at once, and is of no interest a moment later."""
        return "brief"

    @register()
    @tasks.durable()
    async def quick(label: str = "") -> str:
        return f"done {label}"


class TokenClient2026(Client2026):
    """2026-07-28, with headers of its own, and to the byte."""

    def __init__(self, url: str, bearer: str | None = None, *, headers: Mapping[str, str] = {}) -> None:
        super().__init__(url, token=bearer)
        self._headers.update(headers)

    async def __aenter__(self) -> TokenClient2026:
        await super().__aenter__()
        return self

    async def post(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        """The status and the bytes that come back to a request that always has the same id."""
        capabilities: Json = {"extensions": {EXTENSION: {}}}
        body = {**self.body(method, params, capabilities), "id": 7_000}
        headers = {**self.headers(method, None), "content-type": "application/json"}
        response = await self._http.post(self._url, content=json.dumps(body), headers=headers)
        return response.status_code, response.content


class TokenClient2025(Client2025):
    """2025-11-25, with headers of its own, and to the byte."""

    def __init__(self, url: str, bearer: str | None = None, *, headers: Mapping[str, str] = {}) -> None:
        super().__init__(url, token=bearer)
        self._headers.update(headers)

    async def __aenter__(self) -> TokenClient2025:
        await super().__aenter__()
        return self

    async def post(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        """The status and the bytes that come back to a request that always has the same id."""
        body = {"jsonrpc": "2.0", "id": 7_000, "method": method, "params": params}
        headers = {**self._headers, "content-type": "application/json"}
        response = await self._http.post(self._url, content=json.dumps(body), headers=headers)
        return response.status_code, response.content

    def carry(self, headers: Mapping[str, str]) -> None:
        """Send these from now on, instead of what was sent."""
        self._headers.update(headers)


Caller: TypeAlias = TokenClient2026 | TokenClient2025
Generation: TypeAlias = type[TokenClient2026] | type[TokenClient2025]


def about(caller: Caller, task_id: str) -> dict[str, Json]:
    """Every method about one task that this generation has, with its parameters."""
    one: Json = {"taskId": task_id}
    if isinstance(caller, TokenClient2026):
        answers: Json = {**one, "inputResponses": {"go": {"action": "decline"}}}
        return {"tasks/get": one, "tasks/update": answers, "tasks/cancel": one}
    return {"tasks/get": one, "tasks/result": one, "tasks/cancel": one}


async def serve(names: Sequence[str]) -> None:
    """Until the one who started this hangs up."""
    tasks = Tasks("memory:", runtime=RuntimeConfig(drain_timeout=0))
    app = make_server(tasks, people(*names)).streamable_http_app()
    logging.basicConfig(level=logging.ERROR, force=True)
    async with serving(app) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
