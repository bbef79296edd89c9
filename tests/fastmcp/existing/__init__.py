"""Servers of FastMCP before and after they are durable by perdure."""
