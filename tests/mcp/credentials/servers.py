"""Servers of both frameworks whose tools use the credentials of their caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import anyio
import fastmcp.server.dependencies as fast
from fastmcp import FastMCP
from fastmcp.server.auth import AccessToken as FastAccessToken
from fastmcp.server.auth import TokenVerifier
from mcp.server import MCPServer, Server
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context
from mcp_types import ListToolsResult, Tool
from pydantic import AnyHttpUrl
from starlette.types import ASGIApp

from perdure import Tasks, current_task
from perdure.fastmcp import TaskOptions, TasksExtension

Framework: TypeAlias = Literal["sdk", "fastmcp"]
FRAMEWORKS: tuple[Framework, ...] = ("sdk", "fastmcp")
ServerKind: TypeAlias = Literal[Framework, "low-level"]
ISSUER = "https://issuer.test"


def claims_of(token: str) -> dict[str, Any]:
    """Return the fields of an access token: the token is its owner's name, and perhaps when it expires."""
    subject, _, expires_at = token.partition("@")
    return {
        "token": token,
        "client_id": "some-client",
        "scopes": ["read", f"only:{subject}"],
        "subject": subject,
        "expires_at": int(expires_at) if expires_at else None,
        "claims": {"iss": ISSUER, "tenant": f"{subject}'s"},
    }


class Verifier:
    """Accepts each token, for the official SDK."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken.model_validate(claims_of(token))


class FastVerifier(TokenVerifier):
    """Accepts each token, for FastMCP."""

    async def verify_token(self, token: str) -> FastAccessToken | None:
        return FastAccessToken.model_validate({**claims_of(token), "original_client_id": "original"})


class DurableServer:
    """A server of one of the frameworks, or a low-level server, with tools that are registered alike."""

    def __init__(
        self, framework: ServerKind, url: str, name: str, auth: Mapping[str, Any], **options: Any
    ) -> None:
        self.framework = framework
        self.server: MCPServer[Any] | Server[Any] | FastMCP[Any]
        self._names: list[str] = []
        if framework == "sdk":
            self.tasks = Tasks(url, **options)
            self.server = MCPServer(name, **auth, **self.tasks.attach())
        elif framework == "low-level":
            self.tasks = Tasks(url, **options)
            self.server = Server(name, on_list_tools=self._list_tools)
            self.tasks.install(self.server)
        else:
            extension = TasksExtension(url, **options)
            self.tasks = extension.tasks
            self.server = FastMCP(name, **auth)
            self.server.add_extension(extension)

    def tool(self, name: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], None]:
        """Register a durable tool."""

        def register(function: Callable[..., Any]) -> None:
            if isinstance(self.server, FastMCP):
                self.server.tool(function, name=name, task=TaskOptions(**options))
                return
            durable = self.tasks.durable(**options)(function)
            if isinstance(self.server, MCPServer):
                self.server.tool(name=name)(durable)
            self._names.append(name or function.__name__)

        return register

    async def _list_tools(self, *_: object) -> ListToolsResult:
        return ListToolsResult(
            tools=[Tool(name=name, input_schema={"type": "object"}) for name in self._names]
        )


class CredentialServer(DurableServer):
    """A server with the tools `whoami`, `whoami_in_a_thread`, `headers`, `until_expired` and the like."""

    app: Callable[[], ASGIApp]

    def __init__(
        self,
        framework: Framework,
        url: str,
        *,
        authenticated: bool = True,
        fast_verifier: TokenVerifier | None = None,
        **options: Any,
    ) -> None:
        auth: dict[str, Any] = {"auth": fast_verifier or (FastVerifier() if authenticated else None)}
        if framework == "sdk":
            settings = AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None)
            verified = {"auth": settings, "token_verifier": Verifier()} if authenticated else {}
            auth = {"log_level": "CRITICAL", **verified}
        super().__init__(framework, url, "credentials", auth, **options)
        self.go_on = asyncio.Event()
        """What `whoami` waits for."""
        self.go_on.set()
        server = self.server
        self.app = (
            (lambda: server.http_app(path="/mcp"))
            if isinstance(server, FastMCP)
            else server.streamable_http_app
        )
        self._add_tools()

    def _token(self) -> AccessToken | None:
        return get_access_token() if self.framework == "sdk" else fast.get_access_token()

    def _as_text(self) -> str:
        token = self._token()
        return "null" if token is None else token.model_dump_json()

    def _add_tools(self) -> None:
        @self.tool(retries=2)
        async def whoami() -> str:
            task = current_task()
            await task.set_variables({"started": task.attempt})
            await self.go_on.wait()
            return self._as_text()

        @self.tool()
        def whoami_in_a_thread() -> str:
            return self._as_text()

        @self.tool()
        async def until_expired() -> str:
            token = self._token()
            seen = "no token" if token is None else token.token
            await self._until_expired()
            return f"{seen}, then none"

        self._add_header_tools()

    def _add_header_tools(self) -> None:
        if self.framework == "sdk":

            @self.tool()
            async def headers(ctx: Context) -> str:
                return _dump(ctx.headers)

            @self.tool()
            async def headers_after_expiry(ctx: Context) -> str:
                before = ctx.headers
                assert before is not None
                assert before["Authorization"] == f"Bearer {self._known_token()}"
                await self._until_expired()
                assert "authorization" not in before
                assert before.get("Authorization") is None
                return _dump(ctx.headers)

        else:

            @self.tool("headers")
            async def fast_headers() -> str:
                return _dump(fast.get_http_headers(include_all=True))

            @self.tool("headers_after_expiry")
            async def fast_headers_after_expiry() -> str:
                before = fast.get_http_headers(include_all=True)
                assert before["authorization"] == f"Bearer {self._known_token()}"
                await self._until_expired()
                return _dump(fast.get_http_headers(include_all=True))

    def _known_token(self) -> str:
        token = self._token()
        assert token is not None
        return token.token

    async def _until_expired(self) -> None:
        while self._token() is not None:  # noqa: ASYNC110 (there is no event)
            await anyio.sleep(0.05)


def _dump(headers: Mapping[str, str] | None) -> str:
    return json.dumps(None if headers is None else dict(headers))
