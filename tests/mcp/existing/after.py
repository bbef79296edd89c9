"""The same server, whose tool is durable: one decorator, and `attach` with the arguments that it had."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context
from pydantic import AnyHttpUrl, BaseModel

from perdure import Tasks

calls: list[str] = []


class Tokens:
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="app", scopes=[], subject=token)


@asynccontextmanager
async def lifespan(_: object) -> AsyncGenerator[dict[str, str]]:
    yield {"archive": "/var/archive"}


async def count_calls(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    result = await call_next(ctx)
    if ctx.method == "tools/call":
        calls.append("error" if isinstance(result, dict) and result.get("isError") else "ok")
    return result


class Signature(BaseModel):
    name: str


auth = AuthSettings(issuer_url=AnyHttpUrl("https://issuer.test"), resource_server_url=None)
tasks = Tasks("memory:")
server: MCPServer[dict[str, str]] = MCPServer(
    "reports",
    auth=auth,
    token_verifier=Tokens(),
    log_level="ERROR",
    **tasks.attach(middleware=[count_calls], lifespan=lifespan),
)


@server.tool()
@tasks.durable
async def build_report(year: int, ctx: Context[dict[str, str], Any]) -> str:
    """Build the report of a year."""
    for page in range(1, 4):
        await ctx.report_progress(page, 3, f"page {page}")
    await ctx.info("all pages are written")  # pyright: ignore[reportDeprecated]
    answer = await ctx.elicit("Who signs it?", Signature)
    signature = answer.data.name if answer.action == "accept" else "nobody"
    return f"{year}, signed by {signature}, in {ctx.request_context.lifespan_context['archive']}"
