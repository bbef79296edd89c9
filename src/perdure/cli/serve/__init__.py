"""`perdure serve`: an MCP server and its dashboard in one process.

Read `command` (the options), `servers` (the sample server or the user's own), `asgi` (paths, start and stop,
`/health`), `poller` (feeds) and `banner` (the first message).
"""
