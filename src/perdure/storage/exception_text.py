"""The texts of exceptions, for use in error messages."""

from __future__ import annotations


def reason_of(error: BaseException) -> str:
    """Return the text of an exception, or the name of its type if it has no text (some timeouts)."""
    return str(error) or type(error).__name__
