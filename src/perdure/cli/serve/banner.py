"""What is said at the start: where everything is, and how to connect. Never the token itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from ...mcp.durable import Durable
from ...storage import Storage
from .network import is_loopback
from .plan import Plan
from .servers import PATH, Hosted

BEARER = "Authorization: Bearer $PERDURE_TOKEN"

SAMPLES = """\
    tools       build_report(year)   takes a minute and reports its progress
                sign_report(year)    asks for a name
                approve_report(year) asks an operator, who answers on the dashboard
                print_report(year)   fails
                read_feeds()         reads feeds; recent_posts() and shared_links() tell what was found
"""
FEEDS = (
    "    feeds       polled from Bluesky; perdure feeds add HANDLE adds an account, with the same storage\n"
)
MAX_OTHER_TOOLS = 10
"""How many of the tools that are not durable are named."""
DARE = (
    "Kill it with `kill -9 {pid}` while a report is being written, start it again, and the report goes on.\n"
)


class Stand(NamedTuple):
    """Where the tasks are, as people are told."""

    place: str
    """A file, where it is one; of a server only what it is, since its URL may have a password."""
    lasts: bool
    """Whether the next process finds them there."""


async def stand_of(storage: Storage) -> Stand:
    about = await storage.about()
    return Stand(about.place or storage.name, about.is_shared)


def greeting(
    plan: Plan, hosted: Hosted, address: str, stand: Stand, tools: Mapping[str, Durable | None]
) -> str:
    endpoint = address + PATH
    has_token = plan.token is not None
    desktop = _desktop(hosted.name, endpoint, has_token=has_token)
    tool = 'call_tool("build_report", {"year": 2026})' if hosted.is_sample else "list_tools()"
    return (
        f"{hosted.name}, served by perdure\n"
        f"{_dashboard(plan, address)}"
        f"    MCP         {endpoint}   (streamable HTTP; 2026-07-28 and 2025-11-25)\n"
        f"    storage     {stand.place}   ({_promise(stand)})\n"
        f"{FEEDS if plan.feeds else ''}"
        f"{SAMPLES if hosted.is_sample else ''}"
        f"{_durability(tools)}\n"
        f"Claude Desktop, in claude_desktop_config.json:\n{desktop}\n"
        f"MCP Inspector:\n    {_inspector(endpoint, has_token=has_token)}\n"
        f'Python, in "python -m asyncio":\n{_python(endpoint, tool, has_token=has_token)}\n'
        f"{DARE.format(pid=os.getpid()) if hosted.is_sample and stand.lasts else ''}"
        "Ctrl-C stops it."
    )


def _dashboard(plan: Plan, address: str) -> str:
    if not plan.dashboard:
        return ""
    notes = ["read-only"] * plan.read_only
    if plan.visitors_token is not None:
        notes.append("asks for its own token" if plan.dashboard_token else "asks for the token")
    told = f"   ({', '.join(notes)})" if notes else ""
    return f"    dashboard   {address}/{told}\n"


def _durability(tools: Mapping[str, Durable | None]) -> str:
    """Which tools are durable, and the first of those that are not."""
    durable = [name for name, mark in tools.items() if mark is not None]
    others = [name for name, mark in tools.items() if mark is None]
    lines = f"    durable     {', '.join(durable) or 'none; write @tasks.durable below @server.tool()'}\n"
    if others:
        more = len(others) - MAX_OTHER_TOOLS
        rest = f" and {more} more" if more > 0 else ""
        lines += f"    not durable {', '.join(others[:MAX_OTHER_TOOLS])}{rest}\n"
    return lines


def _promise(stand: Stand) -> str:
    return "tasks survive in it" if stand.lasts else "tasks are gone when the server is"


def _desktop(name: str, endpoint: str, *, has_token: bool) -> str:
    arguments = ["-y", "mcp-remote", endpoint]
    if not is_loopback(urlsplit(endpoint).hostname or ""):
        arguments.append("--allow-http")
    entry: dict[str, object] = {"command": "npx", "args": arguments}
    if has_token:
        arguments += ["--header", "Authorization:${AUTHORIZATION}"]  # a space in it is lost on Windows
        entry["env"] = {"AUTHORIZATION": "Bearer <the token>"}
    return f"    {json.dumps({'mcpServers': {name: entry}})}"


def _inspector(endpoint: str, *, has_token: bool) -> str:
    header = f' --header "{BEARER}"' if has_token else ""
    return f"npx @modelcontextprotocol/inspector@latest --transport http --server-url {endpoint}{header}"


def _python(endpoint: str, call: str, *, has_token: bool) -> str:
    """Three lines, and the empty one that ends a block, to be pasted as they stand."""
    options = 'timeout=None, headers={"Authorization": "Bearer " + os.environ["PERDURE_TOKEN"]}'
    lines = ["from mcp.client import Client"]
    target = f'"{endpoint}"'
    if has_token:
        lines = [
            "import os, httpx2; from mcp.client import Client; "
            "from mcp.client.streamable_http import streamable_http_client",
        ]
        target = f"streamable_http_client({target}, http_client=httpx2.AsyncClient({options}))"
    lines += [f"async with Client({target}) as client:", f"    print(await client.{call})"]
    return "\n".join(lines) + "\n"
