"""A server of FastMCP with a lifespan, dependencies, a guard, a mounted server and bearer authentication."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.dependencies import CurrentContext, Depends, Progress
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

PEOPLE: dict[str, dict[str, Any]] = {"ada": {"client_id": "app", "scopes": [], "sub": "ada"}}
NAME: Any = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@asynccontextmanager
async def lifespan(_: object) -> AsyncGenerator[dict[str, str]]:
    yield {"archive": "/var/archive"}


def archive(ctx: Context = CurrentContext()) -> str:
    return ctx.lifespan_context["archive"]


mcp: FastMCP[Any] = FastMCP("reports", auth=StaticTokenVerifier(PEOPLE), lifespan=lifespan)
printing: FastMCP[Any] = FastMCP("printing")
mcp.mount(printing, namespace="print")


@mcp.tool
async def build_report(
    year: int, ctx: Context, folder: str = Depends(archive), progress: Progress = Progress()
) -> dict[str, Any]:
    """Build the report of a year."""
    await progress.set_total(3)
    for page in range(1, 4):
        await progress.increment()
        await ctx.report_progress(page, 3, f"page {page}")
    await ctx.info("the pages are written")
    return {"year": year, "folder": folder, "server": ctx.fastmcp.name}


@mcp.tool
async def sign_report(year: int, ctx: Context) -> str | InputRequiredResult:
    """Sign the report of a year."""
    answers: Any = ctx.input_responses
    if answers is None:
        asked: Any = ElicitRequest(
            params=ElicitRequestFormParams(message="Who signs it?", requested_schema=NAME)
        )
        return InputRequiredResult(input_requests={"name": asked})
    return f"{year}, signed by {answers['name'].content['name']}"


@printing.tool
async def on_paper(pages: int, ctx: Context) -> str:
    """Print some pages."""
    if pages > 100:
        raise ValueError("out of paper")
    return f"{pages} pages by {ctx.fastmcp.name}"
