"""The client of `perdure.mcp.client`, against servers of both generations."""
