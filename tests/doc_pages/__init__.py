"""Runs a page of the documentation as a reader would: its files, its commands, and what these print."""
