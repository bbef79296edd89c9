"""The adapter for FastMCP."""
