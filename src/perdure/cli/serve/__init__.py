"""The `perdure serve` command, which runs an MCP server and its dashboard in one process.

Modules: `command` (options), `servers` (the sample server or the user's own), `asgi` (routes, startup,
shutdown and `/health`), `poller` (feeds) and `banner` (the message that is printed at startup).
"""
