"""The `perdure serve` command, which runs an MCP server and its dashboard in one process."""
