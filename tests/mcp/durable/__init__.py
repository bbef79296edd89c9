"""Durable tools: what their authors write, and what becomes of it."""
