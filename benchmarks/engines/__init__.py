"""Engines with a server: their cost compared with the bare driver, and the effect of size."""
