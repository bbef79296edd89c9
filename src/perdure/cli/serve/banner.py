"""Builds the message that `perdure serve` prints at startup: addresses, tools and how to connect."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from ...mcp.tool import DurableTool
from ...samples.server import REPORT_SECONDS
from ...storage import StorageInfo
from ...storage.loopback_address import is_loopback
from ...storage.registry import redact_url
from ..program import perdure_command, python_command
from .command import ServeOptions
from .servers import MCP_PATH, HostedServer

SAMPLE_TOOLS = (
    (
        "tools",
        f"build_report(year)   takes {REPORT_SECONDS} seconds (or as many as `seconds` says), with progress",
    ),
    ("", "sign_report(year)    asks for a name"),
    ("", "approve_report(year) asks a question that you answer on the dashboard"),
    ("", "archive_report(year) runs for one report at a time; the others are queued"),
    ("", "print_report(year)   always fails"),
    ("", "mail_report(year)    fails once and is retried"),
    ("", "read_feeds()         polls feeds; recent_posts() and shared_links() return the results"),
)
FEEDS = (("feeds", "polled from Bluesky; add accounts to this storage with: perdure feeds add HANDLE"),)
NO_WORK = (("tasks", "run only by workers; start a worker with: perdure worker MODULE:SERVER"),)
MAX_OTHER_TOOLS = 10
"""Maximum number of non-durable tools that the message lists."""
SERVER_TOKEN, OWN_TOKEN = "PERDURE_TOKEN", "ACCESS_TOKEN"
"""The environment variables from which the printed snippets read a token. The first contains the token set
with --token. The second contains an access token for a server that has its own authentication.
"""
BANNER = """\
{name}, served by perdure
{facts}

{samples}{token_hint}Claude Desktop, in claude_desktop_config.json:
    {desktop}
MCP Inspector:
    npx @modelcontextprotocol/inspector@latest --transport http --server-url {endpoint}{inspector_options}
Python, in "{python} -m asyncio":
{snippet}

{hint}Press Ctrl+C to stop."""
SAMPLES_HINT = "To create tasks in various states, run this in another terminal:\n    {} samples {}\n"
TOKEN_HINTS = {
    SERVER_TOKEN: "Set PERDURE_TOKEN in the terminal in which you run the commands below, too.\n",
    OWN_TOKEN: "First set ACCESS_TOKEN to an access token that this server accepts.\n",
}
KILL_HINT = """\
Try it: paste the Python lines, run `kill -9 {}` while they wait, and start the server again. The report
resumes, and the Python lines print it.
"""
CLIENT_IMPORT = "from mcp.client import Client"
AUTHENTICATED_IMPORTS = (
    f"import os, httpx2; {CLIENT_IMPORT}; from mcp.client.streamable_http import streamable_http_client"
)
AUTHENTICATED_TARGET = (
    'streamable_http_client("{}", http_client=httpx2.AsyncClient(timeout=None, '
    'headers={{"Authorization": "Bearer " + os.environ["{}"]}}))'
)
CALL = """\
{imports}
async with Client({target}) as client:
    print(await client.{call})"""
DURABLE_CALL = """\
{imports}; from perdure import ClientTasks
tasks = ClientTasks()
async with Client({target}, extensions=[tasks]) as client:
    print(await tasks.call(client, "build_report", {{"year": 2026}}))"""
DURABLE_CALL_BY_TRANSPORT = """\
{imports}; from perdure import ClientTasks
connect = lambda: {target}
tasks = ClientTasks(reconnect=connect)
async with Client(connect(), extensions=[tasks]) as client:
    print(await tasks.call(client, "build_report", {{"year": 2026}}))"""


def banner(
    options: ServeOptions,
    hosted: HostedServer,
    address: str,
    storage: str,
    info: StorageInfo,
    tools: Mapping[str, DurableTool | None],
) -> str:
    """Return the message. It does not contain any tokens or the storage password."""
    endpoint = address + MCP_PATH
    variable = _token_variable(options, hosted)
    durability = "durable" if info.is_shared else "in memory: tasks are lost when the server stops"
    place = info.path or (hosted.storage and redact_url(hosted.storage)) or info.server or storage
    notes = ["read-only"] * options.read_only
    if options.effective_dashboard_token:
        notes.append("separate token" if options.dashboard_token else "token required")
    note = f"   ({', '.join(notes)})" if notes else ""
    rows = [
        *([("dashboard", f"{address}/{note}")] if options.dashboard else ()),
        ("MCP", f"{endpoint}   (streamable HTTP; 2026-07-28 and 2025-11-25)"),
        ("storage", f"{place}   ({durability})"),
        ("process", str(os.getpid())),
        *(() if options.work else NO_WORK),
        *(FEEDS if options.feeds else ()),
        *(SAMPLE_TOOLS if hosted.is_sample else ()),
        *_durable_tools(tools, hosted.make_durable),
    ]
    has_samples = hosted.is_sample and options.work and options.dashboard
    return BANNER.format(
        name=hosted.name,
        facts="\n".join(f"    {name:<11} {value}" for name, value in rows),
        samples=SAMPLES_HINT.format(perdure_command(), endpoint) if has_samples else "",
        token_hint="" if variable is None else TOKEN_HINTS[variable],
        desktop=_desktop(hosted.name, endpoint, variable),
        endpoint=endpoint,
        inspector_options="" if variable is None else f' --header "Authorization: Bearer ${variable}"',
        python=python_command(),
        snippet=_sample_call(endpoint, variable)
        if hosted.is_sample
        else _call(endpoint, variable, "list_tools()"),
        hint=KILL_HINT.format(os.getpid()) if hosted.is_sample and info.is_shared else "",
    )


def _token_variable(options: ServeOptions, hosted: HostedServer) -> str | None:
    """Return the environment variable from which the snippets read a token, or None if they need no token."""
    if hosted.has_own_authentication:
        return OWN_TOKEN
    return SERVER_TOKEN if options.token else None


def _client(endpoint: str, variable: str | None) -> tuple[str, str]:
    """Return the imports of the Python snippet, and the argument of its `Client`."""
    if variable is None:
        return CLIENT_IMPORT, f'"{endpoint}"'
    return AUTHENTICATED_IMPORTS, AUTHENTICATED_TARGET.format(endpoint, variable)


def _call(endpoint: str, variable: str | None, call: str) -> str:
    """Return Python code that connects to the server and prints the result of a call of a `Client` method."""
    imports, target = _client(endpoint, variable)
    return CALL.format(imports=imports, target=target, call=call)


def _sample_call(endpoint: str, variable: str | None) -> str:
    """Return Python code that prints a report of the sample server, even if the server restarts."""
    imports, target = _client(endpoint, variable)
    code = DURABLE_CALL if variable is None else DURABLE_CALL_BY_TRANSPORT
    return code.format(imports=imports, target=target)


def first_task(
    options: ServeOptions, hosted: HostedServer, address: str, tools: Mapping[str, DurableTool | None]
) -> str | None:
    """Return a shell command or Python code that creates a task.

    The dashboard shows this command or code while the server has no tasks. Return None if the server has no
    durable tools.
    """
    endpoint = address + MCP_PATH
    if hosted.is_sample:
        return f"{perdure_command()} samples {endpoint}"
    name = next((name for name, mark in tools.items() if mark is not None), None)
    if name is None:
        return None
    return _call(endpoint, _token_variable(options, hosted), f"call_tool({json.dumps(name)}, {{...}})")


def _durable_tools(tools: Mapping[str, DurableTool | None], advice: str) -> Iterator[tuple[str, str]]:
    """Yield a row with the durable tools and, if there are other tools, a row with some of them."""
    durable = [name for name, mark in tools.items() if mark is not None]
    others = [name for name, mark in tools.items() if mark is None]
    yield "durable", ", ".join(durable) or f"none; {advice}"
    if others:
        more = len(others) - MAX_OTHER_TOOLS
        yield "not durable", ", ".join(others[:MAX_OTHER_TOOLS]) + (f" and {more} more" if more > 0 else "")


def _desktop(name: str, endpoint: str, variable: str | None) -> str:
    arguments = ["-y", "mcp-remote", endpoint]
    if not is_loopback(urlsplit(endpoint).hostname or ""):
        arguments.append("--allow-http")
    entry: dict[str, object] = {"command": "npx", "args": arguments}
    if variable is not None:  # without a space after the colon, because mcp-remote loses it on Windows
        arguments += ["--header", "Authorization:${AUTHORIZATION}"]
        entry["env"] = {"AUTHORIZATION": f"Bearer <{variable}>"}
    return json.dumps({"mcpServers": {name: entry}})
