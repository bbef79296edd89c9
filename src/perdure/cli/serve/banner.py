"""The message that `perdure serve` prints at startup: addresses, tools and how to connect."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from ...mcp.tool import DurableTool
from ...operating.access import is_loopback
from ...storage import StorageInfo
from .command import ServeOptions
from .servers import MCP_PATH, HostedServer

SAMPLE_TOOLS = (
    ("tools", "build_report(year)   takes a minute and reports its progress"),
    ("", "sign_report(year)    asks for a name"),
    ("", "approve_report(year) asks a question that you answer on the dashboard"),
    ("", "print_report(year)   always fails"),
    ("", "read_feeds()         polls feeds; recent_posts() and shared_links() return the results"),
)
FEEDS = (("feeds", "polled from Bluesky; add accounts to this storage with: perdure feeds add HANDLE"),)
NO_WORK = (("tasks", "run by workers only; start them with: perdure worker MODULE:SERVER"),)
MAX_OTHER_TOOLS = 10
"""Maximum number of non-durable tools that the message lists."""
BANNER = """\
{name}, served by perdure
{facts}

Claude Desktop, in claude_desktop_config.json:
    {desktop}
MCP Inspector:
    npx @modelcontextprotocol/inspector@latest --transport http --server-url {endpoint}{inspector_options}
Python, in "python -m asyncio":
{imports}
async with Client({target}) as client:
    print(await client.{call})

{hint}Press Ctrl+C to stop."""
KILL_HINT = "Try it: run `kill -9 {}` during build_report, start the server again, and the report resumes.\n"
CLIENT_IMPORT = "from mcp.client import Client"
AUTHENTICATED_IMPORTS = (
    f"import os, httpx2; {CLIENT_IMPORT}; from mcp.client.streamable_http import streamable_http_client"
)
AUTHENTICATED_TARGET = (
    'streamable_http_client("{}", http_client=httpx2.AsyncClient(timeout=None, '
    'headers={{"Authorization": "Bearer " + os.environ["PERDURE_TOKEN"]}}))'
)


def banner(
    options: ServeOptions,
    hosted: HostedServer,
    address: str,
    storage: str,
    info: StorageInfo,
    tools: Mapping[str, DurableTool | None],
) -> str:
    """Return the message. It shows neither the token nor the storage URL, which may contain a password."""
    endpoint, has_token = address + MCP_PATH, bool(options.token)
    durability = "durable" if info.is_shared else "in memory: tasks are lost when the server stops"
    notes = ["read-only"] * options.read_only
    if options.effective_dashboard_token:
        notes.append("separate token" if options.dashboard_token else "token required")
    note = f"   ({', '.join(notes)})" if notes else ""
    rows = [
        *([("dashboard", f"{address}/{note}")] if options.dashboard else ()),
        ("MCP", f"{endpoint}   (streamable HTTP; 2026-07-28 and 2025-11-25)"),
        ("storage", f"{info.path or storage}   ({durability})"),
        *(() if options.work else NO_WORK),
        *(FEEDS if options.feeds else ()),
        *(SAMPLE_TOOLS if hosted.is_sample else ()),
        *_durable_tools(tools),
    ]
    return BANNER.format(
        name=hosted.name,
        facts="\n".join(f"    {name:<11} {value}" for name, value in rows),
        desktop=_desktop(hosted.name, endpoint, has_token=has_token),
        endpoint=endpoint,
        inspector_options=' --header "Authorization: Bearer $PERDURE_TOKEN"' if has_token else "",
        imports=AUTHENTICATED_IMPORTS if has_token else CLIENT_IMPORT,
        target=AUTHENTICATED_TARGET.format(endpoint) if has_token else f'"{endpoint}"',
        call='call_tool("build_report", {"year": 2026})' if hosted.is_sample else "list_tools()",
        hint=KILL_HINT.format(os.getpid()) if hosted.is_sample and info.is_shared else "",
    )


def _durable_tools(tools: Mapping[str, DurableTool | None]) -> Iterator[tuple[str, str]]:
    """Yield a row that lists the durable tools, and a row that lists up to `MAX_OTHER_TOOLS` other tools."""
    durable = [name for name, mark in tools.items() if mark is not None]
    others = [name for name, mark in tools.items() if mark is None]
    yield "durable", ", ".join(durable) or "none; write @tasks.durable below @server.tool()"
    if others:
        more = len(others) - MAX_OTHER_TOOLS
        yield "not durable", ", ".join(others[:MAX_OTHER_TOOLS]) + (f" and {more} more" if more > 0 else "")


def _desktop(name: str, endpoint: str, *, has_token: bool) -> str:
    arguments = ["-y", "mcp-remote", endpoint]
    if not is_loopback(urlsplit(endpoint).hostname or ""):
        arguments.append("--allow-http")
    entry: dict[str, object] = {"command": "npx", "args": arguments}
    if has_token:  # without a space after the colon, because mcp-remote loses it on Windows
        arguments += ["--header", "Authorization:${AUTHORIZATION}"]
        entry["env"] = {"AUTHORIZATION": "Bearer <the token>"}
    return json.dumps({"mcpServers": {name: entry}})
