"""The `perdure samples` command, which creates tasks in various states on the sample server."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import anyio
from typer import Argument, Option

from .errors import CommandError
from .output import print_message

DEFAULT_ADDRESS = "http://127.0.0.1:8000/mcp"
ADDRESS_HELP = "The MCP address that `perdure serve` prints."
TOKEN_HELP = "Token of the server, if it requires one."  # noqa: S105 (a help text)


def samples(
    address: Annotated[str, Argument(metavar="ADDRESS", help=ADDRESS_HELP)] = DEFAULT_ADDRESS,
    *,
    token: Annotated[str | None, Option(metavar="TOKEN", envvar="PERDURE_TOKEN", help=TOKEN_HELP)] = None,
) -> None:
    """Call the tools of a running sample server, so that its dashboard shows tasks in various states.

    Start the sample server with `perdure serve` first.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise CommandError(f"invalid address {address!r}; use the MCP address, such as {DEFAULT_ADDRESS}")
    # MCP is slow to import, and the other commands do not need it.
    from .sample_calls import call_tools  # noqa: PLC0415

    anyio.run(call_tools, address, token)
    dashboard = address.removesuffix("/").removesuffix("/mcp")
    print_message(f"These tasks are on the dashboard: {dashboard}/tasks")
