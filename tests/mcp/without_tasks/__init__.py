"""Clients that know of no tasks call durable tools: their call waits, and is served as any other."""
