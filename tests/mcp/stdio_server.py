"""The fixture server over stdio: `python -m tests.mcp.stdio_server URL`."""

from __future__ import annotations

import sys

from .fixture import make_server

if __name__ == "__main__":
    server, _ = make_server(sys.argv[1])
    server.run("stdio")
