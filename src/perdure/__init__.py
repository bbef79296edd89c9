"""perdure: long-running work of MCP servers that survives."""
