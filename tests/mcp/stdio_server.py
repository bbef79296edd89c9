"""The fixture server over stdio: `python -m tests.mcp.stdio_server URL`."""

from __future__ import annotations

import sys

from perdure.runtime import RuntimeConfig

from .conformance_server import make_server

if __name__ == "__main__":
    server, _ = make_server(sys.argv[1], RuntimeConfig())
    server.run("stdio")
