"""Whose a task is, and that nobody else gets at it."""
