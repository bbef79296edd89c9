"""Servers whose tools put a text that can be searched for into everything that a task can contain.

Everything that such a process can write goes to its standard error: log records of perdure from DEBUG on, and
all spans.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError as FastToolError
from fastmcp.server.auth import AccessToken as FastAccessToken
from fastmcp.server.auth import TokenVerifier
from fastmcp.server.dependencies import get_context
from mcp.server import MCPServer, Server
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from pydantic import AnyHttpUrl

from perdure import Retry, current_task
from perdure.tasks import StoreConfig
from perdure.tasks.encryption import EncryptedPart

from ...runtime.replicas import UNHURRIED
from .servers import ISSUER, DurableServer, ServerKind

CANARY = "canary-"
TOKEN = f"{CANARY}token"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
FIELDS: dict[str, Any] = {
    "token": TOKEN,
    "client_id": "some-client",
    "scopes": ["read"],
    "subject": "ada",
    "claims": {"iss": ISSUER, "secret": f"{CANARY}claim"},
}
ENDS = ("result", "tool_error", "unexpected", "mcp_error", "again", "retry", "too_large", "in_a_thread")


class Verifier:
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken.model_validate(FIELDS) if token == TOKEN else None


class FastVerifier(TokenVerifier):
    async def verify_token(self, token: str) -> FastAccessToken | None:
        return FastAccessToken.model_validate(FIELDS) if token == TOKEN else None


def observe() -> None:
    """Write everything to standard error."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
    trace.set_tracer_provider(provider)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("perdure").setLevel(logging.DEBUG)


def make(framework: ServerKind, encrypt: EncryptedPart) -> MCPServer[Any] | Server[Any] | FastMCP[Any]:
    observe()
    auth: dict[str, Any] = {}
    if framework == "sdk":
        settings = AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None)
        auth = {"auth": settings, "token_verifier": Verifier()}
    elif framework == "fastmcp":
        auth = {"auth": FastVerifier()}
    made = DurableServer(
        *(framework, "sqlite:///canary.db", "canaries", auth),
        encrypt=encrypt,
        store=StoreConfig(max_result_size_bytes=50_000),
        runtime=UNHURRIED,
        hand_over_after=60,
    )
    _add_tools(made, FastToolError if framework == "fastmcp" else ToolError)
    if framework == "sdk":
        _add_resolved(made)
    return made.server


def _add_tools(made: DurableServer, error: type[Exception]) -> None:
    @made.tool(retries=1, retry_on=(OSError,), backoff=0.01)
    async def fill(text: str, end: str) -> str:
        token, task = get_access_token(), current_task()
        assert (token.token if token else None) == (None if made.framework == "low-level" else TOKEN)
        await task.set_variables({"mine": f"{CANARY}variable", "text": text})
        await task.save_checkpoint({"page": f"{CANARY}checkpoint"})
        await task.report_progress(1, 2, f"{CANARY}progress")
        await task.log("info", f"{CANARY}log")
        if made.framework == "fastmcp":
            await get_context().info(f"{CANARY}context log", extra={"secret": f"{CANARY}extra"})
        await task.elicit(f"{CANARY}question", FORM, key="name")
        return _end(end, error)

    @made.tool(operators_answer=True)
    async def approve() -> str:
        await current_task().elicit(f"{CANARY}question", FORM, key="name")
        return _end("unexpected", error)

    @made.tool()
    def in_a_thread() -> str:
        return _end("unexpected", error)

    @made.tool()
    async def fail() -> str:
        return _end("mcp_error", error)


def _end(end: str, error: type[Exception]) -> str:
    match end:
        case "tool_error":
            raise error(f"{CANARY}tool error")
        case "unexpected":
            raise ValueError(f"{CANARY}unexpected") from KeyError(f"{CANARY}cause")
        case "mcp_error":
            raise MCPError(-32042, f"{CANARY}message", {"why": f"{CANARY}data"})
        case "again":
            raise Retry(f"{CANARY}again")
        case "retry":
            raise OSError(f"{CANARY}retry")
        case "too_large":
            return CANARY * 10_000
        case _:
            return f"{CANARY}result"


def refuse(ctx: Context) -> str:
    raise ValueError(f"{CANARY}resolver")


def _add_resolved(made: DurableServer) -> None:
    @made.tool()
    async def resolved(value: Annotated[str, Resolve(refuse)]) -> str:
        return value
