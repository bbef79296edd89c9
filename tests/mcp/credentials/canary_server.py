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
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from pydantic import AnyHttpUrl

from perdure import Again, current_task
from perdure.tasks import StoreConfig
from perdure.tasks.encryption import EncryptedPart

from ...runtime.replicas import UNHURRIED
from .servers import ISSUER, DurableServer, Framework

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


class OwnSpans(SimpleSpanProcessor):
    """Exports the spans of perdure only: FastMCP records the error of a call that waits in its own."""

    def on_end(self, span: ReadableSpan) -> None:
        if span.instrumentation_scope is not None and span.instrumentation_scope.name == "perdure":
            super().on_end(span)


def observe(framework: Framework) -> None:
    """Write everything to standard error."""
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=sys.stderr)
    provider.add_span_processor(SimpleSpanProcessor(exporter) if framework == "sdk" else OwnSpans(exporter))
    trace.set_tracer_provider(provider)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("perdure").setLevel(logging.DEBUG)


def make(framework: Framework, encrypt: EncryptedPart) -> MCPServer[Any] | FastMCP[Any]:
    observe(framework)
    store = StoreConfig(max_result_size_bytes=50_000)
    if framework == "sdk":
        settings = AuthSettings(issuer_url=AnyHttpUrl(ISSUER), resource_server_url=None)
        auth: dict[str, Any] = {"auth": settings, "token_verifier": Verifier()}
    else:
        auth = {"auth": FastVerifier()}
    made = DurableServer(
        framework, "sqlite:///canary.db", "canaries", auth, encrypt=encrypt, store=store, runtime=UNHURRIED
    )
    _add_tools(made, ToolError if framework == "sdk" else FastToolError)
    if framework == "sdk":
        _add_resolved(made)
    return made.server


def _add_tools(made: DurableServer, error: type[Exception]) -> None:
    @made.tool(retries=1, retry_on=(OSError,), backoff=0.01)
    async def fill(text: str, end: str) -> str:
        token, task = get_access_token(), current_task()
        assert token is not None
        assert token.token == TOKEN
        await task.set_variables({"mine": f"{CANARY}variable", "text": text})
        await task.save_checkpoint({"page": f"{CANARY}checkpoint"})
        await task.report_progress(1, 2, f"{CANARY}progress")
        await task.log("info", f"{CANARY}log")
        await task.elicit(f"{CANARY}question", FORM, key="name")
        return _end(end, error)

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
            raise Again(f"{CANARY}again")
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
