"""Whose server it is: the one with the sample tools, or the user's own. Either has tasks, which the dashboard
shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from ...mcp import Tasks
from ...mcp.middleware import Middleware
from ...mcp.refusals import ATTACH_TO_FASTMCP, ATTACH_TO_LOW_LEVEL, ATTACH_TO_MCPSERVER, not_set_up
from ...mcp.service import Service
from ...runtime import App
from ...samples import SampleFeeds, make_server, simulated_feeds
from ...samples.server import DEMO_CONFIG
from ...tasks import Owner
from ..feeds.opening import stored_settings
from ..importer import CannotLoad, load

Names: TypeAlias = tuple[str, ...] | None
"""What requests may call the server; None: anything."""

PATH = "/mcp"
BEARER = Owner.client("perdure serve", "token")
"""Whoever knows the token of the sample server: one owner, who can list tasks."""


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """A server, ready to be run."""

    name: str
    app: Starlette
    service: Service
    """Its tasks."""
    checks_callers: bool = True
    """Whether the app brings along the authentication that its server declares. That of a low-level server
    stands in a transport of its user's, which is not the one that is served here.
    """
    storage: str | None = None
    """Where they are, if it was this command that was told so."""

    @property
    def is_sample(self) -> bool:
        return self.storage is not None


def sample_server(url: str, names: Names, *, made_up: bool, known_caller: bool) -> Hosted:
    """The tools to try, whose tasks are kept there."""
    tasks = Tasks(url, runtime=DEMO_CONFIG, identify=(lambda _: BEARER) if known_caller else None)
    server = make_server(tasks, simulated_feeds() if made_up else SampleFeeds(settings=stored_settings()))
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=_security(names))
    service = _service_in(server.middleware, server.name, ATTACH_TO_MCPSERVER)
    return Hosted(name=server.name, app=app, service=service, storage=url)


def _security(names: Names) -> TransportSecuritySettings:
    """The names that a request may call the server by. The SDK knows three names of loopback, and lets in
    every name at any other address of it; and without a port it knows none.
    """
    if names is None:
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    hosts = [f"[{name}]" if ":" in name else name for name in names]
    allowed = [written for each in hosts for written in (each, f"{each}:*")]
    return TransportSecuritySettings(allowed_hosts=allowed, allowed_origins=_origins_of(allowed))


def _origins_of(hosts: Iterable[str]) -> list[str]:
    """A proxy may speak TLS for us."""
    return [f"{scheme}://{each}" for each in hosts for scheme in ("http", "https")]


def named_server(name: str, names: Names) -> Hosted:
    """The server that the user calls this."""
    found = load(name, "server")
    if isinstance(found, MCPServer):
        server = cast("MCPServer[Any]", found)
        app = server.streamable_http_app(streamable_http_path=PATH, transport_security=_security(names))
        service = _service_in(server.middleware, name, ATTACH_TO_MCPSERVER)
        return Hosted(name=server.name, app=app, service=service)
    if isinstance(found, Server):
        server = cast("Server[Any]", found)
        app = server.streamable_http_app(streamable_http_path=PATH, transport_security=_security(names))
        service = _service_in(server.middleware, name, ATTACH_TO_LOW_LEVEL)
        return Hosted(name=server.name, app=app, service=service, checks_callers=False)
    return _of_fastmcp(found, name, names)


def _of_fastmcp(found: object, name: str, names: Names) -> Hosted:
    """FastMCP may not be installed; an object of its own is only there when it is."""
    if "fastmcp" not in sys.modules:
        raise CannotLoad(_no_server(found, name))
    from fastmcp import FastMCP  # noqa: PLC0415 (the extra may be missing)

    if not isinstance(found, FastMCP):
        raise CannotLoad(_no_server(found, name))
    server = cast("FastMCP[Any]", found)
    # There is no public way to its low-level server; `perdure.mcp.fastmcp` goes the same one.
    low_level = cast("Server[Any]", server._mcp_server)  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
    app = server.http_app(
        path=PATH,
        transport="streamable-http",
        host_origin_protection="auto",
        allowed_hosts=None if names is None else list(names),
        allowed_origins=None if names is None else _origins_of(names),
    )
    service = _service_in(low_level.middleware, name, ATTACH_TO_FASTMCP)
    return Hosted(name=server.name, app=app, service=service)


def _no_server(found: object, name: str) -> str:
    if isinstance(found, App):
        return f"{name} is a perdure.runtime.App, which has no tools; run it with: perdure worker {name}"
    if isinstance(found, Tasks):
        return f"{name} is the Tasks of a server; name the server itself"
    return f"{name} is a {type(found).__name__}, neither an MCPServer nor a FastMCP server"


def _service_in(middleware: Sequence[object], name: str, advice: str) -> Service:
    """The tasks that have joined a server: each of its requests passes through them."""
    for each in middleware:
        if isinstance(each, Middleware):
            if not each.service.serves_methods:
                raise CannotLoad(not_set_up("extensions=[tasks]").error.message)
            return each.service
    raise CannotLoad(f"{name} has no Tasks attached; {advice}")
