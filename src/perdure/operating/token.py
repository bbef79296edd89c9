"""The token that opens the dashboard and the server."""

MIN_TOKEN_LENGTH = 16
"""Characters. Wrong tokens are not counted, so a token must be too long to be found by trying."""
