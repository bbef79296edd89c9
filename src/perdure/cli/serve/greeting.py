"""What is said at the start: where everything is, and how to connect. Never the token itself."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .finding import PATH, Hosted
from .listening import is_loopback

if TYPE_CHECKING:
    from .running import Plan

BEARER = "Authorization: Bearer $PERDURE_TOKEN"

SAMPLES = """\
    tools       build_report(year)   takes a minute and reports its progress
                sign_report(year)    asks for a name
                print_report(year)   fails
                read_feeds()         reads feeds; recent_posts() and shared_links() tell what was found
"""
DARE = (
    "Kill it with `kill -9 {pid}` while a report is being written, start it again, and the report goes on.\n"
)


def greeting(plan: Plan, hosted: Hosted, address: str, engine: str) -> str:
    endpoint = address + PATH
    has_token = plan.token is not None
    desktop = _desktop(hosted.name, endpoint, has_token=has_token)
    tool = 'call_tool("build_report", {"year": 2026})' if hosted.is_sample else "list_tools()"
    return (
        f"{hosted.name}, served by perdure\n"
        f"{_dashboard(plan, address)}"
        f"    MCP         {endpoint}   (streamable HTTP; 2026-07-28 and 2025-11-25)\n"
        f"    storage     {_storage(hosted, engine)}\n"
        f"{SAMPLES if hosted.is_sample else ''}\n"
        f"Claude Desktop, in claude_desktop_config.json:\n{desktop}\n"
        f"MCP Inspector:\n    {_inspector(endpoint, has_token=has_token)}\n"
        f"Python:\n{_python(endpoint, tool, has_token=has_token)}\n"
        f"{DARE.format(pid=os.getpid()) if hosted.is_sample else ''}"
        "Ctrl-C stops it."
    )


def _dashboard(plan: Plan, address: str) -> str:
    if not plan.dashboard:
        return ""
    notes = ["read-only"] * plan.read_only + ["asks for the token"] * (plan.token is not None)
    told = f"   ({', '.join(notes)})" if notes else ""
    return f"    dashboard   {address}/{told}\n"


def _storage(hosted: Hosted, engine: str) -> str:
    """The file, where it is one; of a server only what it is, since its URL may have a password."""
    if hosted.storage is None or engine != "sqlite":
        return engine
    from ...storage.sqlite.location import parse  # noqa: PLC0415 (only for this engine)

    return f"{parse(hosted.storage).path.absolute()}   (tasks survive in it)"


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
    """Three lines, to be pasted into `python -m asyncio`."""
    headers = '{"Authorization": "Bearer " + os.environ["PERDURE_TOKEN"]}'
    lines = ["from mcp.client import Client"]
    target = f'"{endpoint}"'
    if has_token:
        lines = [
            "import os, httpx2; from mcp.client import Client; "
            "from mcp.client.streamable_http import streamable_http_client",
        ]
        target = f"streamable_http_client({target}, http_client=httpx2.AsyncClient(headers={headers}))"
    lines += [f"async with Client({target}) as client:", f"    print(await client.{call})"]
    return "\n".join(f"    {line}" for line in lines) + "\n"
