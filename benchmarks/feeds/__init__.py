"""Feeds: how close a cycle comes to the limit set by latency, and what a hundred thousand accounts cost."""
