"""Defines the minimum length of the tokens that give access to a server."""

from __future__ import annotations

MIN_TOKEN_LENGTH = 16
"""Minimum number of characters in a token. It is high because the number of login attempts is not limited."""
