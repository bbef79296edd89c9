"""The texts of exceptions, for messages, logs and records."""

from __future__ import annotations

MAX_STORED_CHARACTERS = 4000


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or the name of its type if it has no text (some timeouts)."""
    return str(error) or type(error).__name__


def type_and_text_of(error: BaseException) -> str:
    """Return the type and the text of an exception, or only its type if it cannot be converted to text."""
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        text = type(error).__name__
    return storable_text(text)


def storable_text(text: str) -> str:
    """Return the start of a text, with a question mark for each character that cannot be encoded."""
    return text.encode(errors="replace").decode()[:MAX_STORED_CHARACTERS]
