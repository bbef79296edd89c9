"""Loads the MCP server to serve: the sample server or the user's own server."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from ...mcp import Tasks
from ...mcp.errors import ATTACH_TO_FASTMCP, ATTACH_TO_LOW_LEVEL, ATTACH_TO_MCPSERVER, not_attached
from ...mcp.server import tasks_of
from ...mcp.tool import DurableTool
from ...runtime import App
from ...samples import SampleFeeds, make_server, simulated_feeds
from ...samples.server import DEMO_CONFIG
from ...tasks import Owner
from ..errors import CommandError
from ..importer import load
from ..options import read_settings_file
from .command import ServeOptions

if TYPE_CHECKING:
    from fastmcp import FastMCP


MCP_PATH = "/mcp"
MAKE_DURABLE = "write @tasks.durable below @server.tool()"
MAKE_DURABLE_IN_FASTMCP = "declare a tool with @mcp.tool(task=True)"
MAKE_DURABLE_IN_LOW_LEVEL = "write @tasks.durable above a function that has the name of a tool"
TOKEN_OWNER = Owner.client("perdure serve", "token")
"""The owner of all tasks of a sample server that has a token. All clients with the token can list them."""


@dataclass(frozen=True, kw_only=True)
class HostedServer:
    """An MCP server, its ASGI application and the service that runs its tasks."""

    name: str
    app: Starlette
    tasks: Tasks
    make_durable: str
    """Advice on how to make a tool durable with the framework of the server."""
    authenticates_clients: bool = True
    """Whether `app` enforces the authentication that the server requires. False for a low-level server, whose
    authentication is part of a transport that `perdure serve` does not use.
    """
    storage: str | None = None
    """The storage URL if this is the sample server, or None if it is the user's own server."""

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Enter the lifespan of the server, so that its tasks run. This method does not serve requests."""
        async with self.app.router.lifespan_context(self.app):
            if self.tasks.adapter is None:
                raise CommandError(not_attached("the lifespan"))
            yield

    async def tools(self) -> Mapping[str, DurableTool | None]:
        """Return the tools of the server by name. The value of a tool that is not durable is `None`."""
        return {} if self.tasks.adapter is None else await self.tasks.adapter.tools()

    @property
    def has_own_authentication(self) -> bool:
        """Whether the server checks the tokens of its clients itself."""
        adapter = self.tasks.adapter
        return adapter is not None and self.authenticates_clients and adapter.requires_authentication

    @property
    def is_sample(self) -> bool:
        return self.storage is not None


def sample_server(url: str, options: ServeOptions, *, simulated: bool) -> HostedServer:
    """Return the sample server, which keeps its tasks in the storage at `url`."""
    tasks = Tasks(url, runtime=DEMO_CONFIG, identify=(lambda _: TOKEN_OWNER) if options.token else None)
    feeds = simulated_feeds() if simulated else SampleFeeds(settings=read_settings_file())
    server = make_server(tasks, feeds)
    return replace(_host(server, server.name, ATTACH_TO_MCPSERVER, options), storage=url)


def load_server(name: str, options: ServeOptions) -> HostedServer:
    """Import the user's own server from a name such as `module:server`."""
    found = load(name)
    if isinstance(found, MCPServer):
        return _host(cast("MCPServer[Any]", found), name, ATTACH_TO_MCPSERVER, options)
    if isinstance(found, Server):
        hosted = _host(cast("Server[Any]", found), name, ATTACH_TO_LOW_LEVEL, options)
        return replace(hosted, authenticates_clients=False, make_durable=MAKE_DURABLE_IN_LOW_LEVEL)
    if "fastmcp" in sys.modules:  # always true for a FastMCP server; FastMCP may not be installed
        from fastmcp import FastMCP  # noqa: PLC0415

        if isinstance(found, FastMCP):
            return _host_fastmcp(cast("FastMCP[Any]", found), name, options.allowed_hosts)
    if isinstance(found, App):
        hint = f"run it with: perdure worker {name}"
        raise CommandError(f"{name} is a perdure.runtime.App, which has no tools; {hint}")
    if isinstance(found, Tasks):
        raise CommandError(f"{name} is a Tasks object; give the name of its server instead")
    kinds = "an MCPServer, a Server or a FastMCP server (or an App, for `perdure worker`)"
    raise CommandError(f"{name} has the type {type(found).__name__}; give the name of {kinds}")


def _host(
    server: MCPServer[Any] | Server[Any], name: str, advice: str, options: ServeOptions
) -> HostedServer:
    security = _security(options.allowed_hosts)
    app = server.streamable_http_app(streamable_http_path=MCP_PATH, transport_security=security)
    tasks = _find_tasks(server, name, advice)
    return HostedServer(name=server.name, app=app, tasks=tasks, make_durable=MAKE_DURABLE)


def _security(allowed_hosts: Sequence[str] | None) -> TransportSecuritySettings:
    """Return settings that allow requests to these host names, with or without a port. `None` allows all.

    The defaults of the SDK are not suitable: they allow the names of this machine only with a port, and they
    allow any name if the server listens on a loopback address other than 127.0.0.1 and ::1.
    """
    if allowed_hosts is None:
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    hosts = [f"[{name}]" if ":" in name else name for name in allowed_hosts]
    allowed = [written for each in hosts for written in (each, f"{each}:*")]
    return TransportSecuritySettings(allowed_hosts=allowed, allowed_origins=_origins(allowed))


def _origins(hosts: Iterable[str]) -> list[str]:
    # A proxy may terminate TLS, so browsers can also send https origins.
    return [f"{scheme}://{each}" for each in hosts for scheme in ("http", "https")]


def _host_fastmcp(server: FastMCP[Any], name: str, allowed_hosts: Sequence[str] | None) -> HostedServer:
    from ...fastmcp.adapter import tasks_of as tasks_of_fastmcp  # noqa: PLC0415, FastMCP may not be installed

    tasks = tasks_of_fastmcp(server)
    if tasks is None:
        raise CommandError(f"{name} has no TasksExtension; {ATTACH_TO_FASTMCP}")
    app = server.http_app(
        path=MCP_PATH,
        transport="streamable-http",
        host_origin_protection="auto",
        allowed_hosts=None if allowed_hosts is None else list(allowed_hosts),
        allowed_origins=None if allowed_hosts is None else _origins(allowed_hosts),
    )
    return HostedServer(name=server.name, app=app, tasks=tasks, make_durable=MAKE_DURABLE_IN_FASTMCP)


def _find_tasks(server: MCPServer[Any] | Server[Any], name: str, advice: str) -> Tasks:
    tasks = tasks_of(server)
    if tasks is None:
        raise CommandError(f"{name} has no Tasks object attached; {advice}")
    return tasks
