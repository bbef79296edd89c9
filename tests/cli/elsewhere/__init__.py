"""Replicas that only serve and workers elsewhere, one of which lacks a tool, while all of them are killed.

`python -m tests.cli.elsewhere` runs it; docs/trust/crash.md describes it.
"""
