"""The message at the start: addresses, tools, and how to connect. It never shows the token."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from ...mcp.durable import Durable
from ...operating.access import is_loopback
from ...storage import Storage
from .command import ServeOptions
from .servers import MCP_PATH, HostedServer

AUTH_HEADER = "Authorization: Bearer $PERDURE_TOKEN"

SAMPLE_TOOLS = """\
    tools       build_report(year)   takes a minute and reports its progress
                sign_report(year)    asks for a name
                approve_report(year) asks an operator, who answers on the dashboard
                print_report(year)   fails
                read_feeds()         polls feeds; recent_posts() and shared_links() return what was found
"""
FEEDS = "    feeds       polled from Bluesky; add accounts of this storage with: perdure feeds add HANDLE\n"
MAX_OTHER_TOOLS = 10
"""How many tools are listed as not durable."""
KILL_HINT = (
    "Try it: run `kill -9 {pid}` during build_report, start the server again, and the report resumes.\n"
)


class StorageLocation(NamedTuple):
    """The storage of the tasks, as the message shows it."""

    place: str
    """The path of a file, or the kind of server: its URL may contain a password."""
    is_durable: bool
    """Whether tasks survive the process."""


async def storage_location(storage: Storage) -> StorageLocation:
    info = await storage.info()
    return StorageLocation(info.path or storage.name, info.is_shared)


def banner(
    options: ServeOptions,
    hosted: HostedServer,
    address: str,
    location: StorageLocation,
    tools: Mapping[str, Durable | None],
) -> str:
    endpoint = address + MCP_PATH
    has_token = options.token is not None
    desktop = _desktop(hosted.name, endpoint, has_token=has_token)
    tool = 'call_tool("build_report", {"year": 2026})' if hosted.is_sample else "list_tools()"
    return (
        f"{hosted.name}, served by perdure\n"
        f"{_dashboard(options, address)}"
        f"    MCP         {endpoint}   (streamable HTTP; 2026-07-28 and 2025-11-25)\n"
        f"    storage     {location.place}   ({_durability(location)})\n"
        f"{FEEDS if options.feeds else ''}"
        f"{SAMPLE_TOOLS if hosted.is_sample else ''}"
        f"{_durable_tools(tools)}\n"
        f"Claude Desktop, in claude_desktop_config.json:\n{desktop}\n"
        f"MCP Inspector:\n    {_inspector(endpoint, has_token=has_token)}\n"
        f'Python, in "python -m asyncio":\n{_python(endpoint, tool, has_token=has_token)}\n'
        f"{KILL_HINT.format(pid=os.getpid()) if hosted.is_sample and location.is_durable else ''}"
        "Press Ctrl+C to stop."
    )


def _dashboard(options: ServeOptions, address: str) -> str:
    if not options.dashboard:
        return ""
    notes = ["read-only"] * options.read_only
    if options.effective_dashboard_token is not None:
        notes.append("separate token" if options.dashboard_token else "token required")
    note = f"   ({', '.join(notes)})" if notes else ""
    return f"    dashboard   {address}/{note}\n"


def _durable_tools(tools: Mapping[str, Durable | None]) -> str:
    """Return the durable tools, and the first of the others."""
    durable = [name for name, mark in tools.items() if mark is not None]
    others = [name for name, mark in tools.items() if mark is None]
    lines = f"    durable     {', '.join(durable) or 'none; write @tasks.durable below @server.tool()'}\n"
    if others:
        more = len(others) - MAX_OTHER_TOOLS
        rest = f" and {more} more" if more > 0 else ""
        lines += f"    not durable {', '.join(others[:MAX_OTHER_TOOLS])}{rest}\n"
    return lines


def _durability(location: StorageLocation) -> str:
    return "durable" if location.is_durable else "in memory: tasks are lost when the server stops"


def _desktop(name: str, endpoint: str, *, has_token: bool) -> str:
    arguments = ["-y", "mcp-remote", endpoint]
    if not is_loopback(urlsplit(endpoint).hostname or ""):
        arguments.append("--allow-http")
    entry: dict[str, object] = {"command": "npx", "args": arguments}
    if has_token:
        arguments += [
            "--header",
            "Authorization:${AUTHORIZATION}",
        ]  # mcp-remote loses a space here on Windows
        entry["env"] = {"AUTHORIZATION": "Bearer <the token>"}
    return f"    {json.dumps({'mcpServers': {name: entry}})}"


def _inspector(endpoint: str, *, has_token: bool) -> str:
    header = f' --header "{AUTH_HEADER}"' if has_token else ""
    return f"npx @modelcontextprotocol/inspector@latest --transport http --server-url {endpoint}{header}"


def _python(endpoint: str, call: str, *, has_token: bool) -> str:
    """Return three lines to paste, and the empty line that ends a block."""
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
