"""Feeds: how near a cycle comes to what latency alone allows, and what a hundred thousand accounts cost."""
